"""python -m imagenet_ddp.train: check the options, decide the folder, start the processes. See the README."""

import math
import os
import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from imagenet_ddp import check, session, together, worker
from imagenet_ddp.distributed.launch import WorkersFailedError
from imagenet_ddp.distributed.place import Rendezvous
from imagenet_ddp.run import folder
from imagenet_ddp.run.signals import Signals
from imagenet_ddp.schema import ConfigError


def main() -> float | None:
    """The best val/top1, a fraction. Exit codes: 2 refused, 128 + n stopped by signal n, 1 failed."""
    signals = Signals().hold()
    try:
        request = check.command_line("train", sys.argv[1:], os.environ)
        if request.passthrough:
            return session.with_hydra("train", request.argv, lambda config: None)
        return _sweep(request, signals) if request.multirun else _single(request)
    except ConfigError as error:
        check.refuse(error)
    except WorkersFailedError as error:
        sys.exit(error.exit_code)


def _single(request: check.Request) -> float | None:
    rendezvous = together.rendezvous_of(request, os.environ)
    met = together.meet(request, rendezvous)
    num_local = met.place.local_world_size if met and met.starts_workers else None
    job = together.agree(lambda: session.decide(request, os.environ, rendezvous, num_local), met)
    if job.finished:
        print(*job.said, sep="\n")
        if met is not None:
            met.leave()
        return None
    arguments = (job.config, str(job.run_dir), str(job.checkpoint) if job.checkpoint else None, list(job.said),
                 session.command("train", sys.argv[1:]))  # fmt: skip

    def task(_: DictConfig) -> float | None:
        # the config is that of the command line, or of the resumed run with the command line on top
        return together.run(worker.train, arguments, job.config, met, rendezvous, own_processes=False)

    try:
        return session.with_hydra("train", session.in_folder(request.argv, "hydra.run.dir", job.run_dir), task)
    except (ConfigError, WorkersFailedError) as error:
        if job.checkpoint is None:
            folder.remove_refused(job.run_dir, error)
        raise


def _sweep(request: check.Request, signals: Signals) -> float | None:
    from imagenet_ddp.distributed import devices

    if any(config.resume for config in request.configs):
        raise ConfigError(
            "resume= goes on with one run, but -m starts several. HINT: resume each run by itself, without -m."
        )
    for config in request.configs:
        devices.local_devices(config.trainer)
    failed: list[str] = []
    command = session.command("train", sys.argv[1:])

    def task(config: DictConfig) -> float | None:
        job = HydraConfig.get()
        run_dir = Path(job.runtime.output_dir).resolve()
        if signals.received:
            sys.exit(128 + signals.received)
        print(f"Job {job.job.num}: {job.job.override_dirname or 'no options'}", flush=True)
        keys = session.plain(config)
        arguments = (keys, str(run_dir), None, [], command)
        try:
            return together.run(worker.train, arguments, keys, None, Rendezvous(), own_processes=True)
        except WorkersFailedError as error:
            if error.exit_code > 128:
                raise SystemExit(error.exit_code) from None  # stopped: no further job
            failed.append(f"job {job.job.num} ({job.job.override_dirname}) in {run_dir}: exit code {error.exit_code}")
            return math.nan

    assert request.hydra is not None
    wanted = Path(request.hydra.sweep.dir)
    sweep_dir = (
        folder.make_given(wanted) if session.typed_value(request, "hydra.sweep.dir") else folder.make_new(wanted)
    )
    result = session.with_hydra("train", session.in_folder(request.argv, "hydra.sweep.dir", sweep_dir), task)
    if failed:
        print(f"{len(failed)} of {len(request.configs)} jobs failed:", *failed, sep="\n  ", file=sys.stderr)
        sys.exit(1)
    print(f"Sweep folder: {sweep_dir}")
    return result


if __name__ == "__main__":
    main()
