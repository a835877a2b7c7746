"""Read the command line of a command that runs in one process, ignoring any launcher around it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from imagenet_ddp.cli import parse, validate
from imagenet_ddp.cli.overrides import typed_config
from imagenet_ddp.config.keys import validate_group
from imagenet_ddp.config.schema.commands import COMMANDS, CommonConfig
from imagenet_ddp.errors import ConfigError


@dataclass(frozen=True)
class SingleProcess:
    """The command line of a command that runs in one process, ignoring any launcher around it."""

    request: parse.Request
    config: CommonConfig
    environ: Mapping[str, str]  # without a launcher
    found: list[str]  # mistakes in single keys; the command checks combinations


def refuse_multirun(argv: Sequence[str], why: str) -> None:
    """Raise ConfigError if -m is set. why: the reason, shown in the message."""
    if {"-m", "--multirun"} & set(argv):
        raise ConfigError(f"-m starts several jobs, but {why}. Hint: leave -m out.")


def read_single_process(verb: str, argv: Sequence[str], environ: Mapping[str, str], why: str) -> SingleProcess:
    """Return the command line. why: the reason for refusing -m, shown in the message. Raises ConfigError if a mistake
    makes further validation impossible."""
    refuse_multirun(argv, why)
    request = parse.command_line(verb, argv, environ, compose_only=True)
    alone = {name: environ[name] for name in ("HOME", "XDG_CACHE_HOME") if name in environ}
    found, _ = validate.validate(request.configs[0], alone, verb, typed=request.typed, partial=True)
    if any(text.startswith(f"{verb}.name ") for text in found):  # a required choice is missing
        raise ConfigError(found)
    config = typed_config(request.configs[0], COMMANDS[verb])
    return SingleProcess(request, config, alone, found + validate_group(verb, config[verb], verb))
