"""A plan as a batch script: the shape of scripts/train.sbatch and scripts/train_torchrun.sbatch, with this config's
numbers. No torch."""

import hashlib
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from imagenet_ddp.submitting.asked import Plan

WIDTH = 120
MADE = "# Made by imagenet_ddp.submit ({}). It replaces this file only as long as it is as it was made."
GUESS = "source .venv/bin/activate"
TASKS = """\
devices={devices}
# One task per device; its numbers follow from the job's, so that none is written twice.
step=(--ntasks=$((SLURM_JOB_NUM_NODES * devices)) --ntasks-per-node="$devices" --cpus-per-task=$((SLURM_CPUS_PER_TASK / devices)))

# No --gpus-per-task and no --gpu-bind: each task must see all GPUs of its node, and none of other jobs.
# kill-on-bad-exit=0: a rank that has saved and left must not take along those that have not.
srun "${{step[@]}}" --kill-on-bad-exit=0 python -m imagenet_ddp.train"""  # noqa: E501, as in scripts/train.sbatch
ONE_PROCESS = """\
step=(--ntasks=1 --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK") # one process uses all devices

srun "${step[@]}" --kill-on-bad-exit=0 python -m imagenet_ddp.train"""
TORCHRUN = """\
devices={devices}

# Where torchrun's agents meet: the first node, by the address in SLURM's own book, because not every cluster's name
# server knows its nodes; and a port of this job's own.
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(scontrol show node "$first" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p')
port=$((29500 + SLURM_JOB_ID % 1000))

# SIGUSR2 is for the workers, which SLURM signals too; torchrun itself would die of it.
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=0 bash -c 'trap "" USR2; exec "$@"' torchrun \\
  torchrun --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node="$devices" --rdzv-backend=c10d \\
  --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$address:$port" -m imagenet_ddp.train"""


def render(plan: Plan, setup: list[str]) -> str:
    """setup: the lines that make `python` the right one."""
    form = TORCHRUN if plan.options["form"] == "torchrun" else ONE_PROCESS if plan.wanted.one_process else TASKS
    devices = plan.wanted.devices or 1
    on_gpus = plan.wanted.accelerator != "cpu"
    lines = [
        "#!/usr/bin/env bash",
        MADE.format("SUM"),
        *_wrapped("#   python -m imagenet_ddp.submit", [word.replace("\n", "\\n") for word in plan.argv], "#     ", ""),
        f"# {_world(plan)}",
        "",
        *_directives(plan),
        "set -euo pipefail",
        "",
        *setup,
        "",
        form.format(devices="$SLURM_GPUS_ON_NODE" if on_gpus else devices) if form != ONE_PROCESS else form,
    ]
    *before, last = "\n".join(lines).split("\n")
    text = "\n".join([*before, *_wrapped(last, plan.train_argv, "  ", " \\")]) + "\n"
    return text.replace("(SUM)", f"({checksum(text)})", 1)


def log(plan: Plan) -> str:
    """As sbatch is told: %j is the job's number."""
    return plan.options["log"] or ("slurm-%j.log" if plan.wanted.num_jobs is None else "slurm-%A_%a.log")


def checksum(text: str) -> str:
    """Of all that was made but itself."""
    bare = re.sub(rf"(?m)^{re.escape(MADE).replace(re.escape('{}'), '[^)]*')}$", "", text, count=1)
    return hashlib.sha256(bare.encode()).hexdigest()[:8]


def is_as_made(text: str) -> bool:
    return any(line == MADE.format(checksum(text)) for line in text.splitlines()[:3])


def setup_here(environ: Mapping[str, str], prefix: str = sys.prefix, base: str = sys.base_prefix) -> list[str]:
    """The lines that activate the environment of this process."""
    activate = Path(prefix) / "bin" / "activate"
    if prefix != base and activate.is_file():
        return [f"source {shlex.quote(str(activate))}"]
    if (Path(prefix) / "conda-meta").is_dir() and "CONDA_EXE" in environ:
        profile = Path(environ["CONDA_EXE"]).parent.parent / "etc/profile.d/conda.sh"
        # its scripts read variables that are not set
        return ["set +u", f"source {shlex.quote(str(profile))}", f"conda activate {shlex.quote(prefix)}", "set -u"]
    return [f"{GUESS:<42}# EDIT: what makes `python` the one with imagenet_ddp (module load, conda, ...)"]


