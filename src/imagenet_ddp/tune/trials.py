"""Divide GPUs and CPU cores among the trials of a study, as slots of this machine or as SLURM steps, and run a trial in
its slot as a process: start it in its own session, read its metrics while it runs, and stop it.

Imports neither torch nor Optuna.
"""

import csv
import ctypes
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from imagenet_ddp.cli.overrides import in_folder
from imagenet_ddp.config.schema.commands import TrainConfig
from imagenet_ddp.config.validators import shown
from imagenet_ddp.distributed import nvidia_gpus
from imagenet_ddp.distributed.launchers import slurm
from imagenet_ddp.distributed.launchers.world_info import num_devices
from imagenet_ddp.distributed.nvidia_gpus import no_gpu_reason
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs.folder import is_locked
from imagenet_ddp.system.cpu_cores import num_cores

STOP_S = 120.0  # longest wait for a run to save; SLURM's own limit, KillWait, is 30
FREE_S = 60.0  # longest wait for a run that an earlier, killed tune started


@dataclass(frozen=True)
class Slot:
    """The resources of one running trial."""

    prefix: tuple[str, ...] = ()  # start of the command: srun and its options
    environ: Mapping[str, str] = field(default_factory=dict)  # added to the environment
    cores: tuple[int, ...] = ()  # cores of this machine; empty means all
    stop_signal: int = signal.SIGTERM  # the signal on which a run saves and ends


def uses_srun(launcher: str, environ: Mapping[str, str]) -> bool:
    """Return whether srun starts the trials. With launcher=auto it does so in an allocation, but not in a step, because
    a step only has its own devices."""
    if launcher != "auto":
        return launcher == "srun"
    return "SLURM_JOB_ID" in environ and not slurm.in_step(environ) and shutil.which("srun") is not None


