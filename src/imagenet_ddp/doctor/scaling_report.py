"""From what was measured to doctor's line on scaling: how many nodes pay, and what to change."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from imagenet_ddp.doctor.checks import Check
from imagenet_ddp.performance import scaling_model
from imagenet_ddp.performance.scaling_model import Cluster, Link, Step
from imagenet_ddp.performance.step_timer import StepTimes
from imagenet_ddp.system.text import count_noun, percent

Config = Mapping[str, Any]


def whole_step(config: Config, times: StepTimes, sizes: Sequence[int], read_s: float) -> Step:
    """Of the optimiser, with its accumulated batches; gradients whole."""
    batches = config["trainer"]["accumulate_grad_batches"]
    compute_s = batches * (read_s + times.forward_s + times.backward_s) + times.optimizer_s
    return Step(compute_s, times.backward_s, sum(sizes), sizes[-1])


def foretell(
    check: Check,
    config: Config,
    net: nn.Module,
    whole: Step,
    cluster: Cluster,
    num_nodes: int,
    exposed_s: float | None,
) -> None:
    """whole: the step with gradients as they are. exposed_s: what a step was measured to wait for them; None: not
    measured."""
    strategy, batches = config["strategy"], config["trainer"]["accumulate_grad_batches"]
    shapes = [tuple(parameter.shape) for parameter in net.parameters() if parameter.requires_grad]
    shares = {**scaling_model.COMPRESSED, "powersgd": scaling_model.powersgd_share(shapes, strategy["powersgd_rank"])}
    hook = strategy["comm_hook"]
    step = whole.compressed(shares.get(hook, 1.0))
    others = {
        f"strategy.comm_hook={name}": whole.compressed(shares[name])
        for name in ("bf16", "powersgd")
        if hook is None or shares[name] < shares[hook]
    }
    measured = None if exposed_s is None else step.compute_s / (step.compute_s + exposed_s)
    well, advice = scaling_model.advice(cluster, step, num_nodes, others, measured, batches)
    predicted = []
    for number in sorted({1, 2, 4, 8, num_nodes, 2 * num_nodes}):
        share = cluster.efficiency(step, number)
        ranks = number * cluster.ranks_per_node
        rate = None if share is None else share * ranks * config["data"]["batch_size"] * batches / step.compute_s
        predicted.append({"num_nodes": number, "num_ranks": ranks, "efficiency": share, "images_per_s": rate})
    words = [
        f"{count_noun(each['num_nodes'], 'node')} {percent(each['efficiency'], 0)}"
        for each in predicted
        if each["efficiency"] is not None and each["num_ranks"] > 1
    ]
    what = [f"predicted: {', '.join(words)}"] if words else []
    if measured is not None:
        what.insert(0, f"measured now: {count_noun(num_nodes, 'node')} {percent(measured, 0)} of so many single ranks")
    check.ok, check.hint = well, "" if well else advice.partition(": ")[2]
    check.what = "; ".join([*what, advice if well else advice.partition(": ")[0]])
    check.numbers = {
        "compute_s": step.compute_s,
        "backward_s": step.backward_s,
        "gradient_bytes": step.gradient_bytes,
        "last_bucket_bytes": step.last_bucket_bytes,
        "ranks_per_node": cluster.ranks_per_node,
        "link": _link(cluster.link),
        "local_link": _link(cluster.local_link),
        "nodes": predicted,
        "measured": measured and {"num_nodes": num_nodes, "efficiency": measured, "exposed_s": exposed_s},
        "advice": advice,
    }


def _link(link: Link | None) -> dict[str, float] | None:
    return link and {"bus_bandwidth_bytes_per_s": link.bandwidth, "latency_s": link.latency_s}


def said_s(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"
