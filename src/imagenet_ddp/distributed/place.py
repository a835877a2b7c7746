"""Say where a process is: its rank, its node, and the address at which the processes of its run meet. Does not import
torch."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from imagenet_ddp.system.idle_cores import Cores

DEFAULT_PORT = 29500  # also torchrun's default


@dataclass(frozen=True)
class Address:
    """Location of the rendezvous store: a port of a host, or a file that contains the address. One of host and file is
    None."""

    host: str | None = None
    port: int = DEFAULT_PORT
    file: str | None = None

    def __str__(self) -> str:
        if self.file is not None:
            return f"file://{self.file}"
        host = f"[{self.host}]" if self.host and ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True)
class Place:
    """Where a process is among the processes of its run: a rank, or the command of a node (is_node), which starts the
    ranks of that node. The numbers of ranks are those of the first of them once the node's number is claimed, and mean
    nothing before.

    node_rank: None until it is claimed, if no number is given. local_world_size: number of ranks per node; 0 until all
    have met, if the launcher does not provide the number.
    """

    rank: int = 0
    local_rank: int = 0
    node_rank: int | None = 0
    world_size: int = 1
    local_world_size: int = 1
    num_nodes: int = 1
    address: Address | None = None  # None if no other process takes part
    store_is_served: bool = False  # whether the launcher serves the store; otherwise rank 0 or node 0 must serve it
    launcher: str = "one process"
    attempt: int = 0  # number of restarts: torchrun --max-restarts restarts all workers with the same store
    is_node: bool = False
    is_typed: bool = False  # whether a person typed each command, so that each command prints its own mistakes
    # whether a name has an address only once its host runs, and another one after a restart (Kubernetes)
    hosts_move: bool = False
    is_worker: bool = False  # whether spawn.py started this process for the command that was typed
    job_id: str | None = None
    secret: bytes | None = field(default=None, repr=False)  # signs the messages between the processes
    run_key: str | None = None  # name for the run folder, which is the same after the launcher restarts the job
    cores: Cores | None = None  # for this machine's processes, if that command has counted them

    @property
    def is_alone(self) -> bool:
        return self.address is None

    @property
    def host(self) -> str | None:
        """Return the host name or IP address of the rendezvous; None for a file, or if no other process takes part."""
        return self.address.host if self.address else None

    @property
    def noun(self) -> str:
        """Return "node" for the command of a node, and "rank" for that of a rank."""
        return "node" if self.is_node else "rank"

    @property
    def number(self) -> int | None:
        """Return the rank, or the node rank of a node's command."""
        return self.node_rank if self.is_node else self.rank

    @property
    def size(self) -> int:
        """Return the number of commands of the run, one per node or one per rank."""
        return self.num_nodes if self.is_node else self.world_size

    @property
    def others_wait(self) -> bool:
        """Return whether other commands wait for this one, so that it must tell them of its own refusal. Otherwise, the
        launcher ends them, or the first process of this node tells them."""
        if self.is_alone or self.size < 2:
            return False
        is_first = self.is_node or self.local_rank == 0
        return self.is_typed or (self.num_nodes > 1 and is_first)

    def names(self, ranks: Sequence[int]) -> list[str]:
        """Return the names of these ranks; of a node all of whose ranks are among them, that of the node."""
        local = self.local_world_size
        if not local or self.num_nodes == 1:
            return list(map(self.label, ranks))
        counts = Counter(rank // local for rank in ranks)
        names = [f"node {rank // local}" if counts[rank // local] == local else self.label(rank) for rank in ranks]
        return list(dict.fromkeys(names))

    def label(self, number: int) -> str:
        """Return the name of a rank, with its node if there are several."""
        local = self.local_world_size
        place = f" (node {number // local}, local rank {number % local})" if local and self.num_nodes > 1 else ""
        return f"rank {number}{place}"

    def ranks_of(self, node: int) -> str:
        """Return the ranks of a node: "rank 1", "ranks 2 to 3"."""
        first, last = node * self.local_world_size, (node + 1) * self.local_world_size - 1
        return f"rank {last}" if first == last else f"ranks {first} to {last}"

    def sentence(self) -> str:
        """Return the log line that describes the rendezvous of a rank."""
        if self.world_size == 1:
            return "Rendezvous: none needed for one process."
        return (
            f"Rendezvous: {self.launcher} at {self.address}, rank {self.rank} of {self.world_size}, "
            f"local rank {self.local_rank} of {self.local_world_size}, node {self.node_rank} of {self.num_nodes}."
        )