def make_slots(config: TrainConfig, options: Mapping[str, Any], environ: Mapping[str, str]) -> list[Slot]:
    """Return tune.num_at_once slots. config: config of train. options: tune.* Raises ConfigError if this machine
    or allocation does not suffice."""
    num, trainer = options["num_at_once"], config.trainer
    if uses_srun(options["launcher"], environ):
        return _steps(trainer, num, environ)
    if "RANK" in environ or "WORLD_SIZE" in environ:
        raise ConfigError(
            "tune starts the processes of each trial, but RANK or WORLD_SIZE is set. Hint: start tune only once, "
            "without torchrun or srun."
        )
    if trainer["num_nodes"] not in ("auto", 1):
        raise ConfigError(
            f"trainer.num_nodes must be 1 outside of a SLURM allocation, got {trainer['num_nodes']}. "
            "Hint: leave trainer.num_nodes out, or start tune inside sbatch or salloc."
        )
    if num == 1:
        return [Slot()]
    devices = trainer["devices"]
    names = visible_gpus(environ) if no_gpu_reason(trainer) is None else []
    if names and (isinstance(devices, list) or (isinstance(devices, str) and "," in devices)):
        hint = f"Hint: set trainer.devices={num_devices(devices)}, and choose the GPUs with CUDA_VISIBLE_DEVICES."
        raise ConfigError(f"trainer.devices must be a number with tune.num_at_once={num}, got {shown(devices)}. {hint}")
    gpus = _blocks(names, num, num_devices(devices) or max(1, len(names) // num))
    # the cores of this process, no more than its container's quota; trials share a core if there are too few
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return [
        Slot(environ={"CUDA_VISIBLE_DEVICES": ",".join(own)} if own else {}, cores=tuple(own_cores))
        for own, own_cores in zip(gpus, _blocks(cores, num, max(1, num_cores() // num)), strict=True)
    ]


def _blocks(members: Sequence[Any], num: int, size: int) -> list[list[Any]]:
    """Return `num` blocks of `size` members. If there are too few members, begin again with the first."""
    size = min(size, len(members))
    return [[members[(block * size + offset) % len(members)] for offset in range(size)] for block in range(num)]


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """Return the entries of CUDA_VISIBLE_DEVICES. If it is not set, return the UUIDs of all GPUs, because CUDA and
    nvidia-smi may number them in a different order."""
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [uuid for uuid, _ in nvidia_gpus.query_gpus()]
    return [name.strip() for name in named.split(",") if name.strip()]


def _steps(trainer: Mapping[str, Any], num: int, environ: Mapping[str, str]) -> list[Slot]:
    """Return one slot per trial, whose srun requests its share of the allocation's CPUs, GPUs and memory. Without
    --exact, a step would occupy whole nodes, and the next step would wait. Raises ConfigError if the allocation is too
    small."""
    if "SLURM_JOB_ID" not in environ:
        raise ConfigError(
            "tune.launcher=srun starts steps in an allocation, but there is none. Hint: start tune inside sbatch or "
            "salloc, or set tune.launcher=local."
        )
    job, job_nodes = environ["SLURM_JOB_ID"], slurm.num_job_nodes(environ)
    nodes = trainer["num_nodes"] if trainer["num_nodes"] != "auto" else 1
    if nodes > job_nodes:
        raise ConfigError(
            f"trainer.num_nodes must be at most {job_nodes}, the nodes of SLURM job {job}, got {nodes}. "
            f"Hint: set #SBATCH --nodes={nodes} in the batch script."
        )
    per_node = -(-num * nodes // job_nodes)  # trials that share a node
    cpus = min(slurm.expand_counts(environ.get("SLURM_JOB_CPUS_PER_NODE", "")), default=1)
    gpus = 0 if trainer["accelerator"] == "cpu" else _gpus_per_node(environ)
    devices = num_devices(trainer["devices"]) or max(1, gpus // per_node)
    for what, available in (("GPUs", gpus), ("CPUs", cpus)):
        if available and per_node * devices > available:
            most = max(1, available // devices * job_nodes // nodes)
            raise ConfigError(
                f"tune.num_at_once={num} needs {per_node} × {devices} {what} on a node, but SLURM job {job} has "
                f"{available}. Hint: set tune.num_at_once={most}."
            )
    prefix = ["srun", "--exact", f"--nodes={nodes}", f"--ntasks={nodes * devices}", f"--ntasks-per-node={devices}"]
    prefix.append(f"--cpus-per-task={cpus // (per_node * devices)}")
    if gpus:
        prefix += [f"--gpus-per-node={devices}", "--gpu-bind=none"]
    if environ.get("SLURM_MEM_PER_NODE", "").isdecimal() and int(environ["SLURM_MEM_PER_NODE"]):
        prefix.append(f"--mem={int(environ['SLURM_MEM_PER_NODE']) // per_node}M")
    # srun forwards SIGUSR2, but kills its tasks at once on SIGTERM
    return [Slot(tuple(prefix), stop_signal=signal.SIGUSR2) for _ in range(num)]


def _gpus_per_node(environ: Mapping[str, str]) -> int:
    """Return the GPUs per node from SLURM_GPUS_ON_NODE, the count of this node, or else from SLURM_GPUS_PER_NODE, the
    request, such as "a100:4". Return 0 if neither is set."""
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        if match := re.search(r"(\d+)$", environ.get(name, "")):
            return int(match.group())
    return 0


def _before_exec(parent: int, slot: Slot) -> None:
    """Tie a new process to tune, whose pid is `parent`, and to its cores before it executes the command of its
    trial."""
    if sys.platform == "linux":
        # PR_SET_PDEATHSIG: if tune is killed, the run gets the signal on which it saves and ends
        ctypes.CDLL(None).prctl(1, slot.stop_signal)
        if slot.cores:
            os.sched_setaffinity(0, slot.cores)
        if os.getppid() != parent:
            os._exit(1)


@dataclass
class Trial:
    number: int
    options: tuple[str, ...]  # its own options, in addition to the study's
    folder: Path  # the run folder
    slot: Slot
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None  # time.monotonic() at its end
    stopped: float | None = None  # time.monotonic() when the stop signal was sent
    process: subprocess.Popen | None = None
    pruned_at: int | None = None  # epoch
    num_epochs: int = 0  # rows of metrics.csv at the last call of new_epochs

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    def start(self, train_argv: Sequence[str]) -> None:
        """Start the trial's process. train_argv: the study's options for train."""
        slot = self.slot
        self.folder.parent.mkdir(exist_ok=True)
        own = [*self.options, "resume=auto", "cluster.requeue=false"]
        argv = in_folder([*train_argv, *own], "hydra.run.dir", self.folder)
        command = [*slot.prefix, sys.executable, "-m", "imagenet_ddp.train", *argv]

        with self.log.open("a", encoding="utf-8") as log:
            print("$", shlex.join(command), file=log, flush=True)
            # in its own session, because Ctrl-C must only reach tune, which then stops the run
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={**os.environ, **slot.environ}, start_new_session=True,
                preexec_fn=partial(_before_exec, os.getpid(), slot),
            )  # fmt: skip

    def stop(self) -> None:
        """Send the stop signal once; `poll` kills the run after STOP_S."""
        if self.stopped is None and self.process is not None:
            self.stopped = time.monotonic()
            self.process.send_signal(self.slot.stop_signal)

    def poll(self) -> int | None:
        """Return the exit code, which is 128 + n for signal n, or None while the trial runs."""
        assert self.process is not None
        code = self.process.poll()
        if code is None:
            if self.stopped is not None and time.monotonic() - self.stopped > STOP_S:
                self.process.kill()
            return None
        self.ended = self.ended or time.monotonic()
        return code if code >= 0 else 128 - code

    def new_epochs(self) -> dict[int, float]:
        """Return trained epoch -> val/top1 in metrics.csv; {} if there is no new row since the last call."""
        file = self.folder / "metrics.csv"
        rows = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines())) if file.exists() else []
        if len(rows) == self.num_epochs:
            return {}
        self.num_epochs = len(rows)
        return {int(row["epoch"]): float(row["val/top1"]) for row in rows if row["val/top1"] and row["epoch"] != "0"}

    def output(self) -> list[str]:
        """Return the lines of the log since the trial was last started, without empty lines."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return [line for line in f"\n{text}".rpartition("\n$ ")[2].splitlines()[1:] if line.strip()]

    def wait_until_free(self) -> None:
        """Wait for a run that an earlier, killed tune started, because it may still be saving."""
        end = time.monotonic() + FREE_S
        while is_locked(self.folder) and time.monotonic() < end:
            time.sleep(0.2)
