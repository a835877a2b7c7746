"""Restart a training run after its processes have failed (cluster.max_restarts). Importing this module does not import
torch."""

import os
import sys
import time

from omegaconf import DictConfig

from imagenet_ddp.config.schema.commands import CommonConfig
from imagenet_ddp.distributed.launchers.detect import RESTART_COUNT
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo
from imagenet_ddp.distributed.spawn import WorkersFailedError
from imagenet_ddp.engine.job import Job
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs.signals import raise_on_signal
from imagenet_ddp.system import console

PAUSE_S = 2.0  # time for the system to release sockets and GPU memory of the ended processes


def validate(config: CommonConfig | DictConfig, launch_info: LaunchInfo, *, in_sweep: bool) -> None:
    """Raise ConfigError if this command cannot restart the training by itself."""
    if not (times := config.cluster.max_restarts):
        return
    if in_sweep:
        reason = "in a sweep"
        hint = "set cluster.max_restarts=0, and resume the sweep later with sweep.resume=FOLDER"
    elif launch_info.world_info is not None:
        reason = f"when {launch_info.source} starts the processes"
        hint = "set cluster.max_restarts=0, and use the launcher's own restarts, such as torchrun --max-restarts=3"
    elif not launch_info.standalone:
        reason = "with several nodes"
        hint = "set cluster.max_restarts=0 and let SLURM requeue the job, or start it with torchrun --max-restarts=3"
    else:
        return
    raise ConfigError(f"cluster.max_restarts must be 0 {reason}, got {times}. Hint: {hint}.")


def restart(job: Job, error: WorkersFailedError, argv: list[str]) -> None:
    """Replace this process by a new command that continues the run from its last checkpoint, up to cluster.max_restarts
    times. Return without a restart if the run was rejected (exit code 2) or stopped by a signal, or if no restarts are
    left."""
    count, most = int(os.environ.get(RESTART_COUNT, "0")) + 1, job.config.cluster.max_restarts
    if error.exit_code != 1 or error.is_stopped or count > most:
        return
    console.print_message(f"Restart {count} of {most} (cluster.max_restarts) in {PAUSE_S:.0f} s.")
    with raise_on_signal():  # the new command would miss a signal that arrives now
        time.sleep(PAUSE_S)
    os.environ[RESTART_COUNT] = str(count)
    sys.stdout.flush()
    sys.stderr.flush()
    os.closerange(3, 65536)  # sockets and the run folder's lock
    os.execv(sys.executable, [sys.executable, "-m", "imagenet_ddp.train", *argv])
