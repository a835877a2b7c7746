"""Coordinate the commands of one job, one per node or per rank: join them, agree on one job, start the processes."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from imagenet_ddp.cli import parse
from imagenet_ddp.cli.overrides import plain
from imagenet_ddp.distributed.elastic_nodes import node_range
from imagenet_ddp.distributed.launchers import scontrol
from imagenet_ddp.distributed.launchers.detect import detect, with_known_host
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo, WorldInfo
from imagenet_ddp.distributed.spawn import Workers, WorkersFailedError
from imagenet_ddp.engine.job import Job, should_requeue
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs import folder
from imagenet_ddp.system import console

T = TypeVar("T")

LEAVE_S, LEAVE_AFTER_FAILURE_S = 10.0, 2.0  # longest wait for the other nodes' commands at the end

if TYPE_CHECKING:
    from imagenet_ddp.distributed.rendezvous.join import Rendezvous


def launch_info_of(request: parse.Request, environ: Mapping[str, str]) -> LaunchInfo:
    """Return the launcher around this command. A job of a sweep detects it where it runs."""
    found = request.launch_infos[0]
    if found is None:
        config = plain(request.configs[0], partial=True)
        found = detect(config, environ, verb=request.verb, typed=request.typed)
    return with_known_host(found, environ)


def join_commands(request: parse.Request, launch_info: LaunchInfo) -> "Rendezvous | None":
    """Wait for the other commands of this job and compare their options; return None if this is the only one."""
    if launch_info.standalone or (launch_info.world_info is not None and launch_info.world_info.world_size == 1):
        return None
    # a rank that ends is reported here; torch's C++ code would add its stack
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from imagenet_ddp.distributed import devices
    from imagenet_ddp.distributed.rendezvous import join
    from imagenet_ddp.distributed.rendezvous.rank_group import SharedError

    config = plain(request.configs[0], partial=True)
    place = launch_info.world_info
    speaks = place is None or place.local_rank == 0 or launch_info.manual  # else the first rank of this machine does
    try:
        _expect_backend(config)
        num_local = 1 if place else devices.num_local_processes(config)
    except ConfigError as error:
        if not speaks:
            sys.exit(2)
        raise parse.NotMetError(error.mistakes, request) from error
    try:
        return join.join_rendezvous(launch_info, config, num_local)
    except SharedError:
        if not speaks:
            sys.exit(2)
        raise


def _expect_backend(config: Mapping[str, Any]) -> None:
    """Check once that several processes can train here, before each of them fails separately."""
    from imagenet_ddp.distributed import devices
    from imagenet_ddp.distributed.strategies import backends

    if wrong := backends.validate(config["strategy"], devices.device_type(config["trainer"]["accelerator"])):
        raise ConfigError(wrong)


def agree(make: Callable[[], Job], rendezvous: "Rendezvous | None") -> Job:
    """Let number 0 decide for all: one folder, even if the clocks differ, and the checkpoint to continue from."""
    if rendezvous is None:
        return make()
    from imagenet_ddp.distributed.rendezvous.send_file import send_file

    group = rendezvous.rank_group
    if group.number == 0:
        try:
            job = make()
        except ConfigError as error:
            group.broadcast_error("job", error)
            raise
        job = replace(job, run_dir=job.run_dir.resolve())
        run_dir = {"run_dir": str(job.run_dir), "relative": os.path.relpath(job.run_dir)}
        group.broadcast("job", {**vars(job), **run_dir, "checkpoint": None})
        send_file(group, job.checkpoint)
        return job
    content = group.broadcast("job")
    relative, job = content.pop("relative"), Job(**content)
    run_dir = Path(job.run_dir)
    checkpoint = send_file(group, None)
    try:
        if group.members[0]["machine"] != group.members[group.number]["machine"]:
            must_share = node_range(job.config["trainer"]["num_nodes"]) is not None
            run_dir = folder.make_elsewhere(run_dir, relative, must_share)
    except ConfigError as error:
        group.abort(error)
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
    """Call task(world_info, payload) in every process of this node. own_processes: start one even if there is just
    one."""
    if launch_info.world_info is not None:
        return task(rendezvous.world_info if rendezvous else launch_info.world_info, payload)
    from imagenet_ddp.distributed import devices

    num_local = devices.num_local_processes(config)
    if rendezvous is None and num_local == 1 and not own_processes:
        return task(WorldInfo(), payload)
    if num_local > 1:
        _expect_backend(config)
    first = rendezvous.world_info if rendezvous else None
    if rendezvous is not None and first is not None and first.node_rank > 0:
        last = first.rank + num_local - 1
        ranks = f"rank {last}" if num_local == 1 else f"ranks {first.rank} to {last}"
        console.print_message(
            f"Node {first.node_rank} of {first.num_nodes}, {ranks}, rendezvous at "
            f"{first.address}:{first.port}. Node 0 ({rendezvous.rank_group.members[0]['host']}) shows the run.",
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
            error.is_requeued = scontrol.requeue_and_print(os.environ)  # the workers of this node, so all, have saved
        if rendezvous is not None and error.exit_code < 128:  # maybe before they joined the others, who would wait
            rendezvous.abort(f"its workers ended with exit code {error.exit_code}. Hint: look at its own message.")
        raise
    finally:
        if rendezvous is not None:
            rendezvous.leave(LEAVE_S if done else LEAVE_AFTER_FAILURE_S)
