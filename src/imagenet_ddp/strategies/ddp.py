"""Create Lightning's DDPStrategy from the strategy.* keys, and pass the ranks of this process to Lightning."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from lightning.fabric.plugins.environments import ClusterEnvironment  # pyright: ignore[reportPrivateImportUsage]
from lightning.pytorch.plugins.layer_sync import TorchSyncBatchNorm
from lightning.pytorch.strategies import DDPStrategy, Strategy
from torch import distributed, nn
from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.nn.parallel import DistributedDataParallel

from imagenet_ddp.config.schema.distributed import StrategyConfig
from imagenet_ddp.distributed.place import DEFAULT_PORT, Place
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.strategies import process_group

DDP_DEFAULT_BUCKET_CAP_MB = 25.0  # torch.nn.parallel.distributed._DEFAULT_BUCKET_CAP_MB
COMM_HOOKS: dict[str, Callable[..., Any]] = {
    "fp16": fp16_compress_hook,
    "bf16": bf16_compress_hook,
}  # by strategy.comm_hook
KNOWN = frozenset(inspect.signature(DistributedDataParallel).parameters)


class DetectedEnvironment(ClusterEnvironment):
    """Adapt Place to Lightning's interface, so that Lightning neither starts processes nor guesses ranks."""

    def __init__(self, place: Place):
        super().__init__()
        self._place = place

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return self._place.host or "127.0.0.1"

    @property
    def main_port(self) -> int:
        return self._place.address.port if self._place.address else DEFAULT_PORT

    @staticmethod
    def detect() -> bool:
        return False  # Lightning must never choose this environment by itself

    def world_size(self) -> int:
        return self._place.world_size

    def set_world_size(self, size: int) -> None:
        assert size == self._place.world_size  # else the sampler would silently use only part of the data

    def global_rank(self) -> int:
        return self._place.rank

    def set_global_rank(self, rank: int) -> None:
        assert rank == self._place.rank

    def local_rank(self) -> int:
        return self._place.local_rank

    def node_rank(self) -> int:
        return self._place.node_rank or 0


