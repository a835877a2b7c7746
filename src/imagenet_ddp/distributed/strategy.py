"""strategy.* -> Lightning's strategy object. The process group is Lightning's to make; ours is only the store it
meets at."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from lightning.fabric.utilities.distributed import _init_dist_connection
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch.strategies import DDPStrategy, Strategy
from torch.distributed import PrefixStore, Store, broadcast
from torch.nn.parallel import DistributedDataParallel


class StoreDDPStrategy(DDPStrategy):
    """DDPStrategy whose process group meets at a store that is already connected, on the port that is already open."""

    def __init__(self, store: Store, **kwargs: Any):
        super().__init__(**kwargs)
        self._store = store

    def setup_distributed(self) -> None:
        reset_seed()
        self.set_world_ranks()
        self._process_group_backend = self._get_process_group_backend()
        assert self.cluster_environment is not None
        _init_dist_connection(
            self.cluster_environment,
            self._process_group_backend,
            timeout=self._timeout,
            device_id=self.root_device if self.root_device.type != "cpu" else None,
            store=PrefixStore("process_group", self._store),
        )

    def on_validation_start(self) -> None:
        """Once per validation, every rank takes rank 0's batch-norm statistics: those the checkpoint holds."""
        if isinstance(self.model, DistributedDataParallel):
            for buffer in self.model.buffers():
                broadcast(buffer, src=0)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Past DistributedDataParallel, whose forward would broadcast those statistics again for every batch, and so
        tie the ranks together where they need not be."""
        assert self.lightning_module is not None
        with self.precision_plugin.val_step_context():
            return self.lightning_module.validation_step(*args, **kwargs)


def make_strategy(strategy: Mapping[str, Any], world_size: int, store: Store | None) -> Strategy | str:
    """strategy: the resolved strategy.* keys. One process needs no process group: Lightning's plain single device."""
    if world_size == 1:
        return "auto"
    assert store is not None
    return StoreDDPStrategy(
        store,
        process_group_backend=strategy["process_group_backend"],
        timeout=timedelta(seconds=strategy["timeout_s"]),
        find_unused_parameters=strategy["find_unused_parameters"],
        bucket_cap_mb=strategy["bucket_cap_mb"],
        static_graph=strategy["static_graph"],
        gradient_as_bucket_view=strategy["gradient_as_bucket_view"],
    )
