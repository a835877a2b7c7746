"""Check this machine: software, devices, cores, shared memory, open files."""

import platform
import resource
import shutil
from importlib import metadata
from pathlib import Path

from imagenet_ddp.distributed import nvidia_gpus
from imagenet_ddp.distributed.precision import cpu_has_bf16
from imagenet_ddp.doctor.checks import Check, CheckFunction, Machine, failed, passed
from imagenet_ddp.system.cpu_cores import cores_per_process, cpu_quota, num_cores, num_visible_cores
from imagenet_ddp.system.text import MIB, count_noun

DOCKER_SHM_MIB = 64  # Docker's default for /dev/shm
PREFETCH = 2  # batches that torch's DataLoader prepares per worker
FILES_PER_PROCESS, FILES_PER_WORKER = 250, 50  # generous estimates of the files open at once


def _versions(machine: Machine) -> list[Check]:
    """Show the versions of Python and of the libraries that affect a run. `pip check` checks their compatibility."""
    import torch

    found = {"python": platform.python_version()}
    found |= {name: metadata.version(name) for name in ("hydra-core", "lightning", "torch", "torchvision")}
    built = f" (CUDA {torch.version.cuda})" if torch.version.cuda else " (no CUDA)"
    words = [f"{name} {version}{built if name == 'torch' else ''}" for name, version in found.items()]
    return passed(", ".join(words), versions=found, cuda=torch.version.cuda)


def _devices(machine: Machine) -> list[Check]:
    from imagenet_ddp.distributed import devices

    if machine.no_device:
        return failed(machine.no_device)
    trainer = machine.config["trainer"]
    if machine.kind == "cpu":
        bf16 = "computes" if cpu_has_bf16() else "does not compute"
        hidden = trainer["accelerator"] != "auto" or machine.environ.get("CUDA_VISIBLE_DEVICES") == ""
        if not hidden and (present := nvidia_gpus.query_gpus()):
            return failed([_unseen(present)])
        return passed(f"{count_noun(machine.num_local, 'process')} on the CPU, which {bf16} in bf16", kind="cpu")
    if machine.kind == "mps":
        return passed("the Mac's GPU (mps)", kind="mps")
    gpus = devices.rank_gpus(trainer, 0, devices.count_devices(devices.local_devices(trainer, machine.num_local)))
    of_ranks = {0: gpus} if machine.num_local == 1 else {rank: [gpu] for rank, gpu in enumerate(gpus)}
    (line,) = nvidia_gpus.describe_gpus(of_ranks, dict.fromkeys(of_ranks, ""), len(of_ranks))
    return passed(line.rstrip("."), kind="cuda", gpus=[vars(gpu) for gpu in gpus])


def _unseen(present: list[tuple[str, str]]) -> str:
    import torch

    why = (
        "torch finds none, perhaps because the driver is too old for this version of torch."
        if torch.version.cuda
        else "this version of torch is built without CUDA."
    )
    return (
        f"this machine has {count_noun(len(present), 'GPU')} ({present[0][1]}), but {why} "
        "Hint: install torch with CUDA (pytorch.org/get-started), or set trainer.accelerator=cpu to train without GPUs."
    )


def _cores(machine: Machine) -> list[Check]:
    local = machine.num_local
    usable = max(num_cores(), cores_per_process(local) * local)  # a SLURM task sees only its own cores
    cores, quota = max(num_visible_cores(), usable), cpu_quota()
    workers, threads = machine.plan.num_workers.value, machine.plan.num_threads.value
    container = f", of which this container may use {quota:g}" if quota and quota < cores else ""
    each = f"{count_noun(threads, 'thread')} and {count_noun(workers, 'loader worker')} each"
    what = f"{count_noun(cores, 'core')}{container}, for {count_noun(local, 'process')} with {each}"
    numbers = {"num_cores": cores, "cpu_quota": quota, "num_threads": threads, "num_workers": workers}
    hints = []
    if local * workers > max(usable, local):
        hints.append(f"data.num_workers={max(usable // local - (machine.kind != 'cpu'), 0)}")
    if local * threads > max(usable, local):
        hints.append(f"cluster.num_threads={max(usable // local, 1)}")
    if hints:
        hint = f"set {' '.join(hints)}"
        return [Check("cores", False, f"{what}, more than can run at the same time", hint, numbers=numbers)]
    return passed(what, **numbers)


