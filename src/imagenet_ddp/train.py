"""Train an image classifier: check the options, choose the run folder and start the processes. See the README."""

import os
import sys
import time
from contextlib import nullcontext
from dataclasses import replace

from imagenet_ddp import BEGIN_S
from imagenet_ddp.cli import command, overrides, parse
from imagenet_ddp.config.figures import best_metric
from imagenet_ddp.distributed.spawn import WorkersFailedError
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch import sweep
from imagenet_ddp.launch.job import after_loss, after_stop, decide
from imagenet_ddp.launch.processes import LEAVE_S, begin, run_ranks, share_job
from imagenet_ddp.launch.stored_sweep import expand_resume
from imagenet_ddp.runs import folder
from imagenet_ddp.runs.signals import SignalExit, Signals, raise_on_signal
from imagenet_ddp.system import console
from imagenet_ddp.system.process import use_utf8
from imagenet_ddp.training import train_rank


def main() -> float | None:
    """Return the best score of a validation. Exit codes: 1 after a failure, 2 for a refused command, 128 + n after
    signal n."""
    use_utf8()
    Signals().install()
    try:
        with command.exit_codes("train"):
            with raise_on_signal():
                request = command.request("train", expand_resume(sys.argv[1:]))
            if not request.multirun:
                return launch(request)
            number = sweep.selected_job(request, os.environ)
            if number is None:
                return sweep.run(request, launch)
            return launch(sweep.single_job(request, number, os.environ))
    except SignalExit as stop:
        console.print_message(str(stop))
        raise


def launch(request: parse.Request, *, in_sweep: bool = False) -> float | None:
    """Run one training job and return its best score. in_sweep: this process also runs the next job, so this
    job gets a process of its own."""
    begin_s = time.monotonic() if in_sweep else BEGIN_S
    with raise_on_signal():
        place, commands = begin(request, os.environ)
        typed = overrides.shell_line("train", sys.argv[1:])
        job = share_job(commands, lambda: decide(request, os.environ, place, typed), request)
        job = replace(job, begin_s=begin_s, in_sweep=in_sweep)
    if job.finished:
        for line in job.messages:
            console.print_message(line, sys.stdout)
        if commands is not None:
            commands.leave(LEAVE_S)
        found = folder.summary(job.run_dir)
        return found.get(f"best/{best_metric(found)}")
    try:
        with nullcontext() if in_sweep else command.hydra_job(request, job.run_dir):
            return run_ranks(train_rank.train, job, job.config, place, commands, own_processes=in_sweep)
    except (ConfigError, WorkersFailedError, SignalExit) as error:
        if job.has_new_folder:
            folder.remove_refused(job.run_dir, error)
        if isinstance(error, WorkersFailedError) and error.reason:
            after_loss(job, place, os.environ)
        elif isinstance(error, SignalExit) and commands is None:
            after_stop(job, place, error.exit_code - 128, os.environ)
        raise


if __name__ == "__main__":
    main()
