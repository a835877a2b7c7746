"""python -m imagenet_ddp.evaluate checkpoint=PATH: top-1, top-5 and loss of a checkpoint, each validation image
counted once."""

import os
import sys
from pathlib import Path

from imagenet_ddp import check, session, worker
from imagenet_ddp.distributed.launch import WorkersFailedError
from imagenet_ddp.distributed.rendezvous import launched_place
from imagenet_ddp.run import folder
from imagenet_ddp.run.signals import exit_on_signal
from imagenet_ddp.schema import ConfigError


def main() -> float | None:
    """The top-1, a fraction. Exit codes: 2 refused, 128 + n stopped by signal n, 1 failed."""
    exit_on_signal()
    try:
        request = check.command_line("evaluate", sys.argv[1:], os.environ)
        if request.passthrough:
            return session.with_hydra("evaluate", request.argv, lambda config: None)
        return _evaluate(request)
    except ConfigError as error:
        check.refuse(error)
    except WorkersFailedError as error:
        sys.exit(error.exit_code)


def _evaluate(request: check.Request) -> float | None:
    from imagenet_ddp.distributed import devices  # torch from here on

    checkpoint = Path(request.configs[0].checkpoint).resolve()
    config = session.from_checkpoint(request, checkpoint, os.environ)
    place = launched_place(os.environ)
    num_local = place.local_world_size if place else devices.count(devices.local_devices(config["trainer"]))
    job = session.agree(
        lambda: session.Job(config, session.new_folder(request, config["name"]), checkpoint),
        place,
        config["cluster"]["timeout_s"],
    )
    arguments = (config, str(job.run_dir), str(checkpoint), session.command("evaluate", sys.argv[1:]))
    try:
        return session.with_hydra(
            "evaluate",
            session.in_folder(request.argv, "hydra.run.dir", job.run_dir),
            lambda _: session.run(worker.evaluate, arguments, config, num_local, own_processes=False),
        )
    except (ConfigError, WorkersFailedError) as error:
        folder.remove_refused(job.run_dir, error)
        raise


if __name__ == "__main__":
    main()
