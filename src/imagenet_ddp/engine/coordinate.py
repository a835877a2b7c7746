"""This command and the others of the same run: meet, agree on one folder and one checkpoint, start this node's
workers. Once per command."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagenet_ddp.cli import parse
from imagenet_ddp.distributed.launchers import scontrol
from imagenet_ddp.distributed.launchers.detect import detect, with_known_host
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo
from imagenet_ddp.distributed.spawn import Workers, WorkersFailedError
from imagenet_ddp.distributed.strategies import batch_split
from imagenet_ddp.distributed.validate import has_no_gpu
from imagenet_ddp.engine.job import Job, plain
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system import console

LEAVE_S, LEAVE_AFTER_FAILURE_S = 10.0, 2.0  # longest wait for the other nodes' commands at the end

if TYPE_CHECKING:
    from imagenet_ddp.distributed.rendezvous.join import Rendezvous
    from imagenet_ddp.distributed.rendezvous.rank_group import RankGroup


def launch_info_of(request: parse.Request, environ: Mapping[str, str]) -> LaunchInfo:
    """What this command is among others: of a config that cli/parse.py found good."""
    config = plain(request.configs[0], partial=True)
    cpu = has_no_gpu(config["trainer"]) is not None
    return with_known_host(detect(config, environ, verb=request.verb, typed=request.typed, cpu=cpu), environ)


def meet(request: parse.Request, launch_info: LaunchInfo) -> "Rendezvous | None":
    """The other commands of this run, once all are there with the same options; None where this is the only one."""
    if launch_info.standalone or (launch_info.world_info is not None and launch_info.world_info.world_size == 1):
        return None
    # a peer that ends is said in our words; torch's C++ would add its stack
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from imagenet_ddp.distributed import devices
    from imagenet_ddp.distributed.rendezvous import join
    from imagenet_ddp.distributed.rendezvous.rank_group import SharedError

    config = plain(request.configs[0], partial=True)
    world_info = launch_info.world_info
    speaks = (
        world_info is None or world_info.local_rank == 0 or launch_info.manual
    )  # else the first rank of this machine does
    try:
        _expect_backend(config)
        num_local = 1 if world_info else devices.count(devices.local_devices(config["trainer"]))
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
    """Several processes can train here; asked once, before each would find out by itself."""
    from imagenet_ddp.distributed import devices
    from imagenet_ddp.distributed.strategies import backends

    if wrong := backends.mistake(config["strategy"], devices.accelerator(config["trainer"]["accelerator"])):
        raise ConfigError(wrong)


def agree(make: Callable[[], Job], met: "Rendezvous | None") -> Job:
    """Number 0's decision on all: one folder, whatever the clocks say, and the checkpoint it goes on from."""
    if met is None:
        return make()
    from imagenet_ddp.distributed.rendezvous.send_file import send_file

    rank_group = met.rank_group
    if rank_group.number == 0:
        try:
            job = make()
        except ConfigError as error:
            rank_group.broadcast_error("job", error)
            raise
        run_dir = job.run_dir.resolve()
        rank_group.broadcast("job", [job.config, str(run_dir), os.path.relpath(run_dir), job.said, job.finished])
        send_file(rank_group, job.checkpoint)
        return replace(job, run_dir=run_dir)
    config, run_dir, relative, said, finished = rank_group.broadcast("job", None)
    checkpoint = send_file(rank_group, None)
    try:
        folder_here = _folder_here(Path(run_dir), relative, rank_group)
    except ConfigError as error:
        rank_group.abort(error)
        raise
    return Job(config, folder_here, checkpoint, tuple(said), finished)


def _folder_here(run_dir: Path, relative: str, rank_group: "RankGroup") -> Path:
    """Number 0's folder where its disk is shared; else one of this machine's own, for its logs."""
    elsewhere = rank_group.members[0]["machine"] != rank_group.members[rank_group.number]["machine"]
    if not elsewhere or run_dir.is_dir():
        return run_dir
    own = run_dir if relative.startswith("..") else Path(relative).resolve()
    try:
        own.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{own} cannot be made on this machine for its logs: {error.strerror}. Hint: a relative hydra.run.dir."
        ) from error
    return own


def run(
    worker: Callable[..., Any],
    arguments: tuple,
    config: Mapping[str, Any],
    met: "Rendezvous | None",
    launch_info: LaunchInfo,
    *,
    own_processes: bool,
) -> Any:
    """worker(world_info, *arguments) in every process of this node. own_processes: also where it is one (a job of a
    sweep)."""
    if launch_info.world_info is not None:
        return worker(met.world_info if met else launch_info.world_info, *arguments)
    from imagenet_ddp.distributed import devices

    num_local = batch_split.processes(config["strategy"], devices.count(devices.local_devices(config["trainer"])))
    if met is None and num_local == 1 and not own_processes:
        return worker(None, *arguments)
    if num_local > 1:
        _expect_backend(config)
    first = met.world_info if met else None
    if met is not None and first is not None and first.node_rank > 0:
        last = first.rank + num_local - 1
        ranks = f"rank {last}" if num_local == 1 else f"ranks {first.rank} to {last}"
        console.print_message(
            f"Node {first.node_rank} of {first.num_nodes}, {ranks}, met at "
            f"{first.address}:{first.port}. Node 0 ({met.rank_group.members[0]['host']}) shows the run.",
            sys.stdout,
        )
    workers = Workers(worker, (None, *arguments), num_local, first, config["cluster"]["timeout_s"])
    done = False
    try:
        result = workers.run()
        done = True
        return result
    except WorkersFailedError as error:
        here = first is None or first.node_rank == 0
        if here and scontrol.should_requeue(error.exit_code - 128, config, os.environ):
            error.is_requeued = scontrol.requeue_and_print(os.environ)  # the workers of this node, so all, have saved
        if met is not None and error.exit_code < 128:  # maybe before they met the others, who would wait for them
            met.abort(f"its workers ended with exit code {error.exit_code}. Hint: look at its own message.")
        raise
    finally:
        if met is not None:
            met.leave(LEAVE_S if done else LEAVE_AFTER_FAILURE_S)
