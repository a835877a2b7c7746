"""Doctor's checks of all ranks together: what a step computes, what its gradients cost to send, and what becomes of
both on more nodes. Runs in every rank; rank 0 speaks."""

import contextlib
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from imagenet_ddp.data.inspect import reading_s
from imagenet_ddp.data.loading.worker_processes import choose_num_workers
from imagenet_ddp.data.transforms import Sizes, TrainTransform, empty
from imagenet_ddp.distributed import devices
from imagenet_ddp.doctor.check_data import num_classes
from imagenet_ddp.doctor.checks import Check, Machine, fails
from imagenet_ddp.doctor.scaling_report import foretell, said_s, whole_step
from imagenet_ddp.engine.world import World
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.performance import scaling_model, step_timer
from imagenet_ddp.performance.scaling_model import Cluster
from imagenet_ddp.performance.step_timer import AllReduce, StepTimes, Training
from imagenet_ddp.performance.train_step import device_of, make_training
from imagenet_ddp.system.text import first_line

STEPS_BUDGET_S, RING_BUDGET_S, READING_BUDGET_S = 8.0, 6.0, 2.0
SLOW_STEP_S = 12.0  # from where on steps with communication are not taken, but reckoned
GROUP_TIMEOUT_S = 60.0  # of one collective: enough for 46.8 MB at 10 Mbit/s
Config = Mapping[str, Any]


def names(machine: Machine) -> list[str]:
    """Of the checks below, in the order in which they are said; [] where no rank could be made."""
    if machine.no_device or machine.no_rendezvous or machine.rendezvous is None:
        return []
    place = machine.rendezvous.place
    size = place.world_size if place else machine.rendezvous.num_nodes * machine.num_local
    if size == 1:
        return ["step", "scaling"]
    several = machine.meets_others
    return ["ranks", *["echo"] * several, "group", *["nodes"] * several, "all-reduce", "step", "scaling"]


def not_met(error: ConfigError) -> list[Check]:
    """Where the ranks did not find each other, and the error says who is missing."""
    return _named("ranks", fails(error.mistakes))


def examine_world(config: Config, world: World, machine: Sequence[Check] = ()) -> list[Check]:
    """In every rank, once all have met. The checks on rank 0, [] on the others.

    machine: what was found on this node, given to one rank of it at least. Every wait ends after GROUP_TIMEOUT_S.
    """
    place, found = world.info, list[Check]()
    devices.set_num_threads(devices.choose_num_threads(config["cluster"]["num_threads"], place.local_world_size))
    with contextlib.suppress(_NoMore), contextlib.ExitStack() as stack:
        if place.world_size == 1:
            _alone(found, config)
        else:
            found.append(Check("ranks", True, f"all {place.world_size} are here"))
            if world.rank_group is not None and place.num_nodes > 1:  # those who meet have tried it
                found.append(Check("echo", True, "each node hears the others at ports of the system's choice"))
            _together(found, config, world, machine, stack)
    return found if place.rank == 0 else []


class _NoMore(Exception):
    """What follows hangs on what failed."""


@contextlib.contextmanager
def _look(found: list[Check], name: str) -> Iterator[Check]:
    """A check to be filled in; added when it is, or when it fails."""
    check, begin = Check(name, True, ""), time.perf_counter()
    try:
        yield check
        found.append(check)
    except _NoMore:
        raise
    except ConfigError as error:
        found += _named(name, fails(error.mistakes))
        raise _NoMore from error
    except Exception as error:  # torch raises RuntimeError of many kinds
        reason = first_line(error)
        found.append(Check(name, False, reason, "look at the other ranks' messages; nccl=debug says more"))
        raise _NoMore from error
    finally:
        check.seconds = round(time.perf_counter() - begin, 3)


def _named(name: str, checks: list[Check]) -> list[Check]:
    for check in checks:
        check.name = name
    return checks


# ---- one rank ------------------------------------------------------------------------------------------------------


