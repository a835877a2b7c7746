"""Turn the measurements of all ranks into lines and numbers of doctor's report."""

from collections.abc import Mapping
from typing import Any

from imagenet_ddp.doctor.checks import Check
from imagenet_ddp.performance import scaling
from imagenet_ddp.performance.scaling import Step
from imagenet_ddp.performance.step_timer import AllReduce, StepTimes
from imagenet_ddp.system.text import count_noun, percent

Config = Mapping[str, Any]


def fill_step(check: Check, config: Config, times: StepTimes, read_s: float) -> None:
    batch = config["data"]["batch_size"]
    images_per_s = batch / (times.compute_s + read_s)
    parts = {"forward": times.forward_s, "backward": times.backward_s, "optimizer": times.optimizer_s}
    words = ", ".join(f"{name} {_duration(seconds)}" for name, seconds in parts.items())
    reading = f", and {_duration(read_s)} to read its images" if read_s else ""
    check.what = (
        f"{_duration(times.compute_s)} for {batch} images without communication ({words}){reading}: "
        f"{images_per_s:,.4g} images/s per rank"
    )
    check.numbers = {**vars(times), "read_s": read_s, "images_per_s": images_per_s}


def fill_all_reduce(check: Check, all_reduce: AllReduce) -> None:
    measured = all_reduce.measured_bytes
    part = "" if measured == all_reduce.num_bytes else f" (extrapolated from {measured / 1e6:.1f} MB)"
    check.what = (
        f"{_duration(all_reduce.seconds)} for {all_reduce.num_bytes / 1e6:.1f} MB of gradients over "
        f"{all_reduce.num_ranks} ranks{part}: {all_reduce.bus_bytes_per_s * 8 / 1e9:.3g} Gbit/s"
    )
    check.numbers = {**vars(all_reduce), "bus_bandwidth_bytes_per_s": all_reduce.bus_bytes_per_s}


def fill_scaling(
    check: Check,
    config: Config,
    step: Step,
    num_nodes: int,
    ranks_per_node: int,
    all_reduce: AllReduce | None,
    waiting_s: float | None,
) -> None:
    """Report the efficiency of this job's nodes, a prediction for other numbers of nodes, and advice.

    all_reduce: None for one rank. waiting_s: measured seconds that a step waits for gradients; None: not measured.
    """
    hook, batches = config["strategy"]["comm_hook"], config["trainer"]["accumulate_grad_batches"]
    measured = None if waiting_s is None else step.compute_s / (step.compute_s + waiting_s)
    efficiencies = {1: 1.0} if ranks_per_node == 1 else {}
    if all_reduce and num_nodes > 1:
        for nodes in sorted({2, 4, 8, num_nodes, 2 * num_nodes}):
            all_reduce_s = scaling.all_reduce_s(all_reduce.seconds, all_reduce.num_ranks, nodes * ranks_per_node)
            efficiencies[nodes] = scaling.efficiency(step, all_reduce_s)
    texts, current = [], measured if measured is not None else efficiencies.get(num_nodes)
    if measured is not None:
        texts.append(f"measured: {count_noun(num_nodes, 'node')} {percent(measured, 0)} of independent ranks")
    words = [f"{nodes} nodes {percent(value, 0)}" for nodes, value in efficiencies.items() if nodes > 1]
    texts += [f"predicted: {', '.join(words)}"] if words else []
    if all_reduce and num_nodes > 1 and current is not None:
        gbit_per_s = all_reduce.bus_bytes_per_s * 8 / 1e9
        check.ok, advice, check.hint = scaling.advise(
            num_nodes, current, step, all_reduce.seconds, gbit_per_s, can_halve=hook is None
        )
    else:
        gbit_per_s = scaling.needed_gbit_per_s(step, 2 * ranks_per_node)
        reached = percent(scaling.GOOD_EFFICIENCY, 0)
        advice = f"two such nodes would reach {reached} over a link that carries {gbit_per_s:.2g} Gbit/s"
    check.what = "; ".join([*texts, advice])
    images = config["data"]["batch_size"] * batches / step.compute_s
    check.numbers = {
        **vars(step),
        "ranks_per_node": ranks_per_node,
        "nodes": [
            {
                "num_nodes": nodes,
                "num_ranks": nodes * ranks_per_node,
                "efficiency": value,
                "images_per_s": value * nodes * ranks_per_node * images,
            }
            for nodes, value in efficiencies.items()
        ],
        "measured": measured and {"num_nodes": num_nodes, "efficiency": measured, "waiting_s": waiting_s},
        "advice": advice,
    }


def _duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"
