"""One process of a run, from its first line to its exit code: meet the others, do the job, say what went wrong."""

import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from imagenet_ddp.distributed.launchers import scontrol
from imagenet_ddp.distributed.launchers.world_info import WorldInfo, spawned_world_info
from imagenet_ddp.distributed.rendezvous import address_file
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.runs.signals import Left, Signals, Stopped, exit_on_signal, leaving
from imagenet_ddp.system import console
from imagenet_ddp.system.heavy_imports import import_torch
from imagenet_ddp.system.text import first_line


def train(
    world_info: WorldInfo | None,
    config: dict[str, Any],
    run_dir: str,
    checkpoint: str | None,
    said: list[str],
    command: str,
) -> float | None:
    """In every process of a run. world_info: None in a worker that spawn.py started, which finds it in its environment.
    config: resolved, plain; said: lines from before, for the head of the log.

    The highest val/top1, a fraction; None without validation. Leaves by SystemExit with the project's exit codes.
    """
    signals = Signals().hold()

    def job(world: Any) -> float | None:
        with leaving(), import_torch():
            from imagenet_ddp.engine import fit

        return fit.run(config, world, Path(run_dir), checkpoint, said, command, signals)

    return run_in_process(job, world_info, config)


def evaluate(
    world_info: WorldInfo | None, config: dict[str, Any], run_dir: str, checkpoint: str, command: str
) -> float:
    """In every process of an evaluation; the top-1, a fraction."""
    exit_on_signal()

    def job(world: Any) -> float:
        with import_torch():
            from imagenet_ddp.engine import evaluate as engine_evaluate

        return engine_evaluate.run(config, world, Path(run_dir), Path(checkpoint), command)

    return run_in_process(job, world_info, config)


def run_in_process(
    job: Callable[[Any], Any], world_info: WorldInfo | None, config: Mapping[str, Any], met: Any = None
) -> Any:
    """met: the world, where this process has met it already."""
    world_info = world_info or spawned_world_info(os.environ) or WorldInfo()
    world = met
    typed = (
        world_info.world_size == 1 and spawned_world_info(os.environ) is None
    )  # this process is the command that was typed
    try:
        with leaving():
            with import_torch():
                from imagenet_ddp.engine.build import World  # torch from here on

            world = world or World(world_info)
            if world_info.world_size > 1 and met is None:
                world = join_world(world_info, config)
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
        if failure_detector := getattr(world, "failure_detector", None):  # no world: still importing torch
            failure_detector.fail(f"was stopped by {left.signal_name}", left.exit_code)
        if world_info.rank == 0:
            console.print_message(str(left))
        _end_at_once(left.exit_code)
    except Stopped as stop:
        world.leave()
        # a worker that spawn.py has started leaves this to the command that was typed
        here = spawned_world_info(os.environ) is None and world_info.rank == 0
        if here and scontrol.should_requeue(stop.signal_number, config, os.environ):
            scontrol.requeue_and_print(os.environ)  # all ranks have saved; this ends the job, and with it this process
        if world_info.world_size > 1:
            _end_at_once(128 + stop.signal_number)
        sys.exit(128 + stop.signal_number)
    except Exception as error:
        # shown here and whole: Hydra would cut the traceback down to its last line
        explained = isinstance(error, RunError)
        what = str(error) if explained else traceback.format_exc()
        if world_info.world_size == 1:
            console.print_message(what)
            sys.exit(1)
        cause = first_line(error)
        if world.failure_detector is None or world.failure_detector.fail(
            cause if explained else f"{type(error).__name__}: {cause}"
        ):
            console.print_message(f"rank {world_info.rank} failed:{' ' if explained else chr(10)}{what}")
        else:
            _end_for_other(world)
        _end_at_once(1)


def _refuse(error: ConfigError, world: Any) -> NoReturn:
    """Where all ranks were told the same, the first of each node says it; a rank's own mistake it says itself."""
    from imagenet_ddp.distributed.rendezvous.rank_group import SharedError

    world_info = world.world_info
    own = not isinstance(error, SharedError)
    if own and world.failure_detector is not None:
        world.failure_detector.fail(" ".join(error.mistakes), 2)
        if world.failure_detector.code > 128:  # the one that was stopped is no longer there to be met
            _end_for_other(world)
    if own or world_info.local_rank == 0:
        for mistake in error.mistakes:
            named = own and world_info.world_size > 1
            console.print_message(f"rank {world_info.rank}: {mistake}" if named else mistake)
    if world_info.rank == 0 and not world_info.store_is_served:
        time.sleep(1.0)  # the others read why from the store that this process serves
    _end_at_once(2)


