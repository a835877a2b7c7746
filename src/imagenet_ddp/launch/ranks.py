"""Begin and end the process of a rank: meet the other ranks, make the plan, turn every outcome into an exit code."""

import os
import sys
import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.distributed.spawn import GONE, LOST
from imagenet_ddp.errors import ConfigError, RunError, SharedError
from imagenet_ddp.launch.job import Job, after_loss, after_stop
from imagenet_ddp.runs import folder
from imagenet_ddp.runs.signals import SignalExit, Stopped, raise_on_signal
from imagenet_ddp.system import console
from imagenet_ddp.system.process import command_is_gone, exit_at_once, import_torch
from imagenet_ddp.system.say_once import say_once
from imagenet_ddp.system.text import first_line

if TYPE_CHECKING:
    from imagenet_ddp.distributed.connection import FailureWatch
    from imagenet_ddp.launch.plan import Plan
    from imagenet_ddp.launch.world import World


def plan_process(job: Job, world: "World") -> "Plan":
    """Make the plan, and apply the values that concern the whole process."""
    from imagenet_ddp.launch import devices, plan
    from imagenet_ddp.launch.world import agree_on_devices

    made = plan.make_plan(
        job.config,
        world.place,
        world.device,
        job.global_batch_size_before,
        keep_global_batch_size=job.keep_global_batch_size,
        threads_before=job.threads_before,
    )
    made = agree_on_devices(made, world)
    kind, num_threads, num_local = made.accelerator.value, made.num_threads.value, world.place.local_world_size
    devices.set_up_process(kind, num_threads)
    devices.take_cores(kind, num_local * num_threads, num_local)
    if job.config.trainer.deterministic:
        # Lightning sets this variable too late. torch reads it only once, at the first matrix product, which can be in
        # the batch finder.
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    return made


def with_checkpoint(job: Job, world: "World") -> Job:
    """Return the job with the path of its checkpoint on this machine, to which rank 0 sends it if it is not there."""
    if world.meeting is None or job.checkpoint is None:
        return job
    from imagenet_ddp.distributed.connection import share_file

    return replace(job, checkpoint=share_file(world.meeting, job.checkpoint))


@contextmanager
def met_ranks(
    place: Place,
    config: CommonConfig,
    facts: Mapping[str, Any] = {},
    *,
    world: "World | None" = None,
    job: Job | None = None,
) -> Generator["World"]:
    """Meet the other ranks, run the block, and turn every outcome into one exit code for all ranks. facts: see
    meet_ranks. world: the connection of a process that has already met the others. job: one that SLURM may requeue
    after a stop, and whose folder goes if it is refused."""
    is_command = place.world_size == 1 and not place.is_worker  # this process is the command that was typed
    try:
        with raise_on_signal():
            with import_torch():
                from imagenet_ddp.launch.world import meet_ranks  # imports torch

            if world is None:
                world = meet_ranks(place, config, facts)
        if world.watch is not None and job is not None and not place.is_worker:
            world.watch.when_lost = partial(after_loss, job, place, os.environ)
        yield world
        world.leave()
    except (ConfigError, SignalExit) as error:
        if is_command:
            raise  # reported by the command that was typed
        watch = world.watch if world else None
        own_folder = job.run_dir if job and job.has_new_folder and not place.is_worker else None
        if own_folder is not None and place.local_rank == 0 and getattr(error, "code", 2) == 2:
            folder.remove_refused(own_folder, error)
        _refuse(error, place, watch) if isinstance(error, ConfigError) else _end_at_start(error, place, watch, job)
    except Stopped as stop:
        assert world is not None  # only the block raises Stopped
        code = 128 + stop.signal_number
        if stop.lost_node is not None:
            code = LOST
            if place.rank:  # the log of rank 0 is on its terminal
                reason = world.command_gone(stop.lost_node)
                say_once(f"rank {place.rank} ends because {reason}", about=reason)
        world.leave()
        if stop.lost_node is None:
            _after_stop(job, place, stop.signal_number)
        (exit_at_once if place.world_size > 1 else sys.exit)(code)
    except BaseException as error:  # SystemExit of a user's own code would otherwise count as a success
        _fail(error, place, world.watch if world else None)


def _after_stop(job: Job | None, place: Place, signal_number: int) -> None:
    # a worker started by spawn.py leaves this to the command that was typed
    if job is not None and not place.is_worker and place.rank == 0:
        after_stop(job, place, signal_number, os.environ)  # a requeue ends the job and this process


def _refuse(error: ConfigError, place: Place, watch: "FailureWatch | None") -> NoReturn:
    """Print an error of all ranks, or of this one."""
    own = not isinstance(error, SharedError)
    if own and watch is not None:
        watch.fail(" ".join(map(str, error.mistakes)), 2)
        if watch.code > 128:  # this error follows from the stop of another rank
            watch.end_process()
    for mistake in error.mistakes:
        say_once(f"rank {place.rank}: {mistake}" if own and place.world_size > 1 else str(mistake), about=str(mistake))
    exit_at_once(error.code if isinstance(error, SharedError) else 2)


def _end_at_start(left: SignalExit, place: Place, watch: "FailureWatch | None", job: Job | None) -> NoReturn:
    """End a process that was stopped before there was anything to save."""
    if watch is not None:
        watch.fail(f"was stopped by {left.signal_name}", left.exit_code)
        if watch.is_lost:  # the command of this node, or another rank
            watch.end_process()
    if place.rank == 0:
        gone = f"The command of this run {GONE}. There was nothing to save yet."
        console.print_message(gone if place.is_worker and command_is_gone() else str(left))
        _after_stop(job, place, left.exit_code - 128)
    exit_at_once(left.exit_code)


def _fail(error: BaseException, place: Place, watch: "FailureWatch | None") -> NoReturn:
    """Print why this rank failed, or which other rank's failure caused it, and let the others end."""
    explained = isinstance(error, RunError)
    what = str(error) if explained else traceback.format_exc()
    if place.world_size == 1:
        console.print_message(what)
        sys.exit(1)
    cause = first_line(error) if explained else f"{type(error).__name__}: {first_line(error)}"
    if watch is not None and not watch.fail(cause, follows=_is_lost_connection(error)):
        watch.end_process()
    console.print_message(f"rank {place.rank} failed:{' ' if explained else chr(10)}{what}")
    exit_at_once(1)


def _is_lost_connection(error: BaseException) -> bool:
    from torch.distributed import DistError

    return isinstance(error, DistError) or (isinstance(error, RuntimeError) and "gloo/" in str(error))
