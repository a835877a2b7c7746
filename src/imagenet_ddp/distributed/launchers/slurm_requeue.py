"""Ask SLURM's scontrol to requeue a job that has saved its checkpoint, and for the address of a node. Does not import
torch."""

import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from imagenet_ddp.distributed.launchers.slurm import array_name

TIMEOUT_S = 20.0  # a controller that is busy with thousands of jobs takes seconds to answer


def should_requeue(number: int | None, config: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Return whether a stop by this signal requests a requeue of the SLURM job."""
    return number == signal.SIGUSR2 and "SLURM_JOB_ID" in environ and config["cluster"]["requeue"]


def requeue_and_print(environ: Mapping[str, str]) -> bool:
    """Requeue this SLURM job, print the outcome, and return whether SLURM accepted the request."""
    # for a task of a job array, SLURM_JOB_ID alone may refer to the whole array
    job = array_name(environ) or environ["SLURM_JOB_ID"]
    print(f"Asking SLURM to requeue job {job} (scontrol requeue).", flush=True)
    if why := requeue(job):
        hint = "Hint: run the same command with resume=RUN_FOLDER to continue the run."
        print(f"SLURM does not requeue job {job}: {why}. {hint}", file=sys.stderr, flush=True)
    return why is None


def requeue(job: str) -> str | None:
    """Ask SLURM to requeue the job. Return None, or the reason why SLURM refuses.

    Call this in the process that has saved the checkpoint. Only a job that is running or has reached its time limit is
    requeued. A job that has been cancelled in the meantime stays cancelled.
    """
    shown = _scontrol("show", "job", job, "--oneliner")
    if shown.returncode:
        return shown.stderr.strip() or "scontrol does not answer"
    field = dict(re.findall(r"(\S+?)=(\S*)", shown.stdout))
    if field.get("JobState") != "RUNNING" and field.get("Reason") != "TimeLimit":
        return f"its state is {field.get('JobState', 'unknown')}, from which a job cannot be requeued"
    if field.get("BatchFlag") == "0":
        return "only jobs submitted with sbatch can be requeued, and this job was started by srun or salloc"
    if field.get("Requeue") == "0":
        return "the job was submitted with --no-requeue, or the cluster has JobRequeue=0"
    done = _scontrol("requeue", job)
    # below 0, a signal ended scontrol, because SLURM has accepted the request and is ending this job's processes
    if done.returncode <= 0:
        return None
    return done.stderr.strip() or f"scontrol requeue ended with exit code {done.returncode}"


def node_address(name: str) -> str | None:
    """Return the address (NodeAddr) that SLURM has for a node whose name does not resolve; None if there is none."""
    done = _scontrol("show", "node", name)
    found = re.search(r"\bNodeAddr=(\S+)", done.stdout)
    return found[1] if done.returncode == 0 and found and found[1] != name else None


def _scontrol(*words: str) -> subprocess.CompletedProcess[str]:
    """Run scontrol for up to TIMEOUT_S seconds. If it is missing or does not answer, stderr has the reason."""
    command = ["scontrol", *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except FileNotFoundError:
        return subprocess.CompletedProcess(command, 127, "", "there is no scontrol on this node")
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"scontrol does not answer within {TIMEOUT_S:.0f} s")
