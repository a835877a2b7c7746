"""One process of a run, from its first line to its exit code: meet the others, do the job, say what went wrong."""

import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from imagenet_ddp.distributed.launchers import scontrol
from imagenet_ddp.distributed.launchers.world_info import WorldInfo, own_place
from imagenet_ddp.distributed.rendezvous import address_file
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.runs.signals import Left, Signals, Stopped, exit_on_signal, leaving
from imagenet_ddp.system import console
from imagenet_ddp.system.heavy_imports import import_torch
from imagenet_ddp.system.text import first_line


def train(
    place: WorldInfo | None, config: dict[str, Any], run_dir: str, checkpoint: str | None, said: list[str], command: str
) -> float | None:
    """In every process of a run. place: None in a worker that spawn.py started, which finds it in its environment.
    config: resolved, plain; said: lines from before, for the head of the log.

    The highest val/top1, a fraction; None without validation. Leaves by SystemExit with the project's exit codes.
    """
    signals = Signals().hold()

    def job(world: Any) -> float | None:
        with leaving(), import_torch():
            from imagenet_ddp.engine import fit

        return fit.run(config, world, Path(run_dir), checkpoint, said, command, signals)

    return run_in_process(job, place, config)


def evaluate(place: WorldInfo | None, config: dict[str, Any], run_dir: str, checkpoint: str, command: str) -> float:
    """In every process of an evaluation; the top-1, a fraction."""
    exit_on_signal()

    def job(world: Any) -> float:
        with import_torch():
            from imagenet_ddp.engine import evaluate as engine_evaluate

        return engine_evaluate.run(config, world, Path(run_dir), Path(checkpoint), command)

    return run_in_process(job, place, config)


def run_in_process(
    job: Callable[[Any], Any], place: WorldInfo | None, config: Mapping[str, Any], met: Any = None
) -> Any:
    """met: the world, where this process has met it already."""
    place = place or own_place(os.environ) or WorldInfo()
    world = met
    typed = place.world_size == 1 and own_place(os.environ) is None  # this process is the command that was typed
    try:
        with leaving():
            with import_torch():
                from imagenet_ddp.engine.build import World  # torch from here on

            world = world or World(place)
            if place.world_size > 1 and met is None:
                world = join_world(place, config)
        result = job(world)
        world.leave()
        return result
    except ConfigError as error:
        if typed:
            raise  # said where it was typed
        _refuse(error, world)
    except Left as left:
        if typed:
            raise
        if lifeline := getattr(world, "lifeline", None):  # no world: still importing torch
            lifeline.fail(f"was stopped by {left.signal_name}", left.exit_code)
        if place.rank == 0:
            console.print_message(str(left))
        _end_at_once(left.exit_code)
    except Stopped as stop:
        world.leave()
        # a worker that spawn.py has started leaves this to the command that was typed
        here = own_place(os.environ) is None and place.rank == 0
        if here and scontrol.is_due(stop.signal_number, config, os.environ):
            scontrol.start_again(os.environ)  # all ranks have saved; this ends the job, and with it this process
        if place.world_size > 1:
            _end_at_once(128 + stop.signal_number)
        sys.exit(128 + stop.signal_number)
    except Exception as error:
        # shown here and whole: Hydra would cut the traceback down to its last line
        explained = isinstance(error, RunError)
        what = str(error) if explained else traceback.format_exc()
        if place.world_size == 1:
            console.print_message(what)
            sys.exit(1)
        cause = first_line(error)
        if world.lifeline is None or world.lifeline.fail(cause if explained else f"{type(error).__name__}: {cause}"):
            console.print_message(f"rank {place.rank} failed:{' ' if explained else chr(10)}{what}")
        else:
            _end_for_other(world)
        _end_at_once(1)