def _end_for_other(world: Any) -> NoReturn:
    """Another rank's end came first, and what happened here follows from it."""
    console.print_message(f"rank {world.world_info.rank} ends because {world.failure_detector.failed}")
    _end_at_once(world.failure_detector.code if world.failure_detector.code > 128 else 1)


def _end_at_once(code: int) -> NoReturn:
    """Threads of Gloo, and of stores that wait for others, may hold up an orderly end, or abort it."""
    sys.stdout.flush()
    sys.stderr.flush()
    address_file.remove_own_files()
    os._exit(code)


def join_world(world_info: WorldInfo, config: Mapping[str, Any]) -> Any:
    """All ranks are there, each with a GPU of its own, and reach each other; interfaces are set."""
    from torch.distributed import PrefixStore

    from imagenet_ddp.distributed import devices, gpu_names
    from imagenet_ddp.distributed.network import interfaces, nccl
    from imagenet_ddp.distributed.rendezvous import connectivity
    from imagenet_ddp.distributed.rendezvous.failure_detector import FailureDetector, end_process
    from imagenet_ddp.distributed.rendezvous.gather_ranks import Roster, gather_ranks
    from imagenet_ddp.distributed.rendezvous.rank_group import SharedError, abort_mistakes
    from imagenet_ddp.distributed.rendezvous.store import COMMANDS, connect
    from imagenet_ddp.engine.build import World

    timeout_s = config["cluster"]["timeout_s"]
    several = world_info.num_nodes > 1
    master = world_info.address if several else None
    variables, notes = nccl.network_variables(master, not several, config["nccl"], os.environ)
    os.environ |= {**nccl.variables(config["nccl"], os.environ), **variables}
    store = connect(world_info, timeout_s)
    local = world_info.local_world_size

    def label(rank: int) -> str:
        return f"rank {rank} (node {rank // local}, local rank {rank % local})" if several else f"rank {rank}"

    roster = Roster(
        world_info.world_size, "rank", label, "look at its own message; cluster.timeout_s sets the longest wait."
    )
    commands = PrefixStore(COMMANDS, store)  # one of them may have given up before its workers came
    rank_group = gather_ranks(
        PrefixStore("ranks", store), roster, world_info.rank, {}, timeout_s, leader=world_info.rank == 0,
        aborted=lambda: abort_mistakes(commands),
    )  # fmt: skip
    failure_detector = None
    try:
        here = ["127.0.0.1"]
        if several:
            assert world_info.address
            here = [connectivity.own_address(os.environ, world_info.address)]  # the others' interface first
            here += [address for address in interfaces.reachable_addresses() if address not in here]
        failure_detector = FailureDetector(rank_group, here, label, end_process(f"rank {world_info.rank}"))
        mine = [each.plain() for each in devices.own_gpus(config["trainer"], world_info.local_rank)]
        said: list[str] = []

        def judge(told: list[Any]) -> list[str]:
            gpus = {rank: [gpu_names.Gpu(**each) for each in given["gpus"]] for rank, given in enumerate(told)}
            hosts = {rank: str(member["host"]) for rank, member in enumerate(rank_group.members)}
            said.extend(gpu_names.lines(gpus, hosts, local))
            return devices.shared_gpus([gpus[rank][0].uuid if gpus[rank] else None for rank in gpus], label)

        rank_group.check_all("gpus", {"gpus": mine}, judge)
        if several:
            connectivity.check_connectivity(rank_group, here[0])
    except ConfigError as error:
        if not isinstance(error, SharedError):
            rank_group.abort(error)
        if failure_detector is not None:
            failure_detector.end(wait=False)
        raise
    return World(
        world_info,
        store,
        lambda: connect(world_info, timeout_s),
        rank_group,
        failure_detector,
        tuple(notes),
        tuple(said),
    )
