"""Compute top-1, top-5 and loss of a checkpoint, or of published weights: python -m imagenet_ddp.evaluate
checkpoint=PATH.

Each validation image is counted once.
"""

import os
import sys

from imagenet_ddp.cli import command, overrides, parse
from imagenet_ddp.config.schema.commands import EvaluateConfig
from imagenet_ddp.distributed.spawn import WorkersFailedError
from imagenet_ddp.engine import worker
from imagenet_ddp.engine.job import Job, new_folder
from imagenet_ddp.engine.launch import Launch, find_launcher
from imagenet_ddp.engine.stored_config import checkpoint_path, from_checkpoint
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs import folder


def main() -> float | None:
    """Return top-1 as a fraction. Exit codes: 1 after a failure, 2 for a refused command, 128 + n after signal n."""
    with command.run_command("evaluate"):
        return launch(command.request("evaluate"))


def launch(request: parse.Request) -> float | None:
    checkpoint = checkpoint_path(request.configs[0])
    checkpoint = checkpoint and checkpoint.resolve()
    info = find_launcher(request, os.environ)
    started = Launch.join(request, info)

    def decide() -> Job:
        config = from_checkpoint(request, checkpoint, os.environ, EvaluateConfig)
        run_dir = new_folder(request, os.environ, config.name, run_key=info.run_key)
        return Job(config, run_dir, checkpoint, command=overrides.shell_line("evaluate", sys.argv[1:]))

    job = started.agree(decide, "evaluate")
    try:
        with command.hydra_job(request, job.run_dir):
            return started.run(worker.evaluate, job, job.config)
    except (ConfigError, WorkersFailedError) as error:
        folder.remove_refused(job.run_dir, error)
        raise


if __name__ == "__main__":
    main()
