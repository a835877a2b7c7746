"""Compute top-1, top-5 and loss of a checkpoint, or of published weights: python -m imagenet_ddp.evaluate
checkpoint=PATH.

Each validation image is counted once.
"""

import os
import sys
from pathlib import Path

from imagenet_ddp.cli import command, overrides, parse
from imagenet_ddp.config.schema.evaluate import EvaluateConfig
from imagenet_ddp.distributed.launchers.detect import restarted
from imagenet_ddp.distributed.spawn import WorkersFailedError
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch.job import Job
from imagenet_ddp.launch.processes import begin, run_ranks, share_job
from imagenet_ddp.launch.stored_config import checkpoint_path, from_checkpoint
from imagenet_ddp.runs import folder
from imagenet_ddp.use import evaluate_rank


def main() -> float | None:
    """Return the score, such as top-1 as a fraction. Exit codes: 1 after a failure, 2 for a refused command, 128 + n
    after signal n."""
    with command.run_command("evaluate"):
        return launch(command.request("evaluate"))


def launch(request: parse.Request) -> float | None:
    checkpoint = checkpoint_path(request.config)
    checkpoint = checkpoint and checkpoint.resolve()
    place, commands = begin(request, os.environ)

    def decide() -> Job:
        config = from_checkpoint(request, checkpoint, os.environ, EvaluateConfig)
        wanted, is_typed = Path(request.hydra.run.dir), request.names_folder
        if not is_typed and config.name:  # that of the checkpoint
            wanted = wanted.parent.with_name(config.name) / wanted.name
        run_dir = folder.new_folder(
            wanted, is_typed=is_typed, options=request.typed, run_key=place.run_key, again=restarted(os.environ)
        )
        return Job(config, run_dir, checkpoint, command=overrides.shell_line("evaluate", sys.argv[1:]))

    job = share_job(commands, decide, request)
    try:
        with command.hydra_job(request, job.run_dir):
            return run_ranks(evaluate_rank.evaluate, job, job.config, place, commands)
    except (ConfigError, WorkersFailedError) as error:
        folder.remove_refused(job.run_dir, error)
        raise


if __name__ == "__main__":
    main()
