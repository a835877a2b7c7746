"""How fast n ranks are together, foretold from what one rank computes and what the link carries. No torch here.

A ring all-reduce of S bytes over n ranks sends 2(n-1)/n × S over each link of the ring, in 2(n-1) messages (Patarasuk
and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002). DistributedDataParallel starts it bucket by bucket while the backward
pass still runs, and a bucket is whole only when its last gradient is: so a tenth of the backward pass hides nothing,
and the last bucket, whose gradients come last, is never hidden (Li et al. 2020, arXiv:2006.15704).

    T          = 2(n-1)/n × S/B + 2(n-1) × latency
    exposed    = max(T - 0.9 × T_backward, T of the last bucket)
    efficiency = T_compute / (T_compute + exposed)

Seconds and bytes throughout. B is the bus bandwidth: what one link of the ring carries in one direction, whatever n
is. Ranks of a node stand beside each other in the ring, which so crosses each node's link once in each direction:
with several ranks per node, B is still that of the link, and n the number of ranks.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from imagenet_ddp.system.text import percent

WANTED = 0.9  # efficiency from where on there is nothing to advise
OVERLAP = 0.9  # share of the backward pass in which gradients can travel
COMPRESSED = {"fp16": 0.5, "bf16": 0.5}  # comm_hook -> bytes of a 32-bit gradient as it travels, as a share
# Of an Ethernet link's rate, once headers, acknowledgements and the ring's waiting are taken off; and the time of one
# message. With these two, gradients of 46.8 MB, a backward pass of 0.65 of the step and a last bucket of 1 MiB, the
# formula gives, at 8 ranks and 256 images per step, for 32-bit / 16-bit gradients: at 5,000 images/s 7/13 % over
# 1 Gbit/s, 52/86 % over 10, 98/99 % over 25; at 20,000 images/s 16/29 % over 10 and 97 % over 100.
GOODPUT = 0.86
LATENCY_S = 20e-6


@dataclass(frozen=True)
class Link:
    """What the ring's slowest link carries."""

    bandwidth: float  # bytes per second in one direction: the bus bandwidth
    latency_s: float = LATENCY_S  # of one message

    @classmethod
    def ethernet(cls, gbit_per_s: float) -> "Link":
        """What to expect of a link of this rate, before anything is measured."""
        return cls(GOODPUT * gbit_per_s * 1e9 / 8)

    @property
    def gbit_per_s(self) -> float:
        return self.bandwidth * 8 / 1e9


@dataclass(frozen=True)
class Step:
    """One optimiser step of one rank, without communication."""

    compute_s: float  # all of it: forward and backward passes of every accumulated batch, optimiser
    backward_s: float  # the backward pass that communicates: the last one
    gradient_bytes: float  # of all gradients, as they travel
    last_bucket_bytes: float  # of the bucket that is whole last

    def compressed(self, share: float) -> "Step":
        """The same step when gradients travel at this share of their size."""
        return Step(self.compute_s, self.backward_s, self.gradient_bytes * share, self.last_bucket_bytes * share)

    def accumulated(self, times: int) -> "Step":
        """So many batches of this one before each communication. The optimiser's share is counted as often."""
        return Step(self.compute_s * times, self.backward_s, self.gradient_bytes, self.last_bucket_bytes)


def all_reduce_s(num_bytes: float, num_ranks: int, link: Link) -> float:
    hops = 2 * (num_ranks - 1)
    return hops / num_ranks * num_bytes / link.bandwidth + hops * link.latency_s


def exposed_s(step: Step, num_ranks: int, link: Link) -> float:
    """What a step waits for gradients, beyond what the backward pass hides."""
    if num_ranks == 1:
        return 0.0
    whole = all_reduce_s(step.gradient_bytes, num_ranks, link)
    return max(whole - OVERLAP * step.backward_s, all_reduce_s(step.last_bucket_bytes, num_ranks, link))


def efficiency(step: Step, num_ranks: int, link: Link) -> float:
    """Images per second of all ranks over num_ranks times those of one that waits for nobody; 0 to 1."""
    return step.compute_s / (step.compute_s + exposed_s(step, num_ranks, link))


def measured_link(num_bytes: float, seconds: float, num_ranks: int, latency_s: float) -> Link:
    """The link with which `all_reduce_s` gives what was measured: seconds for an all-reduce of num_bytes. latency_s:
    of one message, as measured by `latency`."""
    hops = 2 * (num_ranks - 1)
    # a latency above the measurement is noise: the bandwidth is never taken for infinite
    transfer_s = max(seconds - hops * latency_s, 0.1 * seconds)
    return Link(hops / num_ranks * num_bytes / transfer_s, latency_s)


def latency(seconds: float, num_ranks: int) -> float:
    """Of one message, from the time of an all-reduce of a few bytes."""
    return seconds / (2 * (num_ranks - 1))


