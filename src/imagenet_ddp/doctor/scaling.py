"""Predict the speed of training on several nodes from the times of a step and of an all-reduce."""

from dataclasses import dataclass, replace

from imagenet_ddp.system.text import percent

GOOD_EFFICIENCY = 0.9  # efficiency from which no advice is given
OVERLAP = 0.9  # share of the backward pass in which gradients can be sent

# A ring all-reduce over n ranks sends 2(n-1)/n times the gradients over each link (Patarasuk and Yuan 2009,
# doi:10.1016/j.jpdc.2008.09.002). DistributedDataParallel starts the all-reduce bucket by bucket while the backward
# pass is still running (Li et al. 2020, arXiv:2006.15704). The first bucket is full only after about a tenth of it.
#
#     T(n)       = T(m) × [(n-1)/n] / [(m-1)/m]        m: number of ranks in the measurement
#     exposed    = max(0, T(n) - 0.9 × T_backward)
#     efficiency = T_compute / (T_compute + exposed)
#
# The ranks of a node are neighbours in the ring, which crosses each node's link once in each direction. Therefore n is
# the number of ranks even with several ranks per node. Times are in seconds, sizes in bytes.


@dataclass(frozen=True)
class Step:
    """One optimizer step of one rank, without communication."""

    compute_s: float  # whole step: reading, forward and backward passes of every accumulated batch, optimizer
    backward_s: float  # last backward pass, which overlaps with communication
    gradient_bytes: float  # size of the gradients as sent


def all_reduce_s(measured_s: float, measured_ranks: int, num_ranks: int) -> float:
    """Scale the measured time of an all-reduce to another number of ranks."""
    return measured_s * (num_ranks - 1) / num_ranks * measured_ranks / (measured_ranks - 1)


def efficiency(step: Step, all_reduce_s: float) -> float:
    """Return the images per second of all ranks divided by those of as many independent ranks, 0 to 1."""
    return step.compute_s / (step.compute_s + max(0.0, all_reduce_s - OVERLAP * step.backward_s))


def needed_gbit_per_s(step: Step, num_ranks: int) -> float:
    """Return the bandwidth of each link and direction, in Gbit/s, that is needed for GOOD_EFFICIENCY."""
    allowed_s = step.compute_s * (1 / GOOD_EFFICIENCY - 1)
    allowed_s += OVERLAP * step.backward_s
    return 2 * (num_ranks - 1) / num_ranks * step.gradient_bytes / allowed_s * 8 / 1e9


def advise(
    num_nodes: int, measured: float, step: Step, all_reduce_s: float, gbit_per_s: float, *, can_halve: bool
) -> tuple[bool, str, str]:
    """Return (whether several nodes are faster than one, a message, the changes that would help).

    measured: efficiency measured with num_nodes nodes. all_reduce_s, gbit_per_s: all-reduce time and link bandwidth
    of these nodes. can_halve: whether the gradients are sent in 32 bits.
    """
    speedup = num_nodes * measured
    if measured >= GOOD_EFFICIENCY:
        return True, f"{num_nodes} nodes are {speedup:.3g} times as fast as one: nothing to change", ""
    link = f"over this link of {gbit_per_s:.2g} Gbit/s, {num_nodes} nodes are"
    if speedup <= 1:
        return False, f"{link} slower than one ({speedup:.2f} times as fast)", "use one"
    halved = efficiency(step, all_reduce_s / 2)
    accumulated = efficiency(replace(step, compute_s=4 * step.compute_s), all_reduce_s)
    better = [f"4 times trainer.accumulate_grad_batches ({percent(accumulated, 0)}, a larger batch per step)"]
    if can_halve:
        better.insert(0, f"strategy.comm_hook=bf16 ({percent(halved, 0)})")
    return True, f"{link} {speedup:.2f} times as fast as one: better with {', or '.join(better)}", ""
