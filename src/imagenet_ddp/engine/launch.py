"""Launch a job: connect its commands, one per node or per rank, let them agree on the job, and start its processes."""

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from imagenet_ddp.cli import parse
from imagenet_ddp.cli.check_launch import find_place
from imagenet_ddp.cli.overrides import typed_config
from imagenet_ddp.config.keys import leaves
from imagenet_ddp.config.schema.commands import COMMANDS, CommonConfig
from imagenet_ddp.config.section import to_plain
from imagenet_ddp.distributed.launchers import slurm
from imagenet_ddp.distributed.launchers.detect import with_known_host
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.distributed.spawn import Workers, WorkersFailedError
from imagenet_ddp.engine.job import Job, received, should_requeue
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs import folder
from imagenet_ddp.system import console, idle_cores
from imagenet_ddp.system.cpu_cores import num_cores
from imagenet_ddp.system.process import import_torch
from imagenet_ddp.system.text import count_noun

if TYPE_CHECKING:
    from imagenet_ddp.distributed.meet import Meeting

T = TypeVar("T")

# Options that may differ between nodes: ranks, interfaces, mount points, the name of node 0.
MAY_DIFFER = re.compile(
    r"cluster\.(rank|local_rank|node_rank|address|secret_file)|nccl\.env(\..*IFNAME)?|data\.(root|train_dir|val_dir)|checkpoint|resume|out"
)
LEAVE_S, LEAVE_AFTER_FAILURE_S = 10.0, 2.0  # longest wait for the other nodes' commands at the end


def find_launcher(request: parse.Request, environ: Mapping[str, str]) -> Place:
    """Return information about the launcher that started this command. A job of a sweep detects its launcher on the
    machine where the job runs."""
    found = request.places[0]
    if found is None:
        found = find_place(_typed(request), environ, verb=request.verb, typed=request.typed)
    return with_known_host(found, environ)


def _typed(request: parse.Request) -> CommonConfig:
    return typed_config(request.configs[0], COMMANDS[request.verb], partial=True)


