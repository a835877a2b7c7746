"""Connect a rank to all ranks of its run: let them meet, watch them, and check that each has its own GPU and that all
reach each other."""

import contextlib
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imagenet_ddp.distributed import nccl
from imagenet_ddp.distributed.compare_members import shared_gpus
from imagenet_ddp.distributed.connectivity import check_connectivity, own_address
from imagenet_ddp.distributed.failure_watch import FailureWatch
from imagenet_ddp.distributed.meet import Meeting, meet
from imagenet_ddp.distributed.messages import Messages, as_posted
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.distributed.shared_file import share_file
from imagenet_ddp.distributed.store import connect
from imagenet_ddp.errors import ConfigError, SharedError

__all__ = ["Connection", "FailureWatch", "Meeting", "Messages", "as_posted", "connect_ranks", "share_file"]


@dataclass(frozen=True)
class Connection:
    """Ranks that have met. new_client: opens another connection to their store. notes: which network interfaces were
    chosen and why, for the log."""

    meeting: Meeting
    watch: FailureWatch
    new_client: Callable[[], Messages]
    notes: Sequence[str]

    @contextlib.contextmanager
    def refusals_told(self) -> Generator[None]:
        """Tell the other ranks if the block raises a ConfigError of this rank."""
        try:
            yield
        except ConfigError as error:
            if not isinstance(error, SharedError):
                self.meeting.refuse(error)
            self.watch.end(wait=False)
            raise

    def check(self, own_gpus: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        """Return the GPUs of each rank, on rank 0 only. Raises SharedError on all ranks if two use the same GPU, or if
        a node cannot reach another. own_gpus: of this rank, with the key uuid."""
        found, place = list[Any](), self.meeting.place

        def check_gpus(gpus_of_ranks: list[Any]) -> None:
            found.extend(gpus_of_ranks)
            uuids = [gpus[0]["uuid"] if gpus else None for gpus in found]
            if mistakes := shared_gpus(uuids, place.label):
                raise ConfigError(mistakes)

        self.meeting.agree("gpus", own_gpus, check_gpus)
        if place.num_nodes > 1:
            assert place.host
            check_connectivity(self.meeting, own_address(os.environ, place.host))
        return found


def connect_ranks(place: Place, facts: Mapping[str, Any], env: Mapping[str, Any], timeout_s: float) -> Connection:
    """Let all ranks meet, and set the network interfaces of this process.

    facts: of the command of this rank, which must be equal in all commands. env: variables of NCCL and Gloo, which go
    before what is chosen here. Raises ConfigError.
    """
    new_client = lambda: connect(place, timeout_s)  # noqa: E731
    meeting = meet(new_client(), place, facts, timeout_s)
    watch, met = FailureWatch(meeting, new_client), meeting.place
    several = met.num_nodes > 1
    variables, notes = nccl.interface_variables(met.host if several else None, not several, env, os.environ)
    os.environ |= {**nccl.configured_variables(env, os.environ), **variables}
    return Connection(meeting, watch, new_client, [*notes, _who_can_post(met)] if several else notes)


def _who_can_post(place: Place) -> str:
    if place.secret is not None:
        return "the nodes sign their messages with the secret of cluster.secret_file"
    return (
        f"the nodes do not sign their messages, so whoever reaches {place.address} can change this run "
        "(cluster.secret_file)"
    )
