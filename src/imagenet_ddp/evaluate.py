"""python -m imagenet_ddp.evaluate checkpoint=PATH: top-1, top-5 and loss of a checkpoint, each validation image
counted once."""

import os
import sys
from pathlib import Path

from imagenet_ddp import check, session, shell, together, worker
from imagenet_ddp.distributed.launch import WorkersFailedError
from imagenet_ddp.run import folder
from imagenet_ddp.run.signals import exit_on_signal
from imagenet_ddp.schema import ConfigError


def main() -> float | None:
    """The top-1, a fraction. Exit codes: 2 refused, 128 + n stopped by signal n, 1 failed."""
    exit_on_signal()
    try:
        request = check.command_line("evaluate", sys.argv[1:], os.environ)
        if request.passthrough:
            return shell.with_hydra("evaluate", request.argv, lambda config: None)
        return _evaluate(request)
    except ConfigError as error:
        check.refuse(error)
    except WorkersFailedError as error:
        error.exit()


def _evaluate(request: check.Request) -> float | None:
    checkpoint = Path(request.configs[0].checkpoint).resolve()
    rendezvous = together.rendezvous_of(request, os.environ)
    met = together.meet(request, rendezvous)

    def decide() -> session.Job:
        config = session.from_checkpoint(request, checkpoint, os.environ)
        folder_here = session.new_folder(request, config["name"], run_key=rendezvous.run_key)
        return session.Job(config, folder_here, checkpoint)

    job = together.agree(decide, met)
    arguments = (job.config, str(job.run_dir), str(job.checkpoint), session.command("evaluate", sys.argv[1:]))
    try:
        return shell.with_hydra(
            "evaluate",
            session.in_folder(request.argv, "hydra.run.dir", job.run_dir),
            lambda _: together.run(worker.evaluate, arguments, job.config, met, rendezvous, own_processes=False),
        )
    except (ConfigError, WorkersFailedError) as error:
        folder.remove_refused(job.run_dir, error)
        raise


if __name__ == "__main__":
    main()
