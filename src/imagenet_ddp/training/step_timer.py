# pyright: standard, reportPrivateImportUsage=false
# The calls of torch.distributed and of autograd that are timed here have no types.
"""Time training steps and all-reduces.

All ranks of a job must call each function at the same time, so that they share cores, memory and network as they do in
training.
"""

import contextlib
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from imagenet_ddp.config.schema.distributed import StrategyConfig
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.strategies import ddp
from imagenet_ddp.strategies.process_group import destroy_process_group, init_process_group
from imagenet_ddp.training.trial_step import Training

# A core that had waited half a second for gradients took 16 % longer for the next step than in consecutive steps.
STEPS_PER_TURN = 4  # the first step does not count
MAX_TURNS = 10


@contextlib.contextmanager
def process_group(
    place: Place, store: dist.Store, device: torch.device, backend: str | None, timeout_s: float
) -> Iterator[None]:
    """Make the default process group for the duration of the block. store: a connection to the rendezvous store.
    backend: None means nccl on GPUs and gloo on CPUs."""
    init_process_group(place.rank, place.world_size, dist.PrefixStore("doctor", store), device, backend, timeout_s)
    try:
        yield
        dist.barrier()  # no rank leaves while another rank still communicates with it
    finally:
        destroy_process_group()


# ---- steps ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MeasuredStep:
    """Median times of a step in seconds: those of the slowest rank if gradients are sent, else the mean over the
    ranks."""

    forward_s: float
    backward_s: float
    optimizer_s: float
    num_steps: int

    @property
    def compute_s(self) -> float:
        return self.forward_s + self.backward_s + self.optimizer_s


def time_steps(
    training: Training, variants: Sequence[tuple[nn.Module, bool]], *, budget_s: float, warm_up: int = 1
) -> list[MeasuredStep]:
    """Time steps of several variants in turns, so that other work on the machine affects all variants equally.

    variants: (the net of `training` or its wrapper, whether gradients are sent) for each variant. budget_s: seconds for
    all variants together. The number of steps is the same on every rank. Raises torch.OutOfMemoryError if a step does
    not fit into memory.
    """
    device = training.images.device

    def step(net: nn.Module, sends: bool) -> list[float]:
        marks = [_now(device)]
        with net.no_sync() if isinstance(net, DistributedDataParallel) and not sends else contextlib.nullcontext():
            loss = training.forward(net)
            marks.append(_now(device))
            training.backward(loss)
            marks.append(_now(device))
        training.optimizer.step()
        marks.append(_now(device))
        return [after - before for before, after in pairwise(marks)]

    round_s = 0.0
    for _ in range(warm_up):
        begin = time.perf_counter()
        for variant in variants:
            step(*variant)
        round_s = time.perf_counter() - begin
    num_turns = _agreed_count(STEPS_PER_TURN * round_s, device, budget_s, MAX_TURNS)
    laps: list[list[list[float]]] = [[] for _ in variants]
    for _ in range(num_turns):
        for variant, own in zip(variants, laps, strict=True):
            if dist.is_initialized():
                dist.barrier()
            own += [step(*variant) for _ in range(STEPS_PER_TURN)][1:]
    times = []
    for (_, sends), own in zip(variants, laps, strict=True):
        medians = [statistics.median(parts) for parts in zip(*own, strict=True)]
        operation = dist.ReduceOp.MAX if sends else dist.ReduceOp.AVG  # when sending, all ranks wait for the slowest
        times.append(MeasuredStep(*_across_ranks(medians, device, operation), num_steps=len(own)))
    return times


def _agreed_count(seconds: float, device: torch.device, budget_s: float, most: int) -> int:
    """Return how many repetitions of this duration fit into the budget on the slowest rank, from 1 to `most`."""
    (slowest,) = _across_ranks([seconds], device, dist.ReduceOp.MAX)
    return max(1, min(most, int(budget_s / max(slowest, 1e-6))))


def _across_ranks(seconds: list[float], device: torch.device, operation: dist.ReduceOp.RedOpType) -> list[float]:
    """Reduce each value over all ranks, so that all base their decisions on the same numbers."""
    if not dist.is_initialized():
        return seconds
    values = torch.tensor(seconds, device=device)
    mean = operation == dist.ReduceOp.AVG  # Gloo has no AVG
    dist.all_reduce(values, dist.ReduceOp.SUM if mean else operation)
    return (values / dist.get_world_size() if mean else values).tolist()


def _now(device: torch.device) -> float:
    synchronize(device)
    return time.perf_counter()


# ---- communication -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AllReduce:
    """The time of an all-reduce without concurrent computation."""

    seconds: float
    num_bytes: int
    num_ranks: int
    measured_bytes: int  # less than num_bytes if the link is so slow that the time was extrapolated

    @property
    def bus_bytes_per_s(self) -> float:
        """Return the bytes per second over one link of the ring in one direction."""
        return 2 * (self.num_ranks - 1) / self.num_ranks * self.num_bytes / self.seconds


def wrap(net: nn.Module, device: torch.device, strategy: StrategyConfig) -> DistributedDataParallel:
    """Wrap the net in DistributedDataParallel as training does."""
    wrapper = DistributedDataParallel(
        net, device_ids=[device] if device.type == "cuda" else None, **ddp.ddp_arguments(strategy, net)
    )
    if hook := strategy.comm_hook:
        wrapper.register_comm_hook(None, ddp.COMM_HOOKS[hook])
    return wrapper


def time_all_reduce(num_bytes: int, device: torch.device, *, budget_s: float) -> AllReduce:
    """Time an all-reduce of this many bytes, or of part of them if the whole would exceed the budget."""
    probe = min(2**20, num_bytes)
    probe_s = _median_s(probe, device, budget_s / 4, most=5)
    expected_s = probe_s * num_bytes / probe
    measured = num_bytes if expected_s <= budget_s else max(probe, int(num_bytes * budget_s / expected_s))
    seconds = _median_s(measured, device, budget_s, most=20) * num_bytes / measured
    return AllReduce(seconds, num_bytes, dist.get_world_size(), measured)


def _median_s(num_bytes: int, device: torch.device, budget_s: float, most: int) -> float:
    """Return the median time of several all-reduces on the slowest rank. All ranks get the same value."""
    buffer = torch.zeros(max(1, num_bytes // 4), device=device)

    def run() -> float:
        begin = _now(device)
        dist.all_reduce(buffer)
        return _now(device) - begin

    count = _agreed_count(run(), device, budget_s, most)  # the first call opens the connections
    seconds = [run() for _ in range(count)]
    return _across_ranks([statistics.median(seconds)], device, dist.ReduceOp.MAX)[0]


def device_name(device: torch.device) -> str:
    """Return the model of a GPU, or the kind of another device, such as cpu."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def synchronize(device: torch.device) -> None:
    """Wait for all work that is queued on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