def _plan(machine: Machine) -> list[Check]:
    """Show the batch, and the main automatic choices with their reasons. The numbers are the whole plan."""
    plan = machine.plan
    size, accumulate = plan.batch.value["images_per_device"], plan.batch.value["accumulation"]
    batch = f"{count_noun(size, 'image')} per device" + (f" × {accumulate} accumulation" if accumulate > 1 else "")
    chosen = [
        (f"learning rate {plan.learning_rate.value:g}", plan.learning_rate.reason),
        (f"{plan.warmup_epochs.value:g} epochs of warm-up", plan.warmup_epochs.reason),
        (f"accelerator {plan.accelerator.value}", plan.accelerator.reason),
        (f"precision {plan.precision.value}", plan.precision.reason),
        (f"compile {plan.compile.value}", plan.compile.reason),
        (count_noun(plan.num_workers.value, "loader worker"), plan.num_workers.reason),
    ]
    words = [batch if plan.batch.reason == "as set" else f"{batch} ({plan.batch.reason})"]
    words += [f"{what} ({reason})" for what, reason in chosen if reason != "as set"]
    return passed("; ".join(words), **plan.choices())


def _shared_memory(machine: Machine) -> list[Check]:
    """Check /dev/shm, through which loader workers pass their batches."""
    folder, data = Path("/dev/shm"), machine.config["data"]
    if not folder.is_dir():
        return passed("this system has no /dev/shm")
    size, _, free = shutil.disk_usage(folder)
    batch = (
        max(data["batch_size"], data["val_batch_size"] or 0) * 3 * max(data["image_size"], data["train_size"] or 0) ** 2
    )  # uint8
    workers = machine.plan.num_workers.value
    needed = machine.num_local * workers * PREFETCH * batch
    numbers = {"free_mib": free // MIB, "size_mib": size // MIB, "needed_mib": -(-needed // MIB)}
    what = (
        f"/dev/shm has {free // MIB:,} of {size // MIB:,} MiB free; {machine.num_local} × {workers} loader workers "
        f"with {PREFETCH} batches of {batch / MIB:.1f} MiB each need {-(-needed // MIB):,} MiB"
    )
    if not workers:
        return passed("not needed, because there are no loader workers", **numbers)
    if needed <= free:
        return passed(what, **numbers)
    docker = f" ({DOCKER_SHM_MIB} MiB is Docker's default)" if size == DOCKER_SHM_MIB * MIB else ""
    size_option = f"--shm-size={max(2 * needed // 2**30, 1)}g"
    hint = f"start the container by `docker run {size_option}` or `docker run --ipc=host`, or lower data.num_workers"
    return [Check("", False, f"{what}{docker}, so workers would end with a bus error", hint, numbers=numbers)]


def _open_files(machine: Machine) -> list[Check]:
    """Check the limit of open files. Each batch of a worker and each pipe to a worker is an open file.

    Training and validation have separate workers.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = FILES_PER_PROCESS + 2 * machine.plan.num_workers.value * FILES_PER_WORKER
    words = "any number of" if soft == resource.RLIM_INFINITY else f"{soft:,}"
    what = f"a process may open {words} files; {machine.plan.num_workers.value} loader workers need about {needed:,}"
    numbers = {"limit": soft, "needed": needed}
    if soft in (resource.RLIM_INFINITY, -1) or soft >= needed:
        return passed(what, **numbers)
    most = hard if hard not in (resource.RLIM_INFINITY, -1) else 65_536
    hint = f"type `ulimit -n {most}` before the command, or lower data.num_workers"
    return [Check("", False, what, hint, numbers=numbers)]


CHECKS: tuple[tuple[str, CheckFunction], ...] = (
    ("versions", _versions),
    ("devices", _devices),
    ("plan", _plan),
    ("cores", _cores),
    ("shared memory", _shared_memory),
    ("open files", _open_files),
)