def needed_bandwidth(step: Step, num_ranks: int, wanted: float, latency_s: float = LATENCY_S) -> float:
    """The bus bandwidth, in bytes per second, at which `efficiency` is `wanted`; infinite where latency alone is too
    much."""
    hops = 2 * (num_ranks - 1)
    exposed = step.compute_s * (1 / wanted - 1)
    needed = 0.0
    for num_bytes, allowed_s in (
        (step.gradient_bytes, exposed + OVERLAP * step.backward_s),
        (step.last_bucket_bytes, exposed),
    ):
        left_s = allowed_s - hops * latency_s
        needed = max(needed, hops / num_ranks * num_bytes / left_s if left_s > 0 else math.inf)
    return needed


def needed_accumulation(step: Step, num_ranks: int, link: Link, wanted: float, most: int = 16) -> int | None:
    """How many batches between two communications give the wanted efficiency; None beyond `most`."""
    return next((k for k in range(1, most + 1) if efficiency(step.accumulated(k), num_ranks, link) >= wanted), None)


def powersgd_share(shapes: Iterable[tuple[int, ...]], rank: int) -> float:
    """Bytes that travel with comm_hook=powersgd, once it has started, over those of the whole gradients. A gradient is
    a matrix of its first dimension by all others, and two factors of this rank stand for it where they are at most half
    its size; torch's PowerSGDState, min_compression_rate=2 (Vogels et al. 2019, arXiv:1905.13727)."""
    whole = travelling = 0
    for shape in shapes:
        size = math.prod(shape)
        rows, columns = (shape[0], size // shape[0]) if shape and size else (1, size)
        factors = (rows + columns) * min(rank, rows, columns)
        whole += size
        travelling += factors if len(shape) > 1 and 2 * factors < size else size
    return travelling / whole if whole else 1.0


# ---- several ranks on each node --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cluster:
    """What is between the ranks. Each of the links may be unknown."""

    ranks_per_node: int
    link: Link | None  # from node to node
    local_link: Link | None  # inside a node

    def efficiency(self, step: Step, num_nodes: int) -> float | None:
        """Against a rank alone; None where the link it hangs on is unknown."""
        num_ranks = num_nodes * self.ranks_per_node
        link = self.link if num_nodes > 1 else self.local_link
        if num_ranks == 1:
            return 1.0
        return None if link is None else efficiency(step, num_ranks, link)

    def speedup(self, step: Step, num_nodes: int) -> float | None:
        """Times the images per second of one node."""
        one, all_nodes = self.efficiency(step, 1), self.efficiency(step, num_nodes)
        return None if one is None or all_nodes is None else num_nodes * all_nodes / one


def advice(
    cluster: Cluster,
    step: Step,
    num_nodes: int,
    other_ways: Mapping[str, Step],
    measured: float | None = None,
    accumulated: int = 1,
) -> tuple[bool, str]:
    """(False where the nodes together are slower than one, what to do about it). other_ways: what to type -> the step
    it makes. measured: the efficiency of this many nodes, where it is known better than by the formula.
    accumulated: batches in the step already."""
    speedup, one = cluster.speedup(step, num_nodes), cluster.efficiency(step, 1)
    if measured is not None and one is not None:
        speedup = num_nodes * measured / one
    if num_nodes == 1 or speedup is None or cluster.link is None:
        return True, _for_two_nodes(cluster, step, other_ways)
    share = speedup / num_nodes
    nodes = {2: "two"}.get(num_nodes, str(num_nodes))
    if share >= WANTED:
        return True, f"{nodes} nodes are {speedup:.3g} times as fast as one: nothing to change"
    better = [
        f"{key} ({percent(reached, 0)})"
        for key, other in other_ways.items()
        if (reached := (cluster.speedup(other, num_nodes) or 0) / num_nodes) > share + 0.02
    ]
    num_ranks = num_nodes * cluster.ranks_per_node
    times = needed_accumulation(step, num_ranks, cluster.link, WANTED)
    if times and times > 1:  # 1: enough by the formula, and measured to be too little
        better.append(
            f"trainer.accumulate_grad_batches={times * accumulated} ({percent(WANTED, 0)}, a larger batch per step)"
        )
    over = f"over this link of {cluster.link.gbit_per_s:.2g} Gbit/s"
    if speedup <= 1:
        return False, f"{over} {nodes} nodes are slower than one ({speedup:.2f} times as fast): use one" + _or(better)
    return True, f"{over} {nodes} nodes are {speedup:.2f} times as fast as one" + _or(better, ": better with ")


def _for_two_nodes(cluster: Cluster, step: Step, other_ways: Mapping[str, Step]) -> str:
    """Before there are several: the link to ask for."""
    num_ranks = 2 * cluster.ranks_per_node
    ways = {"": step, **{f" with {key}": other for key, other in other_ways.items()}}
    needed = {way: needed_bandwidth(each, num_ranks, WANTED) * 8 / 1e9 for way, each in ways.items()}
    words = [f"{gbit_per_s:.2g} Gbit/s{way}" for way, gbit_per_s in needed.items() if math.isfinite(gbit_per_s)]
    if not words:
        return f"two such nodes would stay below {percent(WANTED, 0)} over any network: the steps are too short"
    return f"two such nodes would reach {percent(WANTED, 0)} over a link that carries {', or '.join(words)}"


def _or(ways: list[str], before: str = ", or ") -> str:
    return before + ", or ".join(ways) if ways else ""