class StoreDDPStrategy(DDPStrategy):
    """DDPStrategy with a process group on a store that is already connected.

    devices: see make_strategy.
    """

    def __init__(self, store: Store, options: StrategyConfig, devices: list[torch.device] | None = None):
        super().__init__(process_group_backend=options.process_group_backend, parallel_devices=devices)  # pyright: ignore[reportUnknownMemberType]
        self._store, self._options = store, options

    def setup_distributed(self) -> None:
        """Create the process group. Lightning keeps a process group that exists already."""
        if not distributed.is_initialized():
            store = PrefixStore("process_group", self._store)
            assert self.cluster_environment is not None
            rank, world_size = self.cluster_environment.global_rank(), self.cluster_environment.world_size()
            backend = self.process_group_backend
            process_group.init_process_group(
                rank, world_size, store, self.root_device, backend, self._options.timeout_s
            )
        super().setup_distributed()

    def configure_ddp(self) -> None:
        """Wrap the model in DistributedDataParallel, and register the communication hook on every kind of device.

        Lightning silently skips the hook without CUDA.
        """
        assert self.model is not None
        self._ddp_kwargs = ddp_arguments(self._options, self.model)
        super().configure_ddp()
        assert isinstance(self.model, DistributedDataParallel)
        if (hook := self._options.comm_hook) is not None:
            self.model.register_comm_hook(None, COMM_HOOKS[hook])  # pyright: ignore[reportUnknownMemberType]
        if self._options.init_sync and self._ddp_kwargs.get("broadcast_buffers") is False:
            _send_buffers(self.model)  # in this case, DistributedDataParallel does not broadcast the buffers

    def _setup_model(self, model: nn.Module) -> DistributedDataParallel:
        """Wrap on the current stream, on which all steps run. Lightning 2.6 uses another one, and since torch 2.10 the
        first backward pass warns that gradients are accumulated on the wrong stream."""
        return DistributedDataParallel(model, self.determine_ddp_device_ids(), **self._ddp_kwargs)

    def on_validation_start(self) -> None:
        """Broadcast rank 0's batch-norm statistics once per validation, because checkpoints contain those of rank 0."""
        if isinstance(self.model, DistributedDataParallel):
            _send_buffers(self.model)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module without DistributedDataParallel.

        Its forward would broadcast the batch-norm statistics for every batch and make the ranks wait for each other.
        """
        assert self.lightning_module is not None
        with self.precision_plugin.val_step_context():
            return self.lightning_module.validation_step(*args, **kwargs)


def _send_buffers(model: nn.Module) -> None:
    for buffer in model.buffers():
        distributed.broadcast(buffer, src=0)


def make_strategy(
    strategy: StrategyConfig,
    world_size: int,
    store: Store | None,
    kind: str,
    devices: list[torch.device] | None = None,
) -> Strategy | str:
    """Return the strategy, or "auto" (Lightning's strategy for a single device) for a single process.

    kind: cpu, cuda or mps. devices: device of each local rank, as this process
    numbers it; None means that Lightning chooses them. Raises ConfigError if this kind of device does not
    support the strategy.* keys.
    """
    if world_size == 1:
        return "auto"
    assert store is not None
    if errors := process_group.validate(strategy, kind):
        raise ConfigError(errors)
    if kind == "cpu" and world_size > 2 and not strategy.comm_hook:
        # Otherwise, DistributedDataParallel rebuilds its buckets after the first step of a process. With three or more
        # ranks, Gloo adds in an order that depends on the position in a bucket, so a resumed run would differ in the
        # last bit.
        strategy = replace(strategy, find_unused_parameters=True)
    return StoreDDPStrategy(store, strategy, devices)


class SyncBatchNorm(TorchSyncBatchNorm):
    """Convert timm's layers, too (trainer.sync_batchnorm). torch's conversion would drop their activations."""

    def apply(self, model: nn.Module) -> nn.Module:
        layers = (module for module in model.modules() if isinstance(module, _BatchNorm))
        if any(type(layer).__module__.startswith("timm.") for layer in layers):
            from timm.layers import convert_sync_batchnorm  # pyright: ignore[reportPrivateImportUsage, reportUnknownVariableType]

            return convert_sync_batchnorm(model)  # pyright: ignore[reportUnknownVariableType]
        return super().apply(model)


def training_reads_buffers(model: nn.Module) -> bool:
    """Return whether the model has buffers that a training step may change and a later step reads.

    Batch norm's running statistics do not count, because training only writes them. Buffers that are not part of a
    checkpoint count as constants.
    """
    norms = (module for module in model.modules() if isinstance(module, _BatchNorm))
    only_written = {id(buffer) for module in norms for buffer in module.buffers(recurse=False)}
    stored = {id(value) for value in model.state_dict(keep_vars=True).values()}
    return any(id(buffer) in stored - only_written for buffer in model.buffers())


def ddp_arguments(strategy: StrategyConfig, model: nn.Module) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "static_graph": strategy.static_graph,
        "gradient_as_bucket_view": strategy.gradient_as_bucket_view,
        "init_sync": strategy.init_sync,
    }
    # a static graph finds unused parameters by itself, and torch warns if both options are set
    arguments["find_unused_parameters"] = strategy.find_unused_parameters and not strategy.static_graph
    if strategy.bucket_cap_mb != DDP_DEFAULT_BUCKET_CAP_MB:
        # torch's default is more than this number, because it also creates a first bucket of 1 MiB, which is sent early
        arguments["bucket_cap_mb"] = strategy.bucket_cap_mb
    sync_buffers = strategy.forward_sync_buffers
    if not (training_reads_buffers(model) if sync_buffers == "auto" else sync_buffers):
        # torch 2.13 renamed broadcast_buffers to forward_sync_buffers, and deprecated the old name
        name = "forward_sync_buffers" if "forward_sync_buffers" in KNOWN else "broadcast_buffers"
        arguments[name] = False
    return arguments
