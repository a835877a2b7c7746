"""Read SLURM's environment: the step and the task of this process, its ranks, and job arrays. Refuse a batch shell that
would use only its own node. Requeue a job that has saved its checkpoint. Does not import torch.

The variables are documented in the manual pages of srun and sbatch, section "OUTPUT ENVIRONMENT VARIABLES".
"""

import operator
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from imagenet_ddp.distributed.launchers.request import LaunchRequest
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.stop_signals import RESTART_SIGNALS
from imagenet_ddp.system.text import count_noun

# The port is 29500 plus the last three digits of the job ID, plus 100 for each previous step, so that jobs and steps on
# one machine do not share a rendezvous. All ports are below the ephemeral ports of Linux (32768).
FIRST_PORT, NUM_PORTS = 29500, 1000
TIMEOUT_S = 20.0  # a controller that is busy with thousands of jobs takes seconds to answer
EARLY_S = 60  # SLURM may send the signal of --signal this much too early (sbatch(1))
SOURCE = "SLURM job"  # first words of the source of a launcher that is SLURM


def in_step(environ: Mapping[str, str]) -> bool:
    """Return whether srun started this process. SLURM sets SLURM_NTASKS in the batch shell, too."""
    return "SLURM_STEP_ID" in environ or "SLURM_STEP_NUM_TASKS" in environ


def is_step_of_several(environ: Mapping[str, str]) -> bool:
    return _number(environ, "SLURM_STEP_NUM_TASKS", 1) > 1


def job_name(environ: Mapping[str, str]) -> str:
    return f"{SOURCE} {environ.get('SLURM_JOB_ID', '0')}"


