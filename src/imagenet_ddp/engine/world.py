"""Hold one process's connection to the others of its job."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.distributed import Store

from imagenet_ddp.distributed.launchers.world_info import WorldInfo
from imagenet_ddp.distributed.rendezvous.failure_detector import FailureDetector
from imagenet_ddp.distributed.rendezvous.rank_group import RankGroup


@dataclass(frozen=True)
class World:
    """The connection of this process to the others. All fields but info are None if there is only one process."""

    info: WorldInfo
    store: Store | None = None
    store_client: Callable[[], Store] | None = None  # makes a new connection
    rank_group: RankGroup | None = None
    failure_detector: FailureDetector | None = None
    network_notes: tuple[str, ...] = ()  # which interface was chosen and why, for the log
    gpus: tuple[str, ...] = ()  # the GPU of each rank, for the log; on rank 0 of several
    gpu_models: tuple[str, ...] = ()  # of all ranks; on rank 0 of several

    def compare(self, key: str, facts: Mapping[str, Any], timeout_s: float) -> None:
        """Raise ConfigError on all ranks unless the facts are the same on all. Waits for the slowest rank."""
        if self.rank_group is not None:
            self.rank_group.check_equal(key, facts, timeout_s)

    def leave(self) -> None:
        """Mark this process's exit as normal."""
        if self.failure_detector is not None:
            self.failure_detector.end()
