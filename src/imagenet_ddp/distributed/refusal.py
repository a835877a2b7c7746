"""Tell the other commands of a run that this command was refused, so that they do not wait for it."""

import contextlib
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from imagenet_ddp.distributed.launchers.address import requested_address
from imagenet_ddp.distributed.launchers.detect import launcher_name, with_known_host
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo, WorldInfo
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system import console
from imagenet_ddp.system.bounded_wait import run_bounded

FOREGROUND_S = 3.0  # limit if a person waits for the prompt; commands that have already started check every 0.2 s
BACKGROUND_S = 12.0  # limit in other cases; commands that start together may need different times to import torch
SEND_S = 30.0  # limit for importing torch, finding the other commands and sending
MAX_MISTAKES = 5


def refused_command(
    launch_info: LaunchInfo | None, config: Mapping[str, Any], environ: Mapping[str, str]
) -> LaunchInfo | None:
    """Return how this command would have taken part in the run.

    Return None if no command waits for this one, or if another process of its node reports the refusal. launch_info:
    None if detect() refused the config, whose numbers may be wrong. config: the resolved config.
    """
    if launch_info is None:
        return _from_options(config, environ)
    launch_info = with_known_host(launch_info, environ)
    if launch_info.standalone or launch_info.size < 2:
        return None
    follows = launch_info.world_info is not None and launch_info.world_info.local_rank > 0
    if not launch_info.manual and (launch_info.num_nodes == 1 or follows):
        return None  # the launcher ends the other processes, or the first process of the node reports the refusal
    return launch_info


def _from_options(config: Mapping[str, Any], environ: Mapping[str, str]) -> LaunchInfo | None:
    """Guess the launch info from numbers that a person has typed; None under a launcher, whose numbers are correct.

    A command without a rank is one of several nodes.
    """
    cluster, num_nodes = config["cluster"], config["trainer"].get("num_nodes")
    if launcher_name(cluster, environ) is not None:
        return None
    with contextlib.suppress(ConfigError, TypeError, ValueError):
        address = requested_address(cluster, environ)
        rank, size = (_number(cluster[key], environ.get(key.upper())) for key in ("rank", "world_size"))
        node_rank = _number(cluster["node_rank"], environ.get("NODE_RANK"))
        if address is not None and rank is not None:
            place = WorldInfo(rank=rank, world_size=size or 2, store_is_served=False)
            return LaunchInfo(address=address, world_info=place, job_id=cluster["job_id"])
        if address is not None and (size is not None or node_rank is not None or (num_nodes or 1) > 1):
            return LaunchInfo(
                address=address, num_nodes=size or num_nodes or 2, node_rank=node_rank, job_id=cluster["job_id"]
            )
    return None


def _number(option: Any, variable: str | None) -> int | None:
    return int(option) if option is not None else int(variable) if variable and variable.isdecimal() else None


def send(refused: LaunchInfo, mistakes: Sequence[str]) -> None:
    """End the other commands of the run with the same mistakes, through the store at which they meet.

    Node 0 or rank 0 serves the store only for this purpose. If no other command arrives, this takes FOREGROUND_S or
    BACKGROUND_S seconds, plus the import of torch.
    """
    timeout_s = FOREGROUND_S if _in_foreground() else BACKGROUND_S
    number, noun = refused.number, refused.noun
    name = f"this {noun}" if number is None else f"{noun} {number}"
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

    def inform() -> bool:
        from imagenet_ddp.distributed import meet, store
        from imagenet_ddp.distributed.find_store import find

        found = find(refused, timeout_s, name)
        root = store.of_attempt(found.store, refused.world_info)
        who = f"{name.replace('this', 'one')} ({socket.gethostname()})"
        num_others = refused.size - 1 if number == 0 or found.is_server else None
        return meet.refuse(root, who, list(mistakes)[:MAX_MISTAKES], timeout_s, num_others)

    if run_bounded(inform, SEND_S):  # the time is limited, because any program may use the port
        console.print_message(f"The other commands at {refused.address} have been informed that {name} was refused.")


def _in_foreground() -> bool:
    """Return whether a shell is waiting for the end of this process before it shows its prompt."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return False
