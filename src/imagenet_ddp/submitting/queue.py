"""sbatch, and what is typed next. No torch."""

import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

from imagenet_ddp.schema import ConfigError

TIMEOUT_S = 60.0  # a busy controller lets sbatch wait and try again


def submit(path: Path, environ: Mapping[str, str]) -> str:
    """The job's number. Raises ConfigError with what sbatch says."""
    # of the job around this command, where there is one: srun would take its numbers for the new job's
    there = {name: value for name, value in environ.items() if not name.startswith("SLURM_") or name == "SLURM_CONF"}
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", str(path)], env=there, capture_output=True, text=True, timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"sbatch does not answer within {TIMEOUT_S:.0f} s, and may yet have submitted {path}. HINT: `squeue --me`"
        ) from error
    if done.returncode:
        said = re.sub(r"\s*sbatch: (error: )?", " ", f" {done.stderr}").strip().rstrip(".")
        raise ConfigError(
            f"sbatch refuses {path}: {said}. HINT: correct what it names, with another submit.* or `sbatch {path}`."
        )
    return done.stdout.strip().partition(";")[0]


def next_lines(job: str, log: str, num_tasks: int | None) -> list[str]:
    """Commands to type, and what they are for. log: as sbatch was told."""
    number = job if num_tasks is None else f"{job}_0"
    task = number.partition("_")[2] or "4294967294"
    name = log.replace("%A", job).replace("%a", task).replace("%j", job)
    more = f" (and {num_tasks - 1} more)" if num_tasks and num_tasks > 1 else ""
    lines = [
        (f"squeue --job={job}", "what it waits for"),
        (f"tail -F {shlex.quote(name)}", f"its log{more}"),
        (f"scancel {job}", "end it: it is saved, and not started again"),
    ]
    width = max(len(command) for command, _ in lines)
    return [f"{command:<{width}}  # {what}" for command, what in lines]
