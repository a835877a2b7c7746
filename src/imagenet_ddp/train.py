"""Train an image classifier: check the options, choose the run folder and start the processes. See the README."""

import os
import sys

from imagenet_ddp.cli import command, mistakes, overrides, parse
from imagenet_ddp.distributed.spawn import WorkersFailedError
from imagenet_ddp.engine import coordinate, restart_after_failure, sweep, worker
from imagenet_ddp.engine import job as engine_job
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.runs import folder
from imagenet_ddp.runs.signals import SignalExit, Signals, raise_on_signal
from imagenet_ddp.system import console


def main() -> float | None:
    """Return the best val/top1 as a fraction. Exit codes: 1 after a failure, 2 for a refused command, 128 + n after
    signal n."""
    Signals().install()
    try:
        with raise_on_signal():
            request = command.request("train", sweep.expand_resume(sys.argv[1:]))
        if not request.multirun:
            return _start(request)
        number = sweep.selected_job(request, os.environ)
        if number is None:
            return sweep.run(request, lambda job: _start(job, own_processes=True))
        return _start(sweep.single_job(request, number, os.environ))
    except ConfigError as error:
        mistakes.refuse(error, "train")
    except RunError as error:
        console.print_message(str(error))
        sys.exit(1)
    except WorkersFailedError as error:
        error.exit()
    except SignalExit as left:
        console.print_message(str(left))
        raise


def _start(request: parse.Request, *, own_processes: bool = False) -> float | None:
    """Run one training job and return its best val/top1. own_processes: start new processes even for a single rank,
    so that the next job of a sweep inherits nothing from this one."""
    with raise_on_signal():
        launch_info = coordinate.launch_info_of(request, os.environ)
        restart_after_failure.validate(request.configs[0], launch_info, in_sweep=own_processes)
        rendezvous = coordinate.join_commands(request, launch_info)
        num_local = rendezvous.world_info.local_world_size if rendezvous and rendezvous.starts_workers else None
        typed = overrides.shell_line("train", sys.argv[1:])
        job = coordinate.agree(
            lambda: engine_job.decide(request, os.environ, launch_info, typed, num_local), rendezvous, "train"
        )
    if job.finished:
        for line in job.messages:
            console.print_message(line, sys.stdout)
        if rendezvous is not None:
            rendezvous.leave()
        return folder.summary(job.run_dir).get("best/val/top1")

    def run() -> float | None:
        own = own_processes or job.config["cluster"]["max_restarts"] > 0  # this process must survive to restart them
        return coordinate.run_job(worker.train, job, job.config, rendezvous, launch_info, own_processes=own)

    try:
        if own_processes:
            return run()
        return command.run_job(request, job.run_dir, run)
    except (ConfigError, WorkersFailedError, SignalExit) as error:
        if isinstance(error, WorkersFailedError):
            restart_after_failure.restart(job, error, overrides.in_folder(request.argv, "hydra.run.dir", job.run_dir))
        if job.checkpoint is None:
            folder.remove_refused(job.run_dir, error)
        raise


if __name__ == "__main__":
    main()
