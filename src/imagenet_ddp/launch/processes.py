"""Launch a job: connect to the other commands, one per node or per rank, share the job, and start its processes."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from imagenet_ddp.cli import parse
from imagenet_ddp.cli.check_launch import find_place
from imagenet_ddp.cli.compose import selected
from imagenet_ddp.cli.other_command import is_of_other
from imagenet_ddp.config import own_code
from imagenet_ddp.config.schema.keys import is_per_machine
from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.config.section import leaves
from imagenet_ddp.data.sources.base import Scan
from imagenet_ddp.data.sources.registry import scan
from imagenet_ddp.distributed.launchers.detect import with_known_host
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.distributed.spawn import Workers, WorkersFailedError
from imagenet_ddp.errors import ConfigError, SharedError
from imagenet_ddp.launch.job import Job, after_stop
from imagenet_ddp.launch.job_message import from_message, to_message
from imagenet_ddp.runs import folder
from imagenet_ddp.runs.signals import raise_on_signal
from imagenet_ddp.system import console, idle_cores
from imagenet_ddp.system.bounded_wait import said_while_slow
from imagenet_ddp.system.cpu_cores import num_cores
from imagenet_ddp.system.process import import_torch
from imagenet_ddp.system.say_once import say_once
from imagenet_ddp.system.text import count_noun

if TYPE_CHECKING:
    from imagenet_ddp.distributed.commands import Commands

T = TypeVar("T")

LEAVE_S, LEAVE_AFTER_FAILURE_S = 10.0, 2.0  # longest wait for the other nodes' commands at the end


def begin(request: parse.Request, environ: Mapping[str, str]) -> "tuple[Place, Commands | None]":
    """Say what begins, find the launcher that started this command, and connect to the other commands."""
    _say_begin(request)
    place = request.place
    if place is None:  # a job of a sweep, which may run on another machine than the command that was checked
        place = find_place(request.values(CommonConfig), environ, verb=request.verb, typed=request.typed)
    return connect(request, with_known_host(place, environ))


def _say_begin(request: parse.Request) -> None:
    """Say what begins, before torch is imported, which may take a minute on a busy machine."""
    config = request.values(CommonConfig)
    net, data = config.model.target or config.model.name, config.data
    of_images = f" on {data.root or data.target or data.name}"
    if request.verb == "train":
        resume = selected(request.config, "resume")
        what = f"Continuing {resume}" if resume not in (None, "auto") else f"Training {net}{of_images}"
    else:
        checkpoint = selected(request.config, "checkpoint")
        doing = "Evaluating" if request.verb == "evaluate" else "Computing features with"
        what = f"{doing} {checkpoint}" if checkpoint else f"{doing} {net}{of_images}"
    loading = "" if is_of_other() else " Loading PyTorch."  # the command that has started this one says it
    say_once(f"{what}.{loading}", lambda text: console.print_message(text, sys.stdout))


def connect(request: parse.Request, place: Place) -> "tuple[Place, Commands | None]":
    """Connect to the other commands of this job. Return this command's place among them, and the connection; None if
    this is the only command. Raises ConfigError."""
    if place.local_rank == 0:
        idle_cores.register()
    if place.is_alone:
        return place, None
    # this package reports a rank that ends; torch's C++ code would also print a stack trace
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    with import_torch():
        from imagenet_ddp.distributed.commands import connect_commands
        from imagenet_ddp.launch import devices

    config = request.values(CommonConfig)
    try:
        _expect_backend(config)
        num_local = devices.num_local_processes(config) if place.is_node else 1
    except ConfigError as error:
        raise parse.RefusedError(error.mistakes, request) from error
    compared = compared_options(config, request.verb) | own_code.digests(config)
    try:
        commands = connect_commands(place, compared, num_local, config.cluster.timeout_s)
    except ConfigError as error:
        if place.number != 0 or isinstance(error, SharedError):
            raise
        raise parse.RefusedError(error.mistakes, request) from error  # number 0, for which the others wait
    return commands.place, commands


def share_job(commands: "Commands | None", decide: Callable[[], Job], request: parse.Request) -> Job:
    """Let command number 0 decide on the job for all commands, so that all use the same run folder, even if their
    clocks differ, and continue from the same checkpoint."""
    if commands is None:
        return replace(decide(), scan=request.scan)
    try:
        if commands.place.number == 0:
            job = decide()
            job = replace(job, run_dir=job.run_dir.resolve())
            commands.post_job(to_message(job))
        else:
            content, is_elsewhere = commands.wait_for_job()
            job = from_message(content, request)
            if is_elsewhere:
                job = replace(job, run_dir=folder.make_elsewhere(job.run_dir, content["relative"]))
        return replace(job, scan=request.scan)
    except ConfigError as error:
        if not isinstance(error, SharedError):
            commands.refuse(error)
        raise


def run_ranks(
    task: Callable[..., T],
    payload: Any,
    config: CommonConfig,
    place: Place,
    commands: "Commands | None",
    *,
    own_processes: bool = False,
) -> T:
    """Call task(place, payload, facts of the command) in every process of this node, or in this one if it is a rank.
    own_processes: start a separate process even if there is only one."""
    facts = commands.facts if commands else {}
    if not place.is_node:
        return task(place, payload, facts)
    with import_torch():
        from imagenet_ddp.launch import devices

    num_local = devices.num_local_processes(config)
    if commands is None and num_local == 1 and not own_processes:
        return task(Place(), payload, facts)
    if num_local > 1:
        _expect_backend(config)
        _warn_of_few_cores(num_local, devices.device_type(config.trainer.accelerator))
    if commands is not None and place.node_rank:
        _show_place(place, commands.first_host())
    cores = idle_cores.count_cores() if config.cluster.num_threads == "auto" else None
    num_threads = cores.num if cores else num_local * int(config.cluster.num_threads)
    devices.take_cores(devices.device_type(config.trainer.accelerator), num_threads, num_local)
    done = False
    try:
        if isinstance(payload, Job):
            # a network disk may take many minutes to list its images
            with raise_on_signal(), said_while_slow("Listing the images"):
                payload = replace(payload, scan=_look(payload))
        result = Workers(task, (payload, facts), num_local, place if commands else None, cores).run()
        done = True
        return result
    except WorkersFailedError as error:
        here = commands is None or place.node_rank == 0
        if here and isinstance(payload, Job) and error.exit_code > 128:
            error.is_requeued = after_stop(payload, place, error.exit_code - 128, os.environ)
        if commands is not None and error.exit_code < 128:  # the other ranks may still be waiting for these workers
            reason = error.reason or f"the workers of {commands.name} ended with exit code {error.exit_code}"
            commands.fail(error.exit_code, f"{reason}. Hint: read that node's messages.")
        raise
    finally:
        if commands is not None:
            commands.leave(LEAVE_S if done else LEAVE_AFTER_FAILURE_S)


def _look(job: Job) -> Scan | None:
    """Look at the images once for all ranks of this node, unless the command has, with the options of the job. Return
    None if each rank must look itself: at a source of the user's own, and at one with mistakes, of which the ranks
    inform each other."""
    config, found = job.config, job.scan
    purpose = config.purpose
    if purpose is None or config.data.target or (found and found.fits(config.data, config.seed, purpose)):
        return found
    found = scan(config.data, config.seed, purpose)
    return None if found.mistakes else found


def compared_options(config: CommonConfig, verb: str) -> dict[str, Any]:
    """Return, as plain JSON, the options that must be equal in all commands. config: the resolved config, as typed on
    this machine. verb: name of the command."""
    return {key: value for key, value in leaves(config).items() if not is_per_machine(key, verb)}


def _expect_backend(config: CommonConfig) -> None:
    """Check once that several processes can train on this machine, because otherwise each of them would fail
    separately. Raises ConfigError."""
    from imagenet_ddp.launch import devices
    from imagenet_ddp.strategies import process_group

    kind, sync = devices.device_type(config.trainer.accelerator), config.trainer.sync_batchnorm
    if wrong := process_group.validate(config.strategy, kind, sync_batchnorm=sync):
        raise ConfigError(wrong)


def _warn_of_few_cores(num_local: int, device_type: str) -> None:
    if device_type == "cpu" and num_local > (cores := num_cores()):
        console.print_message(
            f"{num_local} processes share {count_noun(cores, 'CPU core')}: they wait for each other in every step, and "
            f"need {num_local} times the memory of one. Hint: set trainer.devices={cores}.",
            sys.stdout,
        )


def _show_place(place: Place, host: str) -> None:
    assert place.node_rank is not None
    console.print_message(
        f"Node {place.node_rank} of {place.num_nodes} runs {place.ranks_of(place.node_rank)}. The rendezvous is at "
        f"{place.address}. "
        f"Node 0 ({host}) shows the run.",
        sys.stdout,
    )