def step_numbers(environ: Mapping[str, str]) -> dict[str, str]:
    """Return RANK, WORLD_SIZE, ..., MASTER_ADDR and MASTER_PORT of this task of a step. Raises ConfigError if the nodes
    have different numbers of tasks."""
    num_tasks, num_nodes = _number(environ, "SLURM_STEP_NUM_TASKS", 1), _number(environ, "SLURM_STEP_NUM_NODES", 1)
    if len({*expand_counts(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))}) > 1 or num_tasks % num_nodes:
        raise ConfigError(
            f"{job_name(environ)} started {num_tasks} tasks on {num_nodes} nodes, with different numbers per node. "
            f"Hint: use #SBATCH --ntasks-per-node={-(-num_tasks // num_nodes)}."
        )
    per_node = num_tasks // num_nodes
    node, local_task = _number(environ, "SLURM_NODEID", 0), _number(environ, "SLURM_LOCALID", 0)
    job, step = (int(re.sub(r"\D", "", environ.get(name, "")) or 0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    # on a single node, no host name needs to be resolved
    host = "127.0.0.1" if num_nodes == 1 else first_host(environ.get("SLURM_STEP_NODELIST", ""))
    return {
        # numbered node by node, as in Lightning, whatever the value of srun --distribution
        "RANK": str(node * per_node + local_task),
        "LOCAL_RANK": str(local_task),
        "GROUP_RANK": str(node),
        "WORLD_SIZE": str(num_tasks),
        "LOCAL_WORLD_SIZE": str(per_node),
        "MASTER_ADDR": environ.get("MASTER_ADDR") or host or "",
        "MASTER_PORT": environ.get("MASTER_PORT") or str(FIRST_PORT + (job + 100 * step) % NUM_PORTS),
    }


def step_id(environ: Mapping[str, str]) -> str:
    """Return an ID of this start of the step. Processes of the job's previous start may still be at its port."""
    restart = environ.get("SLURM_RESTART_COUNT", "0")
    return f"{job_name(environ)}.{environ.get('SLURM_STEP_ID', '0')}" + f", restart {restart}" * (restart != "0")


def gpus_per_node(environ: Mapping[str, str]) -> int | None:
    return _number(environ, "SLURM_GPUS_ON_NODE", 0) or None


def refuse_shell_of_pty(request: LaunchRequest, environ: Mapping[str, str]) -> None:
    """Raise ConfigError if a person typed this command in the shell of `srun --pty bash`, so that no other task of the
    step runs it."""
    if _is_typed_in_shell(environ):
        num_tasks, num_nodes = environ["SLURM_STEP_NUM_TASKS"], environ.get("SLURM_STEP_NUM_NODES", "1")
        raise ConfigError(
            f"{job_name(environ)} started {num_tasks} tasks (SLURM_STEP_NUM_TASKS), but the shell of srun --pty, in "
            "which this command was typed, belongs to the first task only. Hint: type `srun --overlap --nodes="
            f"{num_nodes} --ntasks={num_tasks} {request.line}`, or leave the shell and start it with --ntasks=1."
        )


def _is_typed_in_shell(environ: Mapping[str, str]) -> bool:
    # an interactive shell gives each command a process group of its own; a command that srun started has its task's
    task = environ.get("SLURM_TASK_PID", "")
    if "SLURM_PTY_PORT" not in environ or not task.isdecimal():
        return False
    try:
        return os.getpgid(int(task)) != os.getpgrp()
    except OSError:  # the task has ended
        return False


def refuse_batch_shell(request: LaunchRequest, environ: Mapping[str, str]) -> None:
    """Raise ConfigError for a command for several nodes that srun did not start, because only this node would run it.
    With trainer.num_nodes and a node rank or an address, the other nodes are started in another way."""
    if "SLURM_JOB_ID" not in environ:
        return
    job_nodes = _number(environ, "SLURM_JOB_NUM_NODES", 1)
    others_come = request.cluster.address or request.cluster.node_rank is not None or "NODE_RANK" in environ
    if (request.num_nodes or (1 if in_step(environ) else job_nodes)) <= 1 or (
        others_come and request.num_nodes is not None
    ):
        return
    per_node = f" --ntasks-per-node={request.devices}" if request.devices else ""
    nodes = request.num_nodes or job_nodes
    raise ConfigError(
        f"SLURM job {environ['SLURM_JOB_ID']} has {count_noun(job_nodes, 'node')}, but srun did not start this command "
        f"as one of several tasks, so it would run on only one node instead of {nodes}. Hint: type `srun "
        f"--nodes={nodes}{per_node} {request.line}` in a job of {nodes} nodes, or set trainer.num_nodes=1."
    )


def run_key(environ: Mapping[str, str]) -> str | None:
    """Return a name for this job's run that stays the same after a requeue; None outside SLURM."""
    job = array_name(environ) or environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    return "slurm_" + "_".join([job, *([environ["SLURM_STEP_ID"]] if "SLURM_STEP_ID" in environ else [])])


def sweep_key(environ: Mapping[str, str]) -> str | None:
    """Return a name for this job's sweep, of all tasks of a job array and all steps; None outside SLURM."""
    job = environ.get("SLURM_ARRAY_JOB_ID", environ.get("SLURM_JOB_ID"))
    return f"slurm_{job}" if job is not None else None


def array_task(environ: Mapping[str, str]) -> str | None:
    """Return this task's number in its job array; None outside a job array."""
    return environ["SLURM_ARRAY_TASK_ID"] if array_name(environ) else None


def array_tasks(environ: Mapping[str, str]) -> range | None:
    """Return the numbers of the tasks of this process's job array; None outside one, or if they do not have equal
    distances, of which SLURM does not tell the numbers."""
    names = [f"SLURM_ARRAY_TASK_{name}" for name in ("MIN", "MAX", "STEP", "COUNT")]
    if array_name(environ) is None or not all(environ.get(name, "").isdecimal() for name in (names[0], names[1])):
        return None
    first, last, step, count = (_number(environ, name, 1) for name in names)
    tasks = range(first, last + 1, max(step, 1))
    return tasks if names[3] not in environ or len(tasks) == count else None


def array_name(environ: Mapping[str, str]) -> str | None:
    """Return JOB_TASK, the name of a job array's task in SLURM's commands; None outside a job array."""
    names = ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")
    return "_".join(environ[name] for name in names) if all(environ.get(name) for name in names) else None


def first_host(text: str) -> str | None:
    """Return the first host of a SLURM node list, such as node01 for 'node[01-03,7],gpu1'; None for other text."""
    found = re.match(r"(?:[\w.-]|\[\d[\d,-]*\])+(?=,|$)", text)
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", found[0]) if found else None


def expand_counts(text: str) -> tuple[int, ...]:
    """Expand SLURM's list of task counts into one count per node: '2(x3),1' becomes (2, 2, 2, 1)."""
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    return tuple(counts)


def sbatch_words(argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return sbatch and the script of this job, which passes its options on to this command; [] if no such script was
    submitted. argv: the options of this command."""
    if "SLURM_JOB_ID" not in environ:
        return []
    submitted, passed_on = _show_job(_own_job(environ))[0].get("Command", ""), " ".join(["", *argv])
    if not submitted.startswith("/") or not submitted.endswith(passed_on):
        return []
    tasks = array_tasks(environ)
    step = f":{tasks.step}" if tasks and tasks.step > 1 else ""
    numbers = f"{tasks[0]}-{tasks[-1]}{step}" if tasks else "NUMBERS"
    return ["sbatch", *([f"--array={numbers}"] if array_name(environ) else []), submitted.removesuffix(passed_on)]


def short_time_limit(environ: Mapping[str, str]) -> Mistake | None:
    """Return what is wrong if this job's time limit is hardly longer than the time that the --signal of its batch
    script leaves for saving. SLURM does not tell the --signal of sbatch itself."""
    if "SLURM_JOB_ID" not in environ:
        return None
    limit = _show_job(_own_job(environ))[0].get("TimeLimit", "")
    script = _scontrol("write", "batch_script", environ["SLURM_JOB_ID"], "-").stdout
    of = f"The time limit of {job_name(environ)}, {limit},"
    return validate_time_limit(limit, script, of, "of its script, unless sbatch was given another")


def validate_time_limit(limit: str, script: str, of: str, where: str = "") -> Mistake | None:
    """Return what is wrong, or None. limit: as sbatch reads it. script: lines of a batch script, of which the last
    --signal counts. of, where: words of the message."""
    found = list(re.finditer(r"^#SBATCH.*?(--signal[= ](?:[RB]+:)?\w+(?:@(\d+))?)", script, re.MULTILINE))
    if not found or not (limit_s := _seconds(limit)) or limit_s > int(found[-1][2] or 60) + EARLY_S:
        return None
    signal_option = f"{found[-1][1]} {where}".rstrip()
    what = (
        f"{of} leaves a minute or less before {signal_option}: the run saves and is requeued when it has hardly begun"
    )
    return Mistake(what, hint="use a longer --time, or a signal that comes later, such as --signal=USR2@30")


def _seconds(time: str) -> int:
    """Return the seconds of a time of SLURM: minutes, minutes:seconds, hours:minutes:seconds, or days-hours with or
    without :minutes:seconds. 0: there is no limit."""
    days, _, rest = time.rpartition("-")
    if not re.fullmatch(r"\d+(:\d+){0,2}", rest):
        return 0
    numbers = [int(number) for number in rest.split(":")]
    units = (3600, 60, 1) if days or len(numbers) == 3 else (60, 1)
    return 86400 * int(days or 0) + sum(map(operator.mul, numbers, units))


def asks_for_restart(signal_number: int, environ: Mapping[str, str]) -> bool:
    """Return whether this signal asks a SLURM job to save and to start again later: SIGUSR1, SIGUSR2, or the SIGTERM
    with which the GraceTime of a preemption begins. SLURM does not requeue a job that ends within that time."""
    if "SLURM_JOB_ID" not in environ or signal_number != signal.SIGTERM:
        return "SLURM_JOB_ID" in environ and signal_number in RESTART_SIGNALS
    field = _show_job(_own_job(environ))[0]
    return field.get("JobState") == "RUNNING" and field.get("PreemptTime", "None") != "None"


def has_requeued(environ: Mapping[str, str]) -> bool:
    """Return whether SLURM itself has requeued this job, and ends its processes for that."""
    if "SLURM_JOB_ID" not in environ:
        return False
    return _number(_show_job(_own_job(environ))[0], "Restarts", 0) > _number(environ, "SLURM_RESTART_COUNT", 0)


def requeue_and_print(environ: Mapping[str, str]) -> bool:
    """Requeue this SLURM job, print the outcome, and return whether SLURM accepted the request."""
    job = _own_job(environ)
    print_message(f"Asking SLURM to requeue job {job} (scontrol requeue).", sys.stdout)
    if why := requeue(job):
        print_message(f"SLURM does not requeue job {job}: {why}.")
    return why is None


def requeue(job: str) -> str | None:
    """Ask SLURM to requeue the job, once its checkpoint is saved. Return None, or the reason why SLURM refuses. A job
    that has been cancelled in the meantime stays cancelled."""
    field, why = _show_job(job)
    if why:
        return why
    if field.get("JobState") != "RUNNING" and field.get("Reason") != "TimeLimit":
        return f"its state is {field.get('JobState', 'unknown')}, from which a job cannot be requeued"
    done = _scontrol("requeue", job)
    # below 0, a signal ended scontrol, because SLURM has accepted the request and is ending this job's processes
    if done.returncode <= 0:
        return None
    return done.stderr.strip() or f"scontrol requeue ended with exit code {done.returncode}"


def _own_job(environ: Mapping[str, str]) -> str:
    # for a task of a job array, SLURM_JOB_ID alone may refer to the whole array
    return array_name(environ) or environ["SLURM_JOB_ID"]


def _show_job(job: str) -> tuple[dict[str, str], str | None]:
    """Return (the fields that scontrol shows of a job; None, or the reason why there are none)."""
    shown = _scontrol("show", "job", job, "--oneliner")
    if shown.returncode:
        return {}, shown.stderr.strip() or "scontrol does not answer"
    command = re.findall(r"(Command)=(.*?) WorkDir=", shown.stdout)  # has spaces
    return dict([*re.findall(r"(\S+?)=(\S*)", shown.stdout), *command]), None


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


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    value = environ.get(name, "")
    return int(value) if value.isdecimal() else default
