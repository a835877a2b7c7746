"""Define the rank of a process in its world, and how a command takes part in a run. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from imagenet_ddp.distributed.launchers.address import Address


@dataclass(frozen=True)
class WorldInfo:
    """The ranks of one process. address, port: of the store; None without other processes. local_world_size: 0 if the
    launcher does not provide it, until all ranks have joined."""

    rank: int = 0
    local_rank: int = 0
    node_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    num_nodes: int = 1
    address: str | None = None
    port: int | None = None
    store_is_served: bool = True  # by the launcher; False: rank 0 must serve it
    source: str = "one process"
    attempt: int = 0  # torchrun --max-restarts restarts all workers, with the same store
    is_worker: bool = False  # started by spawn.py, for the command that was typed

    def sentence(self) -> str:
        """Return a line for the start of the log."""
        if self.world_size == 1:
            return "Rendezvous: none needed, one process."
        return (
            f"Rendezvous: {self.source} at {self.address}:{self.port}, rank {self.rank} of {self.world_size}, "
            f"local rank {self.local_rank} of {self.local_world_size}, node {self.node_rank} of {self.num_nodes}."
        )

    def validate(self, names: Sequence[str] = ("RANK", "LOCAL_RANK", "NODE_RANK")) -> list[str]:
        """Check that ranks count node by node, as in torchrun and Lightning. names: of rank, local rank and node rank,
        for messages."""
        local = self.local_world_size
        if not local:
            return []
        rank, local_rank, node_rank = names
        if self.local_rank >= local:
            return [
                f"{local_rank} must be below the processes of one node ({local}), got {self.local_rank}. "
                "Hint: local ranks count from 0 on each node."
            ]
        if self.rank != self.node_rank * local + self.local_rank:
            return [
                f"{rank} must be {node_rank} × {local} (processes per node) + {local_rank} = "
                f"{self.node_rank} × {local} + {self.local_rank} = {self.node_rank * local + self.local_rank}, got "
                f"{self.rank}. Hint: count the ranks node by node, {', '.join(map(str, range(local)))} on node 0."
            ]
        return []


@dataclass(frozen=True)
class LaunchInfo:
    """How this command takes part in the run: as one rank (world_info), or as a node that starts its own workers."""

    source: str = "one process"
    address: Address | None = None  # None: no other command takes part
    world_info: WorldInfo | None = None
    num_nodes: int = 1
    node_rank: int | None = 0  # None: assigned when the nodes meet
    manual: bool = False  # each command was typed by a person, so each prints its own mistakes
    job_id: str | None = None
    run_key: str | None = None  # names the run's folder, the same when the launcher restarts the job

    @property
    def standalone(self) -> bool:
        return self.address is None

    @property
    def host(self) -> str | None:
        """Return the host name or IP address of the rendezvous; None for one machine, or a rendezvous through a
        file."""
        return self.address.host if self.address else None

    @property
    def noun(self) -> str:
        """Return what joins the rendezvous: ranks or nodes."""
        return "node" if self.world_info is None else "rank"

    @property
    def number(self) -> int | None:
        """Return the rank or node rank of this command."""
        return self.node_rank if self.world_info is None else self.world_info.rank

    @property
    def size(self) -> int:
        """Return how many ranks or nodes join the rendezvous."""
        return self.num_nodes if self.world_info is None else self.world_info.world_size
