"""Check all ranks together: the time of a step alone and with the others, the network, and the speed that more nodes
would add.

Runs in every rank; rank 0 reports.
"""

import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from imagenet_ddp.config.schema.distributed import StrategyConfig
from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.doctor import scaling
from imagenet_ddp.doctor.check_machine import DEFAULT_NUM_CLASSES
from imagenet_ddp.doctor.run_checks import Check, failed
from imagenet_ddp.doctor.scaling import Step
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch import devices
from imagenet_ddp.launch.plan import Plan, make_plan
from imagenet_ddp.launch.world import World, agree_on_devices
from imagenet_ddp.mistakes import Mistake
from imagenet_ddp.strategies import batch_split
from imagenet_ddp.system.text import count_noun, first_line, percent
from imagenet_ddp.training import step_timer
from imagenet_ddp.training.step_timer import AllReduce, MeasuredStep
from imagenet_ddp.training.trial_step import Training, make_training

STEPS_BUDGET_S, ALL_REDUCE_BUDGET_S = 8.0, 6.0
SLOW_ALL_REDUCE_S = 12.0  # above this, steps with communication are not measured, only predicted
GROUP_TIMEOUT_S = 60.0  # for one collective operation; enough for 46.8 MB at 10 Mbit/s


def check_world(config: CommonConfig, world: World, node_checks: Sequence[Check], num_classes: int) -> list[Check]:
    """Run the checks in every rank, once all ranks have met. Return the results on rank 0, [] on the other ranks.

    node_checks, num_classes: of this node's own checks, given to at least one of its ranks. No wait takes longer than
    GROUP_TIMEOUT_S.
    """
    place, plan = world.place, make_plan(config, world.place, world.device)
    devices.set_num_threads(plan.num_threads.value)
    if place.world_size > 1:
        checks = _check_ranks(plan, world, node_checks, num_classes)
        return checks if place.rank == 0 else []
    try:
        return _check_one_rank(plan, num_classes or DEFAULT_NUM_CLASSES)
    except ConfigError as error:
        return failed(error.mistakes, "step")
    except RuntimeError as error:  # torch's, usually because memory is short
        return failed([Mistake(first_line(error), hint="if memory is short, lower data.batch_size")], "step")


def _check_one_rank(plan: Plan, num_classes: int) -> list[Check]:
    config, strategy = plan.config, plan.config.strategy
    training = make_training(config, plan.precision.value, plan.device, num_classes)
    times = step_timer.time_steps(training, [(training.net, False)], budget_s=STEPS_BUDGET_S, warm_up=2)[0]
    if strategy.name in batch_split.DATA_PARALLEL:
        scales = Check("scaling", True, f"not predicted, because strategy={strategy.name} uses only this machine")
    else:
        scales = check_scaling(config, _whole_step(config, training, times), 1, 1, None, None)
    return [Check("step", True, _describe_step(config, times)), scales]


def _whole_step(config: CommonConfig, training: Training, times: MeasuredStep) -> Step:
    """Return the measured optimizer step, including all accumulated batches."""
    compute_s = config.trainer.accumulate_grad_batches * (times.forward_s + times.backward_s) + times.optimizer_s
    return Step(compute_s, times.backward_s, _sent_bytes(config, training))


def _sent_bytes(config: CommonConfig, training: Training) -> int:
    """Return the size in bytes of all gradients as sent."""
    num_bytes = sum(each.numel() * each.element_size() for each in training.net.parameters() if each.requires_grad)
    return num_bytes // 2 if config.strategy.comm_hook else num_bytes


# ---- several ranks -------------------------------------------------------------------------------------------------


def _check_ranks(plan: Plan, world: World, node_checks: Sequence[Check], num_classes: int) -> list[Check]:
    """Return the checks of all ranks together. An error on any rank ends all of them with its message."""
    config, place, device, strategy = plan.config, world.place, plan.device, plan.config.strategy
    assert world.store is not None
    plan = agree_on_devices(plan, world)
    checks = [Check("ranks", True, f"all {place.world_size} have met")]
    if place.num_nodes > 1:  # tested when they met
        checks.append(Check("echo", True, "each node reaches the others on ports chosen by the system"))
    with step_timer.process_group(place, world.store, device, strategy.process_group_backend, GROUP_TIMEOUT_S):
        hosts = _gather((place.node_rank, socket.gethostname()))
        nodes = {node: f"node {node} ({name}) {hosts.count((node, name))}" for node, name in hosts}
        checks.append(Check("group", True, f"{dist.get_backend()}, ranks on {', '.join(nodes.values())}"))
        checks += _other_nodes(place, node_checks)
        classes = max(_gather(num_classes)) or DEFAULT_NUM_CLASSES
        training = make_training(config, plan.precision.value, device, classes)
        all_reduce = step_timer.time_all_reduce(_sent_bytes(config, training), device, budget_s=ALL_REDUCE_BUDGET_S)
        what = (
            f"{_duration(all_reduce.seconds)} for {all_reduce.num_bytes / 1e6:.1f} MB of gradients over "
            f"{all_reduce.num_ranks} ranks (measured with {all_reduce.measured_bytes / 1e6:.1f} MB): "
            f"{all_reduce.bus_bytes_per_s * 8 / 1e9:.3g} Gbit/s"
        )
        alone, together = _time_steps(training, strategy, all_reduce)
    step = _whole_step(config, training, alone)
    waiting_s = max(together.compute_s - alone.compute_s, 0.0) if together else None
    return [
        *checks,
        Check("all-reduce", True, what),
        Check("step", True, _describe_step(config, alone)),
        check_scaling(config, step, place.num_nodes, place.local_world_size, all_reduce, waiting_s),
    ]


