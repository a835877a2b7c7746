"""Tell the other commands of a run that this command was refused, so that they do not wait for it."""

import os
import socket
from collections.abc import Mapping, Sequence

from imagenet_ddp.distributed.launchers.detect import with_known_host
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo
from imagenet_ddp.system import console
from imagenet_ddp.system.bounded_wait import run_bounded

WAIT_S = 8.0  # for commands that start at the same time, and may need longer to import torch
SEND_S = 30.0  # limit for importing torch, finding the other commands and sending
MAX_MISTAKES = 5


def refused_command(launch_info: LaunchInfo | None, environ: Mapping[str, str]) -> LaunchInfo | None:
    """Return how this command would have taken part in the run; None if no command waits for this one, or if another
    process of its node reports the refusal. launch_info: None if detect() refused the command's own numbers."""
    if launch_info is None or launch_info.standalone or launch_info.size < 2:
        return None
    follows = launch_info.world_info is not None and launch_info.world_info.local_rank > 0
    if not launch_info.manual and (launch_info.num_nodes == 1 or follows):
        return None  # the launcher ends the other processes, or the first process of the node reports the refusal
    return with_known_host(launch_info, environ)


def send(refused: LaunchInfo, mistakes: Sequence[str]) -> None:
    """End the other commands of the run with the same mistakes, through the store at which they meet.

    Node 0 or rank 0 serves the store only for this purpose. If no other command arrives, this takes WAIT_S seconds.
    """
    number, noun = refused.number, refused.noun
    name = f"this {noun}" if number is None else f"{noun} {number}"
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

    def inform() -> bool:
        from imagenet_ddp.distributed import meet, store

        found = store.find(refused, WAIT_S, name)
        root = store.of_attempt(found.store, refused.world_info)
        who = f"{name.replace('this', 'one')} ({socket.gethostname()})"
        num_others = refused.size - 1 if number == 0 or found.is_server else None
        return meet.refuse(root, who, list(mistakes)[:MAX_MISTAKES], WAIT_S, num_others)

    if run_bounded(inform, SEND_S):  # the time is limited, because any program may use the port
        console.print_message(f"The other commands at {refused.address} have been informed that {name} was refused.")