def _world(plan: Plan) -> str:
    nodes, devices = plan.wanted.num_nodes or 1, plan.wanted.devices or 1
    kind = "process" if plan.wanted.accelerator == "cpu" else "GPU"
    many = f"{devices} {kind}{'' if devices == 1 else 'es' if kind == 'process' else 's'}"
    where = f"{nodes} node{'' if nodes == 1 else 's'} with {many}{' each' if nodes > 1 else ''}"
    if plan.wanted.one_process:
        where += ", one process"
    elif nodes * devices > 1:
        where += f", {nodes * devices} ranks"
    if plan.wanted.num_jobs is not None:
        where += f"; a task for each of {plan.wanted.num_jobs} jobs of the sweep"
    return f"{where}."


def _directives(plan: Plan) -> Iterator[str]:
    options, wanted = plan.options, plan.wanted
    devices, at_once = wanted.devices or 1, options["array_parallelism"]
    rows: list[tuple[str, object, str]] = [("job-name", options["name"] or wanted.name, "")]
    if wanted.num_jobs is not None:
        last = f"-{wanted.num_jobs - 1}" if wanted.num_jobs > 1 else ""
        rows.append(("array", f"0{last}" + (f"%{at_once}" if at_once else ""), "a task for each job of -m"))
    rows.append(("nodes", wanted.num_nodes or 1, ""))
    if wanted.accelerator != "cpu":
        kind = f"{options['gpu_type']}:" if options["gpu_type"] else ""
        rows.append(("gpus-per-node", f"{kind}{devices}", ""))
    each = options["cpus_per_device"]
    rows.append(("cpus-per-task", each * devices, f"CPUs per node: {each} for each device" if devices > 1 else ""))
    if options["mem_gb_per_device"] is not None:
        rows.append(("mem", f"{options['mem_gb_per_device'] * devices}G", "per node"))
    why = "torchrun starts the processes"
    if options["form"] == "tasks":
        why = "of the batch script; the step below has one task per device"
    rows.append(("ntasks-per-node", 1, "" if wanted.one_process else why))
    rows.append(("time", options["time"], ""))
    again = "save, and be started again" if options["requeue"] else "save"
    rows.append(("signal", f"USR2@{options['signal_s']}", f"{options['signal_s']} seconds before the end: {again}"))
    if options["requeue"]:
        rows.append(("requeue", None, "also after preemption, and when a node fails"))
    else:
        rows.append(("no-requeue", None, ""))
    rows.append(("output", log(plan), ""))
    if options["requeue"]:
        rows.append(("open-mode", "append", "the next turn goes on in the same log"))
    rows += [(key, options[key], "") for key in ("partition", "account", "qos", "constraint") if options[key]]
    for name, value, comment in rows:
        option = f"#SBATCH --{name}" + ("" if value is None else f"={_quoted(str(value))}")
        yield f"{option:<42}# {comment}" if comment else option
    yield from (f"#SBATCH {option}" for option in options["extra"])


def _quoted(value: str) -> str:
    return value if re.fullmatch(r"[\w@%+=:,./&|*()\[\]-]+", value) else f'"{value}"'


def _wrapped(head: str, words: tuple[str, ...] | list[str], indent: str, end: str) -> list[str]:
    """The words, quoted for a shell, in lines of some 120 characters that go on with `end`."""
    lines = [head]
    for word in map(shlex.quote, words):
        if len(lines[-1]) + len(word) + 1 + len(end) > WIDTH and lines[-1].strip():
            lines.append(indent + word)
        else:
            lines[-1] += f" {word}"
    return [*(line + end for line in lines[:-1]), lines[-1]]
