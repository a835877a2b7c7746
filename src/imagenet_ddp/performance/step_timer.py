"""What a step computes and what an all-reduce costs, measured: the inputs of `scaling_model.py`.

All ranks of a job call each function together, so that they share cores, memory and cables as they do in training.
"""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from imagenet_ddp.distributed.launchers.world_info import WorldInfo
from imagenet_ddp.distributed.strategies import ddp

MIB = 2**20
FIRST_BUCKET_BYTES = dist._DEFAULT_FIRST_BUCKET_BYTES  # DistributedDataParallel's, so that the ring starts early
POWERSGD_START = 2  # the first step at which torch's hook may compress


@contextlib.contextmanager
def process_group(
    world_info: WorldInfo, store: dist.Store, device: torch.device, backend: str | None, timeout_s: float
) -> Iterator[None]:
    """The default process group, for as long as the context lasts. backend None: nccl on GPUs, gloo on CPUs. store: a
    connection of its own, and keys that no other group uses."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend or ("nccl" if device.type == "cuda" else "gloo"),
        store=dist.PrefixStore("doctor", store),
        rank=world_info.rank,
        world_size=world_info.world_size,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if device.type == "cuda" else None,
    )
    try:
        yield
        dist.barrier()  # nobody leaves while another still talks to it
    finally:
        dist.destroy_process_group()


# ---- computing -----------------------------------------------------------------------------------------------------


TURN, ROW = 3, 10  # steps with gradients that travel, and without


@dataclass(frozen=True)
class StepTimes:
    """Medians, in seconds: of the slowest rank with gradients that travel, else the mean over the ranks."""

    forward_s: float
    backward_s: float
    optimizer_s: float
    num_steps: int

    @property
    def compute_s(self) -> float:
        return self.forward_s + self.backward_s + self.optimizer_s


@dataclass
class Training:
    """What is needed for steps of training on made-up images.

    images: uint8 (B, 3, H, W) and target: int64 (B,), on the device. prepare: images -> what the net takes. autocast:
    the type of a mixed precision, None without.
    """

    net: nn.Module
    optimizer: torch.optim.Optimizer
    images: Tensor
    target: Tensor
    prepare: Callable[[Tensor], Tensor]
    autocast: torch.dtype | None = None

    def forward(self, net: nn.Module) -> Tensor:
        device = self.images.device.type
        with torch.autocast(device, self.autocast, enabled=self.autocast is not None):
            logits = net(self.prepare(self.images))
        return F.cross_entropy(logits.float(), self.target)

    def optimise(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


def steps(
    training: Training, ways: Sequence[tuple[nn.Module, bool]], *, budget_s: float, warm_up: int = 1, most: int = 30
) -> list[StepTimes]:
    """Steps in each of several ways, in turns of a few, so that what else the machine does weighs on all alike; as many
    as the time allows, the same number on every rank, begun together. A turn's first step does not count: after half a
    second of waiting for gradients a core was seen to take 16 % longer for a step than in a row of them.

    ways: (training's own net or its wrapper, whether gradients travel). Raises torch.OutOfMemoryError, like training.
    """
    device = training.images.device
    clock = _Clock(device)

    def one(net: nn.Module, travels: bool) -> list[float]:
        with net.no_sync() if isinstance(net, DistributedDataParallel) and not travels else contextlib.nullcontext():
            clock.lap()
            loss = training.forward(net)
            clock.lap()
            loss.backward()
            clock.lap()
        training.optimise()
        clock.lap()
        return clock.laps()

    seconds = [0.0 for _ in ways]
    for _ in range(warm_up):
        for position, way in enumerate(ways):
            begin = time.perf_counter()
            one(*way)
            seconds[position] = time.perf_counter() - begin
    seconds = _slowest(torch.tensor(seconds), device).tolist()
    rows = [
        TURN if travels else max(TURN, min(ROW, int(budget_s / 2 / max(each, 1e-6))))
        for each, (_, travels) in zip(seconds, ways, strict=True)
    ]
    turn_s = sum(each * row for each, row in zip(seconds, rows, strict=True))
    turns = agreed_count(turn_s, device, budget_s, 1, max(1, most // (min(rows) - 1)))
    laps: list[list[list[float]]] = [[] for _ in ways]
    for _ in range(turns):
        for way, row, of_way in zip(ways, rows, laps, strict=True):
            if dist.is_initialized():
                dist.barrier()
            of_way += [one(*way) for _ in range(row)][1:]
    found = []
    for (_, travels), of_way in zip(ways, laps, strict=True):
        medians = torch.tensor([statistics.median(parts) for parts in zip(*of_way, strict=True)])
        across = _slowest if travels else _mean  # gradients that travel make all as slow as the slowest
        found.append(StepTimes(*across(medians, device).tolist(), num_steps=len(of_way)))
    return found


def agreed_count(seconds: float, device: torch.device, budget_s: float, least: int, most: int) -> int:
    """How often something that takes so long fits into the time, by the slowest rank."""
    slowest = float(_slowest(torch.tensor([seconds]), device)[0])
    return max(least, min(most, int(budget_s / max(slowest, 1e-6))))


def _slowest(seconds: Tensor, device: torch.device) -> Tensor:
    """Of all ranks: it paces them, and all must decide by the same numbers."""
    if not dist.is_initialized():
        return seconds
    seconds = seconds.to(device, torch.float32)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds.cpu()


def _mean(seconds: Tensor, device: torch.device) -> Tensor:
    """Over all ranks."""
    if not dist.is_initialized():
        return seconds
    seconds = seconds.to(device)
    dist.all_reduce(seconds)
    return seconds.cpu() / dist.get_world_size()


class _Clock:
    """Seconds between laps. On a GPU by its own events, read when the step is over: nothing waits in between."""

    def __init__(self, device: torch.device):
        self._device = device
        self._marks: list[float | torch.cuda.Event] = []

    def lap(self) -> None:
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            if self._device.type == "mps":
                torch.mps.synchronize()
            self._marks.append(time.perf_counter())

    def laps(self) -> list[float]:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        found = []
        for before, after in zip(self._marks, self._marks[1:], strict=False):
            if isinstance(before, torch.cuda.Event):
                found.append(before.elapsed_time(after) / 1e3)  # type: ignore[arg-type]
            else:
                found.append(after - before)  # type: ignore[operator]
        self._marks = []
        return found


# ---- communicating -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AllReduce:
    """seconds: of all buckets, one after the other as in training, without any computing beside it."""

    seconds: float
    num_bytes: int
    small_s: float  # of a single number: latency alone
    num_ranks: int
    measured_bytes: int  # less than num_bytes: the link is so slow that the rest was reckoned

    @property
    def bus_bytes_per_s(self) -> float:
        return 2 * (self.num_ranks - 1) / self.num_ranks * self.num_bytes / self.seconds


def wrapped(net: nn.Module, device: torch.device, strategy: Mapping[str, Any]) -> DistributedDataParallel:
    """The net as training wraps it. strategy: the resolved strategy.* keys; PowerSGD starts at once."""
    wrapper = DistributedDataParallel(
        net, device_ids=[device] if device.type == "cuda" else None, **ddp.ddp_arguments(strategy)
    )
    state, hook = ddp.comm_hook({**strategy, "powersgd_start_step": POWERSGD_START})
    if hook is not None:
        wrapper.register_comm_hook(state, hook)
    return wrapper


def bucket_bytes(net: nn.Module, strategy: Mapping[str, Any]) -> list[int]:
    """Sizes of DistributedDataParallel's buckets, in the order in which they are filled: last layers first."""
    cap = int(strategy["bucket_cap_mb"] * MIB)
    caps = [FIRST_BUCKET_BYTES, cap] if strategy["bucket_cap_mb"] == ddp.DDP_DEFAULT_BUCKET_CAP_MB else [cap]
    gradients: list[Tensor] = [each for each in reversed(list(net.parameters())) if each.requires_grad]
    groups, _ = dist._compute_bucket_assignment_by_size(gradients, caps)
    return [sum(gradients[i].numel() * gradients[i].element_size() for i in group) for group in groups]


def all_reduce(
    sizes: Sequence[int], device: torch.device, *, budget_s: float, group: dist.ProcessGroup | None = None
) -> AllReduce:
    """sizes: bytes of each bucket. Where the whole would take longer than the time given, a part of it is measured."""
    small_s = _time_of([4], device, group, 0.5, least=10, most=200)
    whole, probe = sum(sizes), min(MIB, sum(sizes))
    probe_s = _time_of([probe], device, group, 0.5, least=2, most=10)
    expected_s = max(probe_s - small_s, 1e-6) * whole / probe
    measured = list(sizes) if expected_s <= budget_s else [max(MIB, int(whole * budget_s / expected_s))]
    part_s = _time_of(measured, device, group, budget_s, least=1, most=20)
    seconds = small_s + max(part_s - small_s, 1e-6) * whole / sum(measured)
    return AllReduce(seconds, whole, small_s, dist.get_world_size(group), sum(measured))


def _time_of(
    sizes: Sequence[int], device: torch.device, group: dist.ProcessGroup | None, budget_s: float, least: int, most: int
) -> float:
    """Median of several runs, all buckets handed over at once, as DistributedDataParallel does. The same on all ranks,
    which go by it."""
    buffers = [torch.zeros(max(1, size // 4), device=device) for size in sizes]

    def one() -> float:
        _synchronize(device)
        begin = time.perf_counter()
        for work in [dist.all_reduce(buffer, group=group, async_op=True) for buffer in buffers]:
            assert work is not None
            work.wait()
        _synchronize(device)
        return time.perf_counter() - begin

    first = float(_slowest(torch.tensor([one()]), device)[0])
    if first > budget_s / 2:  # of smaller buffers there have been others, so that this one warmed nothing up
        return first
    number = agreed_count(first, device, budget_s, least, most)
    seconds = statistics.median([one() for _ in range(number)])
    return float(_slowest(torch.tensor([seconds]), device)[0])


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def node_group(world_info: WorldInfo) -> dist.ProcessGroup | None:
    """The ranks of this node among themselves; None where each node has one. Every rank calls it."""
    size = world_info.local_world_size
    if size == 1 or size == world_info.world_size:
        return None
    groups = [dist.new_group(list(range(first, first + size))) for first in range(0, world_info.world_size, size)]
    return groups[world_info.rank // size]  # type: ignore[return-value]