def _other_nodes(place: Place, node_checks: Sequence[Check]) -> list[Check]:
    """Return the failed checks of the other nodes."""
    lines = [(check.name, check.what, check.hint) for check in node_checks if not check.ok]
    everywhere = _gather((place.node_rank, socket.gethostname(), lines))
    found = {(node, host, *line) for node, host, lines in everywhere if node for line in lines}
    if not found and place.num_nodes > 1:
        return [Check("nodes", True, "no check failed on another node")]
    return [
        Check("nodes", False, f"node {node} ({host}), {name}: {what}", hint)
        for node, host, name, what, hint in sorted(found)
    ]


def _time_steps(
    training: Training, strategy: StrategyConfig, all_reduce: AllReduce
) -> tuple[MeasuredStep, MeasuredStep | None]:
    """Return the times of a step alone, and those with communication or None if it is too slow."""
    if all_reduce.seconds > SLOW_ALL_REDUCE_S:
        return step_timer.time_steps(training, [(training.net, False)], budget_s=STEPS_BUDGET_S)[0], None
    # the ranks start with equal weights, so nothing needs to be sent before the first step
    wrapper = step_timer.wrap(training.net, training.images.device, replace(strategy, init_sync=False))
    alone, together = step_timer.time_steps(training, [(wrapper, False), (wrapper, True)], budget_s=STEPS_BUDGET_S)
    return alone, together


def _gather(value: Any) -> list[Any]:
    """Return the values of all ranks, ordered by rank."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


# ---- lines of the report -------------------------------------------------------------------------------------------


def _describe_step(config: CommonConfig, times: MeasuredStep) -> str:
    batch = config.data.batch_size
    parts = {"forward": times.forward_s, "backward": times.backward_s, "optimizer": times.optimizer_s}
    return (
        f"{_duration(times.compute_s)} for {batch} images without reading and communication "
        f"({', '.join(f'{name} {_duration(seconds)}' for name, seconds in parts.items())}): "
        f"{batch / times.compute_s:,.4g} images/s per rank"
    )


def check_scaling(
    config: CommonConfig,
    step: Step,
    num_nodes: int,
    ranks_per_node: int,
    all_reduce: AllReduce | None,
    waiting_s: float | None,
) -> Check:
    """Report the efficiency of this job's nodes, a prediction for other numbers of nodes, and advice.

    all_reduce: None for one rank. waiting_s: measured seconds that a step waits for gradients; None: not measured.
    """
    measured = None if waiting_s is None else step.compute_s / (step.compute_s + waiting_s)
    texts = (
        [f"measured: {count_noun(num_nodes, 'node')} {percent(measured, 0)} of independent ranks"] if measured else []
    )
    if all_reduce and num_nodes > 1:
        efficiencies: dict[int, float] = {}
        for nodes in sorted({2, 4, 8, num_nodes, 2 * num_nodes}):
            all_reduce_s = scaling.all_reduce_s(all_reduce.seconds, all_reduce.num_ranks, nodes * ranks_per_node)
            efficiencies[nodes] = scaling.efficiency(step, all_reduce_s)
        words = [f"{nodes} nodes {percent(value, 0)}" for nodes, value in efficiencies.items()]
        current = efficiencies[num_nodes] if measured is None else measured
        gbit_per_s, can_halve = all_reduce.bus_bytes_per_s * 8 / 1e9, config.strategy.comm_hook is None
        ok, advice, hint = scaling.advise(num_nodes, current, step, all_reduce.seconds, gbit_per_s, can_halve=can_halve)
        texts.append(f"predicted: {', '.join(words)}")
    else:
        ok, hint = True, ""
        gbit_per_s = scaling.needed_gbit_per_s(step, 2 * ranks_per_node)
        reached = percent(scaling.GOOD_EFFICIENCY, 0)
        advice = f"two such nodes would reach {reached} over a link that carries {gbit_per_s:.2g} Gbit/s"
    return Check("scaling", ok, "; ".join([*texts, advice]), hint)


def _duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"
