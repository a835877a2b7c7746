"""Pass the ranks of this process to Lightning, so that Lightning neither starts processes nor guesses ranks."""

from lightning.fabric.plugins.environments import ClusterEnvironment

from imagenet_ddp.distributed.launchers.address import DEFAULT_PORT
from imagenet_ddp.distributed.launchers.world_info import WorldInfo


class DetectedEnvironment(ClusterEnvironment):
    """Adapt WorldInfo to Lightning's ClusterEnvironment interface."""

    def __init__(self, world_info: WorldInfo):
        super().__init__()
        self._world_info = world_info

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return self._world_info.address or "127.0.0.1"

    @property
    def main_port(self) -> int:
        return self._world_info.port or DEFAULT_PORT

    @staticmethod
    def detect() -> bool:
        return False  # Lightning must never choose this environment by itself

    def world_size(self) -> int:
        return self._world_info.world_size

    def set_world_size(self, size: int) -> None:
        self._must_agree("world size", size, self._world_info.world_size)

    def global_rank(self) -> int:
        return self._world_info.rank

    def set_global_rank(self, rank: int) -> None:
        self._must_agree("rank", rank, self._world_info.rank)

    def local_rank(self) -> int:
        return self._world_info.local_rank

    def node_rank(self) -> int:
        return self._world_info.node_rank

    @staticmethod
    def _must_agree(what: str, lightning: int, world_info: int) -> None:
        # a sampler whose world size differs from that of the process group would silently use only part of the data
        if lightning != world_info:
            raise RuntimeError(f"Lightning expects the {what} {lightning}, but the launcher assigned {world_info}")
