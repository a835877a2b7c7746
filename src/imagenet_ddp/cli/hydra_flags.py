"""Read Hydra's own options, which begin with -, from argv. Does not import torch.

Hydra's parser is private, so its options are listed here. tests/cli/test_known_terms.py compares the list with the
parser.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from imagenet_ddp.errors import ConfigError

_INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
# Names -> keyword arguments of argparse's add_argument; {}: action="store_true".
_OPTIONS: dict[tuple[str, ...], dict[str, Any]] = {
    ("--help", "-h"): {},
    ("--hydra-help",): {},
    ("--version",): {},
    ("--shell-completion", "-sc"): {},
    ("--resolve",): {},
    ("--run", "-r"): {},
    ("--multirun", "-m"): {},
    ("--cfg", "-c"): {"choices": ("job", "hydra", "all")},
    ("--info", "-i"): {"choices": _INFO, "nargs": "?", "const": "all"},
    ("--config-name", "-cn"): {"metavar": "NAME"},
    ("--config-dir", "-cd"): {"metavar": "FOLDER"},
}
NAMES = {name for names in _OPTIONS for name in names}
# With these options Hydra only prints something. Those of ANSWERED take precedence over all other options.
ANSWERED = {"--help", "-h", "--hydra-help", "--version", "--shell-completion", "-sc"}
_PRINTING = {*ANSWERED, "--cfg", "-c", "--info", "-i"}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        hint = "run the command with `--hydra-help` to list the options that begin with -."
        raise ConfigError(f"the command line cannot be read: {message}. Hint: {hint}")


def only_prints(argv: Sequence[str]) -> bool:
    """Return whether these options make Hydra print something and exit."""
    return any(token.partition("=")[0] in _PRINTING for token in argv)


def without_local_rank(argv: Sequence[str]) -> list[str]:
    """Return argv without the --local-rank=N or --local_rank=N that torch.distributed.launch adds."""
    return [token for token in argv if not re.match(r"--local[-_]rank=", token)]


def read(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return (Hydra's options, argv for Hydra). key=value may come before or after an option. Raises ConfigError."""
    parser = _Parser(add_help=False)
    parser.add_argument("overrides", nargs="*")
    only_one = parser.add_mutually_exclusive_group()
    for names, how in _OPTIONS.items():
        group = only_one if names[0] in ("--run", "--multirun", "--cfg", "--info") else parser
        group.add_argument(*names, **how or {"action": "store_true"})
    args, rest = parser.parse_known_args(argv)
    if late := [token for token in rest if not token.startswith("-")]:
        # if words come both before and after an option, argparse leaves over those after it; Hydra would refuse them
        args.overrides = [*args.overrides, *late]
        words = list(args.overrides)
        flags = [token for token in argv if not (token in words and not words.remove(token))]
        argv = [*args.overrides, *flags]
    if args.config_dir is not None and not Path(args.config_dir).is_dir():
        parser.error(f"--config-dir must be a folder, got {Path(args.config_dir).absolute()}")
    return args, argv
