"""Doctor's options: those that cannot be read are refused, as train does; what is wrong with machine, data or world is
left for the checks to say. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from imagenet_ddp.cli import parse, validate
from imagenet_ddp.cli.overrides import merge_overrides
from imagenet_ddp.cli.parse import Request
from imagenet_ddp.config.keys import validate_group
from imagenet_ddp.data import validate as data_check
from imagenet_ddp.distributed import validate as distributed_check
from imagenet_ddp.engine.job import TYPED_ONLY
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs import folder
from imagenet_ddp.runs import validate as run_check

# Hydra only prints with these, and starts no job.
PRINTING = ("--cfg", "-c", "--info", "-i", "--help", "-h", "--hydra-help", "--version", "--shell-completion", "-sc")


@dataclass(frozen=True)
class Options:
    request: Request  # as if it were train's
    config: dict[str, Any]  # resolved, plain
    run_dir: Path  # where the run would lie
    format: str


def read(argv: Sequence[str], environ: Mapping[str, str]) -> Options | None:
    """None where Hydra only prints something. Raises ConfigError with every mistake in the options themselves."""
    if {"-m", "--multirun"} & set(argv):
        raise ConfigError("-m starts several jobs, but doctor looks at one. Hint: type the options of one, without -m.")
    # with --cfg the command line is composed, and nothing is looked at beyond it
    request = parse.command_line("doctor", [*argv, "--cfg", "job"], environ)
    if not request.configs or any(token.partition("=")[0] in PRINTING for token in argv):
        return None
    typed = [option for option in request.typed if option.partition("=")[0].lstrip("+") != "format"]
    composed: Any = OmegaConf.to_container(request.configs[0], resolve=False)
    form = composed.pop("format")
    wrong = validate_group("", {"format": form}, "doctor")
    config = DictConfig(composed)
    resumes = config.get("resume") not in (None, "auto")
    plain = _checked(config, environ, typed, wrong, partial=resumes)
    assert request.hydra is not None
    run_dir = Path(request.hydra.run.dir)
    if resumes and not any(text.startswith("resume") for text in run_check.validate(plain, environ)):
        config = _resumed(config, typed, run_dir)
        plain = _checked(config, environ, typed, wrong)
    return Options(replace(request, typed=typed, configs=[config], passthrough=False), plain, run_dir, form)


def _checked(
    config: DictConfig, environ: Mapping[str, str], typed: Sequence[str], wrong: list[str], *, partial: bool = False
) -> dict[str, Any]:
    """Resolved and plain. wrong: mistakes that are known already."""
    said = validate.validate(config, environ, "train", typed=typed, partial=partial)
    try:
        plain: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(wrong + said) from error
    try:
        outside = _outside(plain, environ, typed)
    except Exception:  # a value of the wrong kind, which `said` names
        outside = set()
    if wrong := wrong + [text for text in said if text not in outside]:
        raise ConfigError(wrong)
    return plain


def _resumed(config: DictConfig, typed: Sequence[str], run_dir: Path) -> DictConfig:
    """As train goes on: the checkpoint's config, with what is typed on top."""
    from imagenet_ddp.runs.checkpoint_file import KEY, read

    found = folder.find_resume(config.resume, None, run_dir.parent)
    assert found.checkpoint is not None
    return merge_overrides(read(found.checkpoint)[KEY]["config"], config, typed, TYPED_ONLY)


def _outside(config: Mapping[str, Any], environ: Mapping[str, str], typed: Sequence[str]) -> set[str]:
    """What train would refuse, but is no fault of the options alone: data, world, devices, checkpoint to resume."""
    of_options = data_check.validate(config, environ, verb="predict")  # which needs no images
    return {
        *data_check.validate(config, environ),
        *distributed_check.validate(config, environ, verb="train", typed=typed),
        *(text for text in run_check.validate(config, environ, verb="train") if text.startswith("resume")),
    } - set(of_options)
