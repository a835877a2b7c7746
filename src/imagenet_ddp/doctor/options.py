"""Read doctor's options: refuse those that train cannot read, and leave errors in machine, data or launcher to the
checks. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from imagenet_ddp.cli import parse
from imagenet_ddp.cli.overrides import plain
from imagenet_ddp.cli.parse import Request
from imagenet_ddp.errors import ConfigError


@dataclass(frozen=True)
class Options:
    request: Request  # as if it were train's
    config: dict[str, Any]  # resolved, plain
    run_dir: Path  # where the run would be
    format: str


def read(argv: Sequence[str], environ: Mapping[str, str]) -> Options | None:
    """Return the request, or None if Hydra only prints something. Raises ConfigError with every error in the options
    themselves."""
    if {"-m", "--multirun"} & set(argv):
        raise ConfigError("-m starts several jobs, but doctor checks one. Hint: type the options of one, without -m.")
    request = parse.command_line("doctor", argv, environ)
    if request.passthrough:
        return None
    typed = [option for option in request.typed if option.partition("=")[0].lstrip("+") != "format"]
    composed: Any = OmegaConf.to_container(request.configs[0], resolve=False)
    output_format, config = composed.pop("format"), DictConfig(composed)
    if config.resume not in (None, "auto"):
        raise ConfigError(
            f"resume={config.resume} brings a run's options along, but doctor checks those that are typed. "
            "Hint: the options of that run, without resume."
        )
    assert request.hydra is not None
    run_dir = Path(request.hydra.run.dir)
    return Options(replace(request, typed=typed, configs=[config]), plain(config), run_dir, output_format)
