"""Compute top-1, top-5 and loss of a checkpoint, or of published weights: python -m imagenet_ddp.evaluate
checkpoint=PATH.

Each validation image is counted once.
"""

import os
import sys

from imagenet_ddp.cli import command, overrides, parse
from imagenet_ddp.distributed.spawn import WorkersFailedError
from imagenet_ddp.engine import coordinate, worker
from imagenet_ddp.engine import job as engine_job
from imagenet_ddp.engine.stored_config import checkpoint_path, from_checkpoint
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs import folder


def main() -> float | None:
    """Return top-1 as a fraction. Exit codes: 1 after a failure, 2 for a refused command, 128 + n after signal n."""
    with command.run_command("evaluate"):
        return _evaluate(command.request("evaluate"))


def _evaluate(request: parse.Request) -> float | None:
    checkpoint = checkpoint_path(request.configs[0])
    checkpoint = checkpoint and checkpoint.resolve()
    launch_info = coordinate.launch_info_of(request, os.environ)
    rendezvous = coordinate.join_commands(request, launch_info)

    def decide() -> engine_job.Job:
        config = from_checkpoint(request, checkpoint, os.environ)
        folder_here = engine_job.new_folder(request, config["name"], run_key=launch_info.run_key)
        typed = overrides.shell_line("evaluate", sys.argv[1:])
        return engine_job.Job(config, folder_here, checkpoint, command=typed)

    job = coordinate.agree(decide, rendezvous, "evaluate")
    try:
        return command.run_job(
            request,
            job.run_dir,
            lambda: coordinate.run_job(worker.evaluate, job, job.config, rendezvous, launch_info),
        )
    except (ConfigError, WorkersFailedError) as error:
        folder.remove_refused(job.run_dir, error)
        raise


if __name__ == "__main__":
    main()
