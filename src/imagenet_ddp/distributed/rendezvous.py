"""Who am I, and where do all ranks meet? Read from the environment that a launcher made. No torch here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEFAULT_PORT = 29500  # torchrun's
OWN_RUN_ID = "imagenet_ddp"  # tells workers that launch.py started from torchrun's


@dataclass(frozen=True)
class Place:
    """One process's place among all. address and port are those of the store that rank 0's node keeps; None where
    alone."""

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


def launched_place(environ: Mapping[str, str]) -> Place | None:
    """The place a launcher gave this process (torchrun, torch.distributed.launch, or variables set by hand); None
    without one.

    Expects what check.py has looked at: RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR are there together.
    """
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    rank, world_size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    if world_size == 1:
        return Place(source="a launcher's single process")
    local_rank = int(environ.get("LOCAL_RANK", 0))
    local_world_size = int(environ.get("LOCAL_WORLD_SIZE", world_size if local_rank == rank else 1))
    return Place(
        rank=rank,
        local_rank=local_rank,
        node_rank=int(environ.get("GROUP_RANK", environ.get("NODE_RANK", rank // local_world_size))),
        world_size=world_size,
        local_world_size=local_world_size,
        num_nodes=-(-world_size // local_world_size),
        address=environ.get("MASTER_ADDR", "127.0.0.1"),
        port=int(environ.get("MASTER_PORT", DEFAULT_PORT)),
        store_is_served=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        source=_source(environ),
        attempt=int(environ.get("TORCHELASTIC_RESTART_COUNT", 0)),
    )


def _source(environ: Mapping[str, str]) -> str:
    if environ.get("TORCHELASTIC_RUN_ID") == OWN_RUN_ID:
        return "own workers"
    return "torchrun" if "TORCHELASTIC_RUN_ID" in environ else "environment variables"


@dataclass(frozen=True)
class Meeting:
    """Where the nodes of one command per node meet, and which of them this is."""

    address: str
    port: int
    node_rank: int


def meeting(cluster: Mapping[str, Any], environ: Mapping[str, str]) -> Meeting | None:
    """cluster: the resolved cluster.* keys, which win over MASTER_ADDR, MASTER_PORT and NODE_RANK. None: not all is
    known."""
    address = cluster["address"] or environ.get("MASTER_ADDR")
    node_rank = cluster["node_rank"]
    if node_rank is None:
        node_rank = environ.get("NODE_RANK", environ.get("GROUP_RANK"))
    if not address or node_rank is None:
        return None
    host, _, port = address.removeprefix("tcp://").partition(":")
    return Meeting(host, int(port or environ.get("MASTER_PORT", DEFAULT_PORT)), int(node_rank))
