"""strategy.* -> Lightning's DDPStrategy. The process group is Lightning's to make; ours is only the store it meets
at."""

import inspect
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any

import torch
from lightning.fabric.utilities.distributed import _init_dist_connection
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch.strategies import DDPStrategy, Strategy
from torch import distributed
from torch.distributed import GradBucket, PrefixStore, Store
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from imagenet_ddp.distributed.strategies.backends import mistake
from imagenet_ddp.errors import ConfigError

DDP_DEFAULT_BUCKET_CAP_MB = 25.0  # torch.nn.parallel.distributed._DEFAULT_BUCKET_CAP_MB
KNOWN = frozenset(inspect.signature(DistributedDataParallel).parameters)


class StoreDDPStrategy(DDPStrategy):
    """DDPStrategy whose process group meets at a store that is already connected, on the port that is already open."""

    def __init__(self, store: Store, **kwargs: Any):
        super().__init__(**kwargs)
        self._store = store

    def setup_distributed(self) -> None:
        reset_seed()
        self.set_world_ranks()
        self._process_group_backend = self._get_process_group_backend()
        if self._process_group_backend == "mpi":
            self._join_mpi()
            return
        assert self.cluster_environment is not None
        _init_dist_connection(
            self.cluster_environment,
            self._process_group_backend,
            timeout=self._timeout,
            device_id=self.root_device if self.root_device.type != "cpu" else None,
            store=PrefixStore("process_group", self._store),
        )

    def _join_mpi(self) -> None:
        """MPI's runtime gives the ranks, and they meet there: torch takes neither number nor store."""
        if not distributed.is_initialized():
            distributed.init_process_group("mpi", timeout=self._timeout)
        given = (distributed.get_rank(), distributed.get_world_size())
        if given != (self.global_rank, self.world_size):
            raise ConfigError(
                f"strategy.process_group_backend=mpi expects mpirun to have started this process as rank "
                f"{self.global_rank} of {self.world_size}, but MPI says rank {given[0]} of {given[1]}. "
                f"Hint: start all with `mpirun -n {self.world_size}`, or strategy.process_group_backend=null."
            )

    def _setup_model(self, model: torch.nn.Module) -> DistributedDataParallel:
        wrapped = super()._setup_model(model)
        if self._ddp_kwargs.get("broadcast_buffers") is False and self._ddp_kwargs.get("init_sync", True):
            _send_buffers(wrapped)  # which broadcast_buffers=False leaves out; forward_sync_buffers=False does not
        return wrapped

    def _register_ddp_hooks(self) -> None:
        """On every device: Lightning's own leaves the hook out, in silence, where there is no CUDA."""
        if self._ddp_comm_hook is not None:
            assert isinstance(self.model, DistributedDataParallel)
            self.model.register_comm_hook(self._ddp_comm_state, self._ddp_comm_hook)

    def on_validation_start(self) -> None:
        """Once per validation, every rank takes rank 0's batch-norm statistics: those the checkpoint holds."""
        if isinstance(self.model, DistributedDataParallel):
            _send_buffers(self.model)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Past DistributedDataParallel, whose forward would broadcast those statistics again for every batch, and so
        tie the ranks together where they need not be."""
        assert self.lightning_module is not None
        with self.precision_plugin.val_step_context():
            return self.lightning_module.validation_step(*args, **kwargs)


def _send_buffers(model: torch.nn.Module) -> None:
    for buffer in model.buffers():
        distributed.broadcast(buffer, src=0)


def make_strategy(
    strategy: Mapping[str, Any], world_size: int, store: Store | None, *, kind: str | None = None
) -> Strategy | str:
    """strategy: the resolved strategy.* keys. kind: cpu, cuda or mps, where it is known; what does not go with it is
    then a ConfigError. One process needs no process group: Lightning's plain single device."""
    if world_size == 1:
        return "auto"
    assert store is not None
    backend = strategy["process_group_backend"]
    if kind is not None and (wrong := mistake(strategy, kind)):
        raise ConfigError(wrong)
    state, hook = comm_hook(strategy)
    return StoreDDPStrategy(
        store,
        process_group_backend=backend,
        timeout=timedelta(seconds=strategy["timeout_s"]),
        ddp_comm_state=state,
        ddp_comm_hook=hook,
        **ddp_arguments(strategy),
    )


def ddp_arguments(strategy: Mapping[str, Any], known: Collection[str] = KNOWN) -> dict[str, Any]:
    """strategy.* in the words of the DistributedDataParallel whose parameters are `known`."""
    arguments = {name: strategy[name] for name in ("static_graph", "gradient_as_bucket_view", "init_sync")}
    # a static graph finds them by itself, and torch warns of both
    arguments["find_unused_parameters"] = strategy["find_unused_parameters"] and not strategy["static_graph"]
    if strategy["bucket_cap_mb"] != DDP_DEFAULT_BUCKET_CAP_MB:
        # left out, the default is more than its number: a first bucket of 1 MiB, which starts to travel early
        arguments["bucket_cap_mb"] = strategy["bucket_cap_mb"]
    if not strategy["forward_sync_buffers"]:
        # torch 2.13 renamed it, and warns of the old name
        name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        arguments[name] = False
    return arguments


def comm_hook(strategy: Mapping[str, Any]) -> tuple[object, Callable | None]:
    """(state, hook) for register_comm_hook, by strategy.comm_hook."""
    match strategy["comm_hook"]:
        case "fp16":
            return None, fp16_compress_hook
        case "bf16":
            return None, bf16_compress_hook
        case "powersgd":
            rank, start = strategy["powersgd_rank"], strategy["powersgd_start_step"]
            # the last: a gradient of zeros, or of lower rank, is divided by the norm of a zero column without it
            state = PowerSGDState(
                None,
                matrix_approximation_rank=rank,
                start_powerSGD_iter=start,
                orthogonalization_epsilon=1e-8,  # type: ignore[arg-type]
            )
            return state, powersgd_in_order
    return None, None


def powersgd_in_order(state: PowerSGDState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """powerSGD_hook, but each bucket waits for the one before.

    Each bucket takes three all-reduces, each begun when the one before has ended. NCCL begins them in program order;
    with Gloo its threads do, in an order that differs between ranks, and two buckets at a time end the process with
    "Received data size doesn't match expected size".
    """
    compresses = state.iter >= state.start_powerSGD_iter
    future = powerSGD_hook(state, bucket)
    if compresses and distributed.get_backend() != "nccl":
        future.wait()
    return future


def notes(strategy: Mapping[str, Any], world_size: int, kind: str) -> list[str]:
    """Lines for the start of the log: what is unusual and costs or gains something."""
    hook = strategy["comm_hook"]
    if world_size == 1:
        return [f"strategy.comm_hook={hook} has no effect: one process sends no gradients."] if hook else []
    lines = []
    if hook == "powersgd":
        lines.append(
            f"Gradients: whole for {strategy['powersgd_start_step']} steps, then PowerSGD of rank "
            f"{strategy['powersgd_rank']} (strategy.comm_hook=powersgd); its memory is not in checkpoints, so that a "
            "resumed run starts with whole gradients again."
        )
    elif hook:
        lines.append(f"Gradients travel as {hook}, half of fp32's bytes (strategy.comm_hook={hook}).")
    if strategy["process_group_backend"] == "gloo" and kind == "cuda":
        lines.append("Process group: gloo takes the gradients of GPUs through the CPUs; nccl is faster.")
    return lines
