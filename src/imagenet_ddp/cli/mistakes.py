"""Show the mistakes in a command line, report them to the nodes that wait for this command, and exit with code 2."""

import contextlib
import os
import sys
import traceback
from typing import NoReturn

from omegaconf import OmegaConf

from imagenet_ddp.cli.parse import NotMetError
from imagenet_ddp.distributed import refusal
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs.signals import SignalExit, raise_on_signal
from imagenet_ddp.system import console
from imagenet_ddp.system.text import count_noun


def refuse(error: ConfigError, verb: str) -> NoReturn:
    """Print the mistakes to stderr, report them to the nodes that wait for this command, and exit with code 2."""
    show(error, verb)
    if isinstance(error, NotMetError) and error.request.verb in ("train", "evaluate"):
        _tell_others(error)
    sys.exit(2)


def _tell_others(error: NotMetError) -> None:
    nodes, request = ("cluster", "trainer", "strategy"), error.request
    if request.multirun:
        return
    # the mistakes are printed already; they may also be the reason why this fails
    with contextlib.suppress(SignalExit, Exception), raise_on_signal():
        config = {name: OmegaConf.to_container(request.configs[0][name], resolve=True) for name in nodes}
        if refused := refusal.refused_command(request.launch_infos[0], config, os.environ):
            sys.stderr.flush()
            refusal.send(refused, error.mistakes)


def show(error: ConfigError, verb: str) -> None:
    """Print the mistakes, with the traceback if HYDRA_FULL_ERROR=1 is set."""
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        traceback.print_exception(error)
    lines = [f"imagenet_ddp.{verb}: {count_noun(len(error.mistakes), 'mistake')}, nothing was started"]
    for number, text in enumerate(error.mistakes, 1):
        head = f"{number:2}. "
        lines += ["", *console.wrap_text(text, 80, head, " " * len(head))]
    print("\n".join(lines), file=sys.stderr)
