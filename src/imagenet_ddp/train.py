"""python -m imagenet_ddp.train: check the options, decide the folder, start the processes. See the README."""

import os
import sys

from omegaconf import DictConfig

from imagenet_ddp.cli import command, mistakes, parse
from imagenet_ddp.distributed.spawn import WorkersFailedError
from imagenet_ddp.engine import coordinate, sweep, worker
from imagenet_ddp.engine import job as engine_job
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs import folder
from imagenet_ddp.runs.signals import Left, Signals, leaving
from imagenet_ddp.system import console


def main() -> float | None:
    """The best val/top1, a fraction. Exit codes: 2 refused, 128 + n stopped by signal n, 1 failed."""
    Signals().hold()
    try:
        with leaving():
            request = parse.command_line("train", sweep.resumed(sys.argv[1:]), os.environ)
        if request.passthrough:
            return command.with_hydra("train", request.argv, lambda config: None)
        if not request.multirun:
            return _single(request)
        number = sweep.own_job(request, os.environ)
        return sweep.run(request, _job) if number is None else _single(sweep.only(request, number, os.environ))
    except ConfigError as error:
        mistakes.refuse(error)
    except WorkersFailedError as error:
        error.exit()
    except Left as left:
        console.print_message(str(left))
        raise


def _single(request: parse.Request) -> float | None:
    return _start(request, own_processes=False)


def _job(request: parse.Request) -> float | None:
    """One of several that this process starts: in processes of its own, so that nothing of it stays for the next."""
    return _start(request, own_processes=True)


def _start(request: parse.Request, *, own_processes: bool) -> float | None:
    with leaving():
        rendezvous = coordinate.rendezvous_of(request, os.environ)
        met = coordinate.meet(request, rendezvous)
        num_local = met.place.local_world_size if met and met.starts_workers else None
        job = coordinate.agree(lambda: engine_job.decide(request, os.environ, rendezvous, num_local), met)
    if job.finished:
        for line in job.said:
            console.print_message(line, sys.stdout)
        if met is not None:
            met.leave()
        return folder.summary(job.run_dir).get("best/val/top1")
    arguments = (job.config, str(job.run_dir), str(job.checkpoint) if job.checkpoint else None, list(job.said),
                 engine_job.command("train", sys.argv[1:]))  # fmt: skip

    def task(_: DictConfig) -> float | None:
        # the config is that of the command line, or of the resumed run with the command line on top
        return coordinate.run(worker.train, arguments, job.config, met, rendezvous, own_processes=own_processes)

    try:
        if own_processes:
            return task(request.configs[0])
        return command.with_hydra("train", engine_job.in_folder(request.argv, "hydra.run.dir", job.run_dir), task)
    except (ConfigError, WorkersFailedError, Left) as error:
        if job.checkpoint is None:
            folder.remove_refused(job.run_dir, error)
        raise


if __name__ == "__main__":
    main()
