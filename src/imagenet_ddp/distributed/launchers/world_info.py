"""Where a process stands among all, and how a command takes part. No torch here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from imagenet_ddp.distributed.launchers.address import Address

OWN_RUN_ID = "imagenet_ddp"  # tells workers that spawn.py started from torchrun's


@dataclass(frozen=True)
class WorldInfo:
    """One process's place among all. address and port are those of the store; None where alone. local_world_size 0:
    not told, counted when all have come."""

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
    attempt: int = 0  # torchrun --max-restarts starts all workers again, with the same store

    def sentence(self) -> str:
        """One line for the start of the log."""
        if self.world_size == 1:
            return "Rendezvous: none needed, one process."
        return (
            f"Rendezvous: {self.source} at {self.address}:{self.port}, rank {self.rank} of {self.world_size}, "
            f"local rank {self.local_rank} of {self.local_world_size}, node {self.node_rank} of {self.num_nodes}."
        )

    def misnumbered(self, names: Sequence[str] = ("RANK", "LOCAL_RANK", "NODE_RANK")) -> list[str]:
        """Ranks count node by node, here as in torchrun and Lightning. names: of rank, local rank and node rank where
        they come from."""
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
    """How this command takes part. place: where it is one rank itself. Else it starts the workers of its node."""

    source: str = "one process"
    address: Address | None = None  # None: alone
    world_info: WorldInfo | None = None
    num_nodes: int = 1
    node_rank: int | None = 0  # None: found out when the nodes meet
    manual: bool = False  # somebody typed each command, so each says itself what is wrong
    job_id: str | None = None
    run_key: str | None = None  # names the run's folder, the same when the launcher starts the job again

    @property
    def standalone(self) -> bool:
        return self.address is None


def spawned_world_info(environ: Mapping[str, str]) -> WorldInfo | None:
    """The place of a worker that spawn.py started; None in any other process."""
    if environ.get("TORCHELASTIC_RUN_ID") != OWN_RUN_ID or "IMAGENET_DDP_SOURCE" not in environ:
        return None  # the second, because a torchrun may be given that name too
    number = {name: int(environ[name]) for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "MASTER_PORT")}
    local_world_size = int(environ["LOCAL_WORLD_SIZE"])
    return WorldInfo(
        rank=number["RANK"],
        local_rank=number["LOCAL_RANK"],
        node_rank=number["GROUP_RANK"],
        world_size=number["WORLD_SIZE"],
        local_world_size=local_world_size,
        num_nodes=number["WORLD_SIZE"] // local_world_size,
        address=environ["MASTER_ADDR"],
        port=number["MASTER_PORT"],
        source=environ["IMAGENET_DDP_SOURCE"],
    )