def _alone(found: list[Check], config: Config) -> None:
    with _look(found, "step") as check:
        training = make_training(config, device_of(config, 0), num_classes(config))
        times = step_timer.steps(training, [(training.net, False)], budget_s=STEPS_BUDGET_S, warm_up=2)[0]
        read_s = _read_s(config, 1)
        _say_step(check, config, times, read_s)
    with _look(found, "scaling") as check:
        if config["strategy"]["name"] in ("dp", "balanced_dp"):
            check.what = f"strategy={config['strategy']['name']} stays on this machine"
            return
        sizes = step_timer.bucket_bytes(training.net, config["strategy"])
        foretell(check, config, training.net, whole_step(config, times, sizes, read_s), Cluster(1, None, None), 1, None)


def _read_s(config: Config, local_world_size: int) -> float:
    """Seconds for the images of one batch, where the training process reads them itself."""
    data = config["data"]
    on_cpu = devices.device_type(config["trainer"]["accelerator"]) == "cpu"
    if choose_num_workers(data["num_workers"], on_cpu, local_world_size)[0] > 0:
        return 0.0
    from imagenet_ddp.data.decoding.image import Reading, open_picture

    low, high = data["crop_scale"]
    transform = TrainTransform(Sizes(data["image_size"]), (low, high), data["flip"])
    reading, generator = Reading(data["decoder"], data["exif_orientation"]), random.Random(0)
    out = empty(data["image_size"], data["image_size"], 3)
    per_image = reading_s(
        data,
        lambda content, path: transform.into(out, open_picture(content, path, reading), generator),
        READING_BUDGET_S,
    )
    return per_image * data["batch_size"]


def _say_step(check: Check, config: Config, times: StepTimes, read_s: float) -> None:
    batch = config["data"]["batch_size"]
    images_per_s = batch / (times.compute_s + read_s)
    parts = {"forward": times.forward_s, "backward": times.backward_s, "optimiser": times.optimizer_s}
    words = ", ".join(f"{name} {said_s(seconds)}" for name, seconds in parts.items())
    reading = f", and {said_s(read_s)} to read its images" if read_s else ""
    check.what = (
        f"{said_s(times.compute_s)} for {batch} images without communication ({words}){reading}: "
        f"{images_per_s:,.4g} images/s per rank"
    )
    check.numbers = {
        "forward_s": times.forward_s,
        "backward_s": times.backward_s,
        "optimizer_s": times.optimizer_s,
        "read_s": read_s,
        "images_per_s": images_per_s,
        "num_steps": times.num_steps,
    }


# ---- several -------------------------------------------------------------------------------------------------------


def _together(
    found: list[Check], config: Config, world: World, machine: Sequence[Check], stack: contextlib.ExitStack
) -> None:
    place, strategy = world.info, config["strategy"]
    store = world.store_client() if world.store_client else world.store
    assert store is not None
    device = device_of(config, place.local_rank)
    with _look(found, "group") as check:
        backend = strategy["process_group_backend"]
        stack.enter_context(step_timer.process_group(place, store, device, backend, GROUP_TIMEOUT_S))
        hosts = _gathered((place.node_rank, socket.gethostname()))
        where = {node: f"node {node} ({name}) {hosts.count((node, name))}" for node, name in hosts}
        check.what = f"{dist.get_backend()}, ranks on {', '.join(where.values())}"
        check.numbers = {"backend": dist.get_backend(), "hosts": [name for _, name in hosts]}
    _nodes(found, world, machine)
    with _look(found, "all-reduce") as check:
        classes = max(_everywhere(lambda: num_classes(config)))
        training = _on_each(lambda: make_training(config, device, classes))
        sizes = step_timer.bucket_bytes(training.net, strategy)
        ring = step_timer.all_reduce(sizes, device, budget_s=RING_BUDGET_S)
        group = step_timer.node_group(place)
        local = step_timer.all_reduce(sizes, device, budget_s=RING_BUDGET_S / 2, group=group) if group else None
        cluster = _cluster(place.num_nodes, place.local_world_size, ring, local)
        _say_ring(check, ring, local, sizes)
    with _look(found, "step") as check:
        alone, together, read_s = _steps(config, world, training, ring)
        _say_step(check, config, alone, read_s)
    with _look(found, "scaling") as check:
        step = whole_step(config, alone, sizes, read_s)
        exposed_s = max(together.compute_s - alone.compute_s, 0.0) if together else None
        foretell(check, config, training.net, step, cluster, place.num_nodes, exposed_s)


