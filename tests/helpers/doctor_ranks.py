"""Run several ranks of one world as processes on this machine, to test their joint measurements."""

import json
import socket
from pathlib import Path
from typing import Any

from conftest import PROBES, clean_environ
from helpers import forked_commands


def ranks(what: str, world_size: int, num_nodes: int, *options: str, folder: Path) -> list[Any]:
    """Run check_world in each rank, and return the checks that each rank reports, in JSON form.

    what: "failing" makes the step of rank 1 fail. options: options of doctor. folder: the working folder of all ranks.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environ = clean_environ(PYTHONPATH=PROBES, GLOO_SOCKET_IFNAME="lo")
    numbers = [[str(number) for number in (port, rank, world_size, num_nodes)] for rank in range(world_size)]
    started = [
        forked_commands.start("doctor_ranks", what, *each, *options, folder=folder, environment=environ)
        for each in numbers
    ]
    try:
        ended = [process.communicate(timeout=240) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * world_size, "\n".join(err for _, err in ended)
    return [json.loads(out.splitlines()[-1]) for out, _ in ended]
