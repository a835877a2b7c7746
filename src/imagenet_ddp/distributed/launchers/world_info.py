"""Define the ranks of a process, the role of a command in a run, and what the options request of a launcher. Does not
import torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imagenet_ddp.distributed.launchers.address import Address


@dataclass(frozen=True)
class WorldInfo:
    """Ranks of one process.

    address, port: address of the rendezvous store; None if there are no other processes. local_world_size: number of
    processes per node; 0 until all ranks have joined, if the launcher does not provide the number.
    """

    rank: int = 0
    local_rank: int = 0
    node_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    num_nodes: int = 1
    address: str | None = None
    port: int | None = None
    store_is_served: bool = True  # whether the launcher serves the store; otherwise rank 0 must serve it
    source: str = "one process"
    attempt: int = 0  # number of restarts: torchrun --max-restarts restarts all workers with the same store
    is_worker: bool = False  # whether spawn.py started this process for the command that was typed

    def sentence(self) -> str:
        """Return the log line that describes the rendezvous."""
        if self.world_size == 1:
            return "Rendezvous: none needed for one process."
        return (
            f"Rendezvous: {self.source} at {self.address}:{self.port}, rank {self.rank} of {self.world_size}, "
            f"local rank {self.local_rank} of {self.local_world_size}, node {self.node_rank} of {self.num_nodes}."
        )

    def validate(self, names: Sequence[str] = ("RANK", "LOCAL_RANK", "NODE_RANK")) -> list[str]:
        """Check that ranks are numbered node by node, as in torchrun and Lightning. Return error messages.

        names: names of the rank, the local rank and the node rank, for messages.
        """
        local = self.local_world_size
        if not local:
            return []
        rank, local_rank, node_rank = names
        if self.local_rank >= local:
            return [
                f"{local_rank} must be below the number of processes per node ({local}), got {self.local_rank}. "
                "Hint: number the local ranks from 0 on each node."
            ]
        if self.rank != self.node_rank * local + self.local_rank:
            return [
                f"{rank} must be {node_rank} × {local} (processes per node) + {local_rank} = "
                f"{self.node_rank} × {local} + {self.local_rank} = {self.node_rank * local + self.local_rank}, got "
                f"{self.rank}. Hint: number the ranks node by node, with {', '.join(map(str, range(local)))} on node 0."
            ]
        return []


@dataclass(frozen=True)
class LaunchInfo:
    """Role of this command in the run: one rank (world_info), or a node that starts its own workers."""

    source: str = "one process"
    address: Address | None = None  # None if no other command takes part
    world_info: WorldInfo | None = None
    num_nodes: int = 1
    node_rank: int | None = 0  # None if the rendezvous assigns it
    manual: bool = False  # whether a person typed each command, so that each command prints its own mistakes
    job_id: str | None = None
    run_key: str | None = None  # name for the run folder, which is the same after the launcher restarts the job

    @property
    def standalone(self) -> bool:
        return self.address is None

    @property
    def host(self) -> str | None:
        """Return the host name or IP address of the rendezvous.

        None if no other command takes part, or if the rendezvous uses a file.
        """
        return self.address.host if self.address else None

    @property
    def noun(self) -> str:
        """Return "node" if nodes join the rendezvous, and "rank" if ranks join it."""
        return "node" if self.world_info is None else "rank"

    @property
    def number(self) -> int | None:
        """Return the rank or node rank of this command."""
        return self.node_rank if self.world_info is None else self.world_info.rank

    @property
    def size(self) -> int:
        """Return the number of ranks or nodes that join the rendezvous."""
        return self.num_nodes if self.world_info is None else self.world_info.world_size


@dataclass(frozen=True)
class LaunchRequest:
    """Requested number of nodes and devices, and requested address. A value that is not set is None."""

    num_nodes: int | None
    devices: int | None  # processes per node
    cluster: Mapping[str, Any]
    line: str  # the command as typed, for hints
    cpu: bool  # whether there is no GPU, or none is requested


def num_devices(devices: Any) -> int | None:
    """Return the number of devices per node; None if trainer.devices does not determine the number."""
    if isinstance(devices, str) and devices not in ("auto", "-1"):
        return len(devices.strip(",").split(",")) if "," in devices else int(devices) if devices.isdecimal() else None
    if isinstance(devices, int) and not isinstance(devices, bool):
        return devices if devices >= 1 else None
    return len(devices) if isinstance(devices, Sequence) and not isinstance(devices, str) else None
