"""Read doctor's options. Refuse options that train cannot read; mistakes in machine, data or launcher are left to the
checks. Does not import torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from imagenet_ddp.cli import parse
from imagenet_ddp.cli.overrides import typed_config
from imagenet_ddp.cli.parse import Request
from imagenet_ddp.cli.single_process import refuse_multirun
from imagenet_ddp.config.keys import key_of
from imagenet_ddp.config.schema.commands import DoctorConfig
from imagenet_ddp.distributed.launchers.ranks import refuse_unreadable
from imagenet_ddp.errors import ConfigError


@dataclass(frozen=True)
class Options:
    request: Request  # without doctor's own options
    config: DoctorConfig
    run_dir: Path  # the folder that train would create
    format: str


def read(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Return the request. Raises ConfigError with every error in the options themselves."""
    refuse_multirun(argv, "doctor checks one")
    refuse_unreadable(environ)
    request = parse.command_line("doctor", argv, environ)
    typed = [option for option in request.typed if key_of(option) != "format"]
    composed: Any = OmegaConf.to_container(request.configs[0], resolve=False)
    output_format, config = composed.pop("format"), DictConfig(composed)
    if config.resume not in (None, "auto"):
        raise ConfigError(
            f"resume={config.resume} loads the options of a run, but doctor checks only typed options. "
            "Hint: type the options of that run, without resume."
        )
    run_dir = Path(request.hydra.run.dir)
    request = replace(request, typed=typed, configs=[config])
    return Options(request, typed_config(config, DoctorConfig), run_dir, output_format)