@dataclass(frozen=True)
class JoinedCommand:
    """This command among the commands of its job.

    meeting: the commands that have joined; None if this is the only one. first: the rank of this process, or of the
    first worker that this command starts; None without a meeting. Unless place.is_node, a launcher has started one
    command for each rank.
    """

    place: Place
    meeting: "Meeting | None" = None
    first: Place | None = None

    @classmethod
    def join(cls, request: parse.Request, place: Place) -> "JoinedCommand":
        """Wait for the other commands of this job, and compare their options. Raises ConfigError if they differ."""
        if place.local_rank == 0:
            idle_cores.register()
        if place.is_alone:
            return cls(place)
        # this package reports a rank that ends; torch's C++ code would also print a stack trace
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        with import_torch():
            from imagenet_ddp.distributed import join
            from imagenet_ddp.distributed.meet import SharedError
            from imagenet_ddp.engine import devices

        config = _typed(request)
        reports = place.local_rank == 0 or place.is_typed  # else this machine's first rank reports
        try:
            _expect_backend(config)
            num_local = devices.num_local_processes(config) if place.is_node else 1
        except ConfigError as error:
            if not reports:
                sys.exit(2)
            raise parse.NotMetError(error.mistakes, request) from error
        try:
            facts = facts_of_command(config, num_local if place.is_node else None)
            return cls(place, *join.join_commands(place, facts, num_local, config.cluster.timeout_s))
        except SharedError:
            if not reports:
                sys.exit(2)
            raise

    @property
    def num_local(self) -> int | None:
        """The number of processes that this node has announced to the others; None if nothing was announced."""
        return self.first.local_world_size if self.first and self.place.is_node else None

    def agree(self, decide: Callable[[], Job], request: parse.Request) -> Job:
        """Let command number 0 decide on the job for all commands, so that all use the same run folder, even if their
        clocks differ, and continue from the same checkpoint."""
        if self.meeting is None:
            return decide()
        from imagenet_ddp.distributed.join import share_file
        from imagenet_ddp.distributed.meet import SharedError

        meeting = self.meeting
        try:
            if meeting.number == 0:
                job = decide()
                job = replace(job, run_dir=job.run_dir.resolve())
                run_dir = {"run_dir": str(job.run_dir), "relative": os.path.relpath(job.run_dir)}
                meeting.broadcast("job", {**vars(job), **run_dir, "config": to_plain(job.config), "checkpoint": None})
                share_file(meeting, job.checkpoint)
                return job
            content = meeting.broadcast("job")
            job = received(content, request)
            checkpoint, run_dir = share_file(meeting, None), job.run_dir
            if meeting.members[0].machine != meeting.members[meeting.number].machine:
                run_dir = folder.make_elsewhere(run_dir, content["relative"])
        except ConfigError as error:
            if not isinstance(error, SharedError):
                meeting.refuse(error)
            raise
        return replace(job, run_dir=run_dir, checkpoint=checkpoint)

    def run(
        self, task: Callable[[Place, Any], T], payload: Any, config: CommonConfig, *, own_processes: bool = False
    ) -> T:
        """Call task(place, payload) in every process of this node. own_processes: start a separate process even if
        there is only one."""
        meeting, first = self.meeting, self.first
        if not self.place.is_node:
            return task(first or self.place, payload)
        with import_torch():
            from imagenet_ddp.engine import devices

        num_local = devices.num_local_processes(config)
        if first is None and num_local == 1 and not own_processes:
            return task(Place(), payload)
        if num_local > 1:
            _expect_backend(config)
            _warn_of_few_cores(num_local, devices.device_type(config.trainer.accelerator))
        if meeting is not None and first is not None and first.node_rank:
            _show_place(first, num_local, meeting.members[0].host)
        cores = idle_cores.count_cores() if config.cluster.num_threads == "auto" else None
        num_threads = cores.num if cores else num_local * int(config.cluster.num_threads)
        devices.take_cores(devices.device_type(config.trainer.accelerator), num_threads, num_local)
        workers, done = Workers(task, (payload,), num_local, first, cores), False
        try:
            result = workers.run()
            done = True
            return result
        except WorkersFailedError as error:
            here = first is None or first.node_rank == 0
            if here and isinstance(payload, Job) and should_requeue(payload, error.exit_code - 128, os.environ):
                error.is_requeued = slurm.requeue_and_print(os.environ)  # all workers have saved
            if meeting is not None and error.exit_code < 128:  # the other ranks may still be waiting for these workers
                who = meeting.name(meeting.number)
                reason = error.reason or f"the workers of {who} ended with exit code {error.exit_code}"
                meeting.fail(error.exit_code, f"{reason}. Hint: read that node's messages.")
            raise
        finally:
            if meeting is not None:
                meeting.leave(LEAVE_S if done else LEAVE_AFTER_FAILURE_S)

    def leave(self) -> None:
        """Leave the other commands of a job that needs no processes."""
        if self.meeting is not None and self.place.is_node:
            self.meeting.leave(LEAVE_S)


def facts_of_command(config: CommonConfig, num_local: int | None) -> dict[str, Any]:
    """Return, as plain JSON, what must be equal in all commands.

    config: the resolved config, as typed on this machine. num_local: number of workers that the command starts; None if
    the command is itself a rank.
    """
    from imagenet_ddp.distributed.compare_members import facts_of_code

    facts = facts_of_code()
    if num_local is not None:
        facts["the number of workers"] = num_local
    return facts | {key: value for key, value in leaves(config).items() if not MAY_DIFFER.fullmatch(key)}


def _expect_backend(config: CommonConfig) -> None:
    """Check once that several processes can train on this machine, because otherwise each of them would fail
    separately. Raises ConfigError."""
    from imagenet_ddp.engine import devices
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


def _show_place(first: Place, num_local: int, host: str) -> None:
    last = first.rank + num_local - 1
    ranks = f"rank {last}" if num_local == 1 else f"ranks {first.rank} to {last}"
    console.print_message(
        f"Node {first.node_rank} of {first.num_nodes} runs {ranks}. The rendezvous is at {first.address}. "
        f"Node 0 ({host}) shows the run.",
        sys.stdout,
    )
