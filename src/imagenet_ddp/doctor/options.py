"""Read doctor's options: refuse those that train cannot read, and leave errors in machine, data or launcher to the
checks. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from imagenet_ddp.cli import hydra_flags, parse, validate
from imagenet_ddp.cli.overrides import merge_overrides
from imagenet_ddp.cli.parse import Request
from imagenet_ddp.config.keys import validate_group
from imagenet_ddp.data import validate as data_check
from imagenet_ddp.distributed import validate as distributed_check
from imagenet_ddp.engine.job import TYPED_ONLY
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs import folder
from imagenet_ddp.runs import validate as run_check


@dataclass(frozen=True)
class Options:
    request: Request  # as if it were train's
    config: dict[str, Any]  # resolved, plain
    run_dir: Path  # where the run would lie
    format: str


def read(argv: Sequence[str], environ: Mapping[str, str]) -> Options | None:
    """Return None where Hydra only prints something. Raises ConfigError with every error in the options themselves."""
    if {"-m", "--multirun"} & set(argv):
        raise ConfigError("-m starts several jobs, but doctor checks one. Hint: type the options of one, without -m.")
    # with --cfg the command line is composed and nothing else is checked
    request = parse.command_line("doctor", [*argv, "--cfg", "job"], environ)
    if not request.configs or hydra_flags.only_prints(argv):
        return None
    typed = [option for option in request.typed if option.partition("=")[0].lstrip("+") != "format"]
    composed: Any = OmegaConf.to_container(request.configs[0], resolve=False)
    output_format = composed.pop("format")
    errors = validate_group("", {"format": output_format}, "doctor")
    config = DictConfig(composed)
    resumes = config.get("resume") not in (None, "auto")
    plain = _checked(config, environ, typed, errors, partial=resumes)
    assert request.hydra is not None
    run_dir = Path(request.hydra.run.dir)
    if resumes and not any(text.startswith("resume") for text in run_check.validate(plain, environ)):
        config = _resumed(config, typed, run_dir)
        plain = _checked(config, environ, typed, errors)
    return Options(replace(request, typed=typed, configs=[config], passthrough=False), plain, run_dir, output_format)


def _checked(
    config: DictConfig, environ: Mapping[str, str], typed: Sequence[str], errors: list[str], *, partial: bool = False
) -> dict[str, Any]:
    """Return the config, resolved and plain. errors: found before."""
    messages = validate.validate(config, environ, "train", typed=typed, partial=partial)
    try:
        plain: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(errors + messages) from error
    try:
        of_checks = _not_of_options(plain, environ, typed)
    except Exception:  # a value of the errors kind, which `messages` names
        of_checks = set()
    if errors := errors + [text for text in messages if text not in of_checks]:
        raise ConfigError(errors)
    return plain


def _resumed(config: DictConfig, typed: Sequence[str], run_dir: Path) -> DictConfig:
    """Return the config with which train would resume: the checkpoint's, with the typed options on top."""
    from imagenet_ddp.runs.checkpoint_file import KEY, read

    found = folder.find_resume(config.resume, None, run_dir.parent)
    assert found.checkpoint is not None
    return merge_overrides(read(found.checkpoint)[KEY]["config"], config, typed, TYPED_ONLY)


def _not_of_options(config: Mapping[str, Any], environ: Mapping[str, str], typed: Sequence[str]) -> set[str]:
    """Collect what train would refuse for another reason than the options: data, launcher, devices, checkpoint."""
    of_options = data_check.validate(config, environ, verb="predict")  # which needs no images
    return {
        *data_check.validate(config, environ),
        *distributed_check.validate(config, environ, verb="train", typed=typed),
        *(text for text in run_check.validate(config, environ, verb="train") if text.startswith("resume")),
    } - set(of_options)
