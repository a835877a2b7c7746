"""python -m imagenet_ddp.train: check the options, decide the folder, start the processes. See the README."""

import os
import sys

from omegaconf import DictConfig

from imagenet_ddp import check, screen, session, shell, sweep, together, worker
from imagenet_ddp.distributed.launch import WorkersFailedError
from imagenet_ddp.run import folder
from imagenet_ddp.run.signals import Left, Signals, leaving
from imagenet_ddp.schema import ConfigError


def main() -> float | None:
    """The best val/top1, a fraction. Exit codes: 2 refused, 128 + n stopped by signal n, 1 failed."""
    Signals().hold()
    try:
        with leaving():
            request = check.command_line("train", sweep.resumed(sys.argv[1:]), os.environ)
        if request.passthrough:
            return shell.with_hydra("train", request.argv, lambda config: None)
        if not request.multirun:
            return _single(request)
        number = sweep.own_job(request, os.environ)
        return sweep.run(request, _job) if number is None else _single(sweep.only(request, number, os.environ))
    except ConfigError as error:
        check.refuse(error)
    except WorkersFailedError as error:
        error.exit()
    except Left as left:
        screen.say(str(left))
        raise


def _single(request: check.Request) -> float | None:
    return _start(request, own_processes=False)


def _job(request: check.Request) -> float | None:
    """One of several that this process starts: in processes of its own, so that nothing of it stays for the next."""
    return _start(request, own_processes=True)


def _start(request: check.Request, *, own_processes: bool) -> float | None:
    with leaving():
        rendezvous = together.rendezvous_of(request, os.environ)
        met = together.meet(request, rendezvous)
        num_local = met.place.local_world_size if met and met.starts_workers else None
        job = together.agree(lambda: session.decide(request, os.environ, rendezvous, num_local), met)
    if job.finished:
        for line in job.said:
            screen.say(line, sys.stdout)
        if met is not None:
            met.leave()
        return folder.summary(job.run_dir).get("best/val/top1")
    arguments = (job.config, str(job.run_dir), str(job.checkpoint) if job.checkpoint else None, list(job.said),
                 session.command("train", sys.argv[1:]))  # fmt: skip

    def task(_: DictConfig) -> float | None:
        # the config is that of the command line, or of the resumed run with the command line on top
        return together.run(worker.train, arguments, job.config, met, rendezvous, own_processes=own_processes)

    try:
        if own_processes:
            return task(request.configs[0])
        return shell.with_hydra("train", session.in_folder(request.argv, "hydra.run.dir", job.run_dir), task)
    except (ConfigError, WorkersFailedError, Left) as error:
        if job.checkpoint is None:
            folder.remove_refused(job.run_dir, error)
        raise


if __name__ == "__main__":
    main()