def _nodes(found: list[Check], world: World, machine: Sequence[Check]) -> None:
    """What the other nodes' own checks found."""
    lines = [(one.name, one.what, one.hint) for one in machine if not one.ok]
    everywhere = _gathered((world.info.node_rank, socket.gethostname(), lines))
    failed = {(node, host, *each) for node, host, lines in everywhere if node for each in lines}
    for node, host, name, what, hint in sorted(failed):
        found.append(Check("nodes", False, f"node {node} ({host}), {name}: {what}", hint))
    if not failed and world.info.num_nodes > 1:
        found.append(Check("nodes", True, "no check failed on another node"))


def _steps(
    config: Config, world: World, training: Training, ring: AllReduce
) -> tuple[StepTimes, StepTimes | None, float]:
    """(without communication, with it, reading of a batch). Where communication takes too long it is left out."""
    read_s = max(_everywhere(lambda: _read_s(config, world.info.local_world_size)))
    if ring.seconds > SLOW_STEP_S:
        return step_timer.steps(training, [(training.net, False)], budget_s=STEPS_BUDGET_S)[0], None, read_s
    # the ranks begin with equal weights, so nothing need be sent before the first step
    wrapper = step_timer.wrapped(training.net, training.images.device, {**config["strategy"], "init_sync": False})
    warm_up = 3 if config["strategy"]["comm_hook"] == "powersgd" else 1  # its first steps send whole gradients
    ways = [(wrapper, False), (wrapper, True)]
    alone, together = step_timer.steps(training, ways, budget_s=STEPS_BUDGET_S, warm_up=warm_up)
    return alone, together, read_s


def _cluster(num_nodes: int, ranks_per_node: int, ring: AllReduce, local: AllReduce | None) -> Cluster:
    links = [
        scaling_model.measured_link(
            each.num_bytes, each.seconds, each.num_ranks, scaling_model.latency(each.small_s, each.num_ranks)
        )
        if each
        else None
        for each in (ring, local)
    ]
    return Cluster(ranks_per_node, links[0], links[1]) if num_nodes > 1 else Cluster(ranks_per_node, None, links[0])


def _say_ring(check: Check, ring: AllReduce, local: AllReduce | None, sizes: Sequence[int]) -> None:
    gbit_per_s = ring.bus_bytes_per_s * 8 / 1e9
    part = "" if ring.measured_bytes == ring.num_bytes else f" (reckoned from {ring.measured_bytes / 1e6:.1f} MB)"
    inside = f"; inside a node {said_s(local.seconds)}" if local else ""
    check.what = (
        f"{said_s(ring.seconds)} for {ring.num_bytes / 1e6:.1f} MB of gradients in {len(sizes)} buckets over "
        f"{ring.num_ranks} ranks{part}: {gbit_per_s:.3g} Gbit/s; {said_s(ring.small_s)} for one number{inside}"
    )
    check.numbers = {
        "gradient_bytes": ring.num_bytes,
        "bucket_bytes": list(sizes),
        "seconds": ring.seconds,
        "small_s": ring.small_s,
        "bus_bandwidth_bytes_per_s": ring.bus_bytes_per_s,
        "local_seconds": local.seconds if local else None,
        "measured_bytes": ring.measured_bytes,
    }


def _gathered(value: Any) -> list[Any]:
    """Of every rank, by rank."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return everyone


def _everywhere(make: Callable[[], Any]) -> list[Any]:
    """make() of every rank; ConfigError on all ranks where it fails on one, so that none is waited for in vain."""
    try:
        mine: tuple[Any, list[str]] = (make(), [])
    except ConfigError as error:
        mine = (None, error.mistakes)
    except Exception as error:
        mine = (None, [f"{type(error).__name__}: {error}"])
    everyone = _gathered(mine)
    mistakes = [f"rank {rank}: {text}" for rank, (_, texts) in enumerate(everyone) for text in texts]
    if mistakes:
        raise ConfigError(mistakes)
    return [value for value, _ in everyone]


def _on_each(make: Callable[[], Training]) -> Training:
    """As _everywhere, for what cannot be sent."""
    made: list[Training] = []
    _everywhere(lambda: made.append(make()))
    return made[0]