def _refuse(error: ConfigError, world: Any) -> NoReturn:
    """Where all ranks were told the same, the first of each node says it; a rank's own mistake it says itself."""
    from imagenet_ddp.distributed.rendezvous.gather_ranks import SharedError

    place = world.place
    own = not isinstance(error, SharedError)
    if own and world.lifeline is not None:
        world.lifeline.fail(" ".join(error.mistakes), 2)
        if world.lifeline.code > 128:  # the one that was stopped is no longer there to be met
            _end_for_other(world)
    if own or place.local_rank == 0:
        for mistake in error.mistakes:
            named = own and place.world_size > 1
            console.print_message(f"rank {place.rank}: {mistake}" if named else mistake)
    if place.rank == 0 and not place.store_is_served:
        time.sleep(1.0)  # the others read why from the store that this process serves
    _end_at_once(2)


def _end_for_other(world: Any) -> NoReturn:
    """Another rank's end came first, and what happened here follows from it."""
    console.print_message(f"rank {world.place.rank} ends because {world.lifeline.failed}")
    _end_at_once(world.lifeline.code if world.lifeline.code > 128 else 1)


def _end_at_once(code: int) -> NoReturn:
    """Threads of Gloo, and of stores that wait for others, may hold up an orderly end, or abort it."""
    sys.stdout.flush()
    sys.stderr.flush()
    address_file.remove_owned()
    os._exit(code)


def join_world(place: WorldInfo, config: Mapping[str, Any]) -> Any:
    """All ranks are there, each with a GPU of its own, and reach each other; interfaces are set."""
    from torch.distributed import PrefixStore

    from imagenet_ddp.distributed import devices, gpu_names
    from imagenet_ddp.distributed.network import interfaces, nccl
    from imagenet_ddp.distributed.rendezvous import connectivity
    from imagenet_ddp.distributed.rendezvous.failure_detector import FailureDetector, end_process
    from imagenet_ddp.distributed.rendezvous.gather_ranks import Roster, SharedError, gather_ranks, mistakes_given_up
    from imagenet_ddp.distributed.rendezvous.store import COMMANDS, connect
    from imagenet_ddp.engine.build import World

    timeout_s = config["cluster"]["timeout_s"]
    several = place.num_nodes > 1
    master = place.address if several else None
    variables, notes = nccl.interface_variables(master, not several, config["nccl"], os.environ)
    os.environ |= {**nccl.configured_variables(config["nccl"], os.environ), **variables}
    store = connect(place, timeout_s)
    local = place.local_world_size

    def label(rank: int) -> str:
        return f"rank {rank} (node {rank // local}, local rank {rank % local})" if several else f"rank {rank}"

    roll = Roster(
        place.world_size, "rank", label, "look at its own message; cluster.timeout_s sets how long is waited."
    )
    commands = PrefixStore(COMMANDS, store)  # one of them may have given up before its workers came
    gathering = gather_ranks(
        PrefixStore("ranks", store), roll, place.rank, {}, timeout_s, chief=place.rank == 0,
        given_up=lambda: mistakes_given_up(commands),
    )  # fmt: skip
    lifeline = None
    try:
        here = ["127.0.0.1"]
        if several:
            assert place.address
            here = [connectivity.own_address(os.environ, place.address)]  # the others' interface first
            here += [address for address in interfaces.reachable_addresses() if address not in here]
        lifeline = FailureDetector(gathering, here, label, end_process(f"rank {place.rank}"))
        mine = [each.plain() for each in devices.own_gpus(config["trainer"], place.local_rank)]
        said: list[str] = []

        def judge(told: list[Any]) -> list[str]:
            gpus = {rank: [gpu_names.Gpu(**each) for each in given["gpus"]] for rank, given in enumerate(told)}
            hosts = {rank: str(member["host"]) for rank, member in enumerate(gathering.members)}
            said.extend(gpu_names.lines(gpus, hosts, local))
            return devices.shared_gpus([gpus[rank][0].uuid if gpus[rank] else None for rank in gpus], label)

        gathering.collect("gpus", {"gpus": mine}, judge)
        if several:
            connectivity.try_both_ways(gathering, here[0])
    except ConfigError as error:
        if not isinstance(error, SharedError):
            gathering.give_up(error)
        if lifeline is not None:
            lifeline.end(wait=False)
        raise
    return World(place, store, lambda: connect(place, timeout_s), gathering, lifeline, tuple(notes), tuple(said))
