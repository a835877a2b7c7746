"""Coordinate the commands of one job, one per node or per rank: connect them, make them agree on the job, and start its
processes."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from imagenet_ddp.cli import parse
from imagenet_ddp.cli.overrides import typed_config
from imagenet_ddp.config.schema.commands import COMMANDS
from imagenet_ddp.config.section import to_config, to_plain
from imagenet_ddp.distributed.launchers import slurm_requeue
from imagenet_ddp.distributed.launchers.detect import detect, with_known_host
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo, WorldInfo
from imagenet_ddp.distributed.spawn import Workers, WorkersFailedError
from imagenet_ddp.engine.job import Job, should_requeue
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs import folder
from imagenet_ddp.system import console
from imagenet_ddp.system.cpu_cores import num_cores
from imagenet_ddp.system.text import count_noun

T = TypeVar("T")

LEAVE_S, LEAVE_AFTER_FAILURE_S = 10.0, 2.0  # longest wait for the other nodes' commands at the end

if TYPE_CHECKING:
    from imagenet_ddp.distributed.join import Rendezvous


def launch_info_of(request: parse.Request, environ: Mapping[str, str]) -> LaunchInfo:
    """Return information about the launcher that started this command. A job of a sweep detects its launcher on the
    machine where the job runs."""
    found = request.launch_infos[0]
    if found is None:
        config = typed_config(request.configs[0], COMMANDS[request.verb], partial=True)
        found = detect(config, environ, verb=request.verb, typed=request.typed)
    return with_known_host(found, environ)


def join_commands(request: parse.Request, launch_info: LaunchInfo) -> "Rendezvous | None":
    """Wait for the other commands of this job and compare their options; return None if this is the only one."""
    if launch_info.standalone or (launch_info.world_info is not None and launch_info.world_info.world_size == 1):
        return None
    # this package reports a rank that ends; torch's C++ code would also print a stack trace
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from imagenet_ddp.distributed import devices, join
    from imagenet_ddp.distributed.meet import SharedError

    config = typed_config(request.configs[0], COMMANDS[request.verb], partial=True)
    place = launch_info.world_info
    speaks = place is None or place.local_rank == 0 or launch_info.manual  # else this machine's first rank reports
    try:
        _expect_backend(config)
        num_local = 1 if place else devices.num_local_processes(config)
    except ConfigError as error:
        if not speaks:
            sys.exit(2)
        raise parse.NotMetError(error.mistakes, request) from error
    try:
        return join.join_commands(launch_info, config, num_local, config["cluster"]["timeout_s"])
    except SharedError:
        if not speaks:
            sys.exit(2)
        raise


def _expect_backend(config: Mapping[str, Any]) -> None:
    """Check once that several processes can train on this machine, because otherwise each of them would fail
    separately. Raises ConfigError."""
    from imagenet_ddp.distributed import devices
    from imagenet_ddp.distributed.strategies import process_group

    kind, sync = devices.device_type(config["trainer"]["accelerator"]), config["trainer"]["sync_batchnorm"]
    if wrong := process_group.validate(config["strategy"], kind, sync_batchnorm=sync):
        raise ConfigError(wrong)


def _warn_of_few_cores(num_local: int, device_type: str) -> None:
    if device_type == "cpu" and num_local > (cores := num_cores()):
        console.print_message(
            f"{num_local} processes share {count_noun(cores, 'CPU core')}: they wait for each other in every step, and "
            f"need {num_local} times the memory of one. Hint: set trainer.devices={cores}.",
            sys.stdout,
        )


def agree(make: Callable[[], Job], rendezvous: "Rendezvous | None", verb: str) -> Job:
    """Let command number 0 decide on the job for all commands, so that all use the same run folder, even if their
    clocks differ, and continue from the same checkpoint. make: function that decides on the job of this command."""
    if rendezvous is None:
        return make()
    from imagenet_ddp.distributed.join import share_file

    meeting = rendezvous.meeting
    if meeting.number == 0:
        try:
            job = make()
        except ConfigError as error:
            meeting.abort(error)
            raise
        job = replace(job, run_dir=job.run_dir.resolve())
        run_dir = {"run_dir": str(job.run_dir), "relative": os.path.relpath(job.run_dir)}
        meeting.broadcast("job", {**vars(job), **run_dir, "config": to_plain(job.config), "checkpoint": None})
        share_file(meeting, job.checkpoint)
        return job
    content = meeting.broadcast("job")
    relative, run_dir = content.pop("relative"), Path(content["run_dir"])
    job = Job(**{**content, "config": to_config(content["config"], COMMANDS[verb])})
    checkpoint = share_file(meeting, None)
    try:
        if meeting.members[0]["machine"] != meeting.members[meeting.number]["machine"]:
            run_dir = folder.make_elsewhere(run_dir, relative)
    except ConfigError as error:
        meeting.abort(error)
        raise
    return replace(job, run_dir=run_dir, checkpoint=checkpoint, messages=tuple(job.messages))


def run_job(
    task: Callable[[WorldInfo, Any], T],
    payload: Any,
    config: Mapping[str, Any],
    rendezvous: "Rendezvous | None",
    launch_info: LaunchInfo,
    *,
    own_processes: bool = False,
) -> T:
    """Call task(world_info, payload) in every process of this node. own_processes: start a separate process even if
    there is only one."""
    if launch_info.world_info is not None:
        return task(rendezvous.world_info if rendezvous else launch_info.world_info, payload)
    from imagenet_ddp.distributed import devices

    num_local = devices.num_local_processes(config)
    if rendezvous is None and num_local == 1 and not own_processes:
        return task(WorldInfo(), payload)
    if num_local > 1:
        _expect_backend(config)
        _warn_of_few_cores(num_local, devices.device_type(config["trainer"]["accelerator"]))
    first = rendezvous.world_info if rendezvous else None
    if rendezvous is not None and first is not None and first.node_rank > 0:
        last = first.rank + num_local - 1
        ranks = f"rank {last}" if num_local == 1 else f"ranks {first.rank} to {last}"
        console.print_message(
            f"Node {first.node_rank} of {first.num_nodes} runs {ranks}. The rendezvous is at "
            f"{first.address}:{first.port}. Node 0 ({rendezvous.meeting.members[0]['host']}) shows the run.",
            sys.stdout,
        )
    workers = Workers(task, (payload,), num_local, first, config["cluster"]["timeout_s"])
    done = False
    try:
        result = workers.run()
        done = True
        return result
    except WorkersFailedError as error:
        here = first is None or first.node_rank == 0
        if here and isinstance(payload, Job) and should_requeue(payload, error.exit_code - 128, os.environ):
            error.is_requeued = slurm_requeue.requeue_and_print(os.environ)  # all workers have saved
        if rendezvous is not None and error.exit_code < 128:  # the other ranks may still be waiting for these workers
            who = rendezvous.meeting.name(rendezvous.meeting.number)
            reason = error.reason or f"the workers of {who} ended with exit code {error.exit_code}"
            rendezvous.abort(error.exit_code, f"{reason}. Hint: read that node's messages.")
        raise
    finally:
        if rendezvous is not None:
            rendezvous.leave(LEAVE_S if done else LEAVE_AFTER_FAILURE_S)
