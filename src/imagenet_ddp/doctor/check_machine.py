"""Check this machine: software, devices, cores and shared memory; how it finds the other machines; and the images and
the run folder."""

import platform
import shutil
from importlib import metadata
from pathlib import Path

from imagenet_ddp.cli import check_launch
from imagenet_ddp.data import dataset_summary
from imagenet_ddp.distributed import nccl
from imagenet_ddp.distributed.launchers import slurm
from imagenet_ddp.doctor.run_checks import Check, CheckFunction, Machine, failed, passed
from imagenet_ddp.mistakes import Mistake, setting
from imagenet_ddp.runs import check_run
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.system import nvidia_gpus
from imagenet_ddp.system.cpu_cores import bf16_units, cores_per_process, cpu_quota, num_cores, visible_cores
from imagenet_ddp.system.files import not_writable_reason
from imagenet_ddp.system.text import MIB, count_noun

DEFAULT_NUM_CLASSES = 1000  # if they cannot be counted
PREFETCH = 2  # batches that torch's DataLoader prepares per worker


# ---- this machine ----------------------------------------------------------------------------------------------------


def _versions(machine: Machine) -> list[Check]:
    """Show the versions of Python and of the libraries that affect a run. `pip check` checks their compatibility."""
    import torch

    found = {name: metadata.version(name) for name in ("hydra-core", "lightning", "torch", "torchvision")}
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    words = [f"{name} {version}" for name, version in found.items()]
    return passed(f"python {platform.python_version()}, {', '.join(words)} ({cuda})")


def _devices(machine: Machine) -> list[Check]:
    import torch

    from imagenet_ddp.launch import devices

    if machine.no_device:
        return failed(machine.no_device)
    trainer = machine.config.trainer
    if machine.kind == "cpu":
        bf16 = "computes" if bf16_units() else "does not compute"
        hidden = trainer.accelerator != "auto" or machine.environ.get("CUDA_VISIBLE_DEVICES") == ""
        if not hidden and (present := nvidia_gpus.query_gpus()):
            why = "this version of torch is built without CUDA"
            if torch.version.cuda:
                why = "torch finds none, perhaps because the driver is too old for this version of torch"
            hint = "install torch with CUDA (pytorch.org/get-started), or train without GPUs by trainer.accelerator=cpu"
            gpus = f"{count_noun(len(present), 'GPU')} ({present[0][1]})"
            return [Check("", False, f"this machine has {gpus}, but {why}", hint)]
        return passed(f"{count_noun(machine.num_local, 'process')} on the CPU, which {bf16} in bf16")
    if machine.kind == "mps":
        return passed("the Mac's GPU (mps)")
    gpus = devices.rank_gpus(trainer, 0, devices.count_devices(devices.local_devices(trainer, machine.num_local)))
    of_ranks = {0: gpus} if machine.num_local == 1 else {rank: [gpu] for rank, gpu in enumerate(gpus)}
    (line,) = nvidia_gpus.describe_gpus(of_ranks, dict.fromkeys(of_ranks, ""), len(of_ranks))
    return passed(line.rstrip("."))


def _cores(machine: Machine) -> list[Check]:
    local, usable = machine.num_local, num_cores()
    is_launched = machine.place is not None and not machine.place.is_node
    if is_launched:  # a process of srun or mpirun may see only its own cores
        usable = max(usable, cores_per_process(local) * local)
    cores, quota = max(len(visible_cores()), usable), cpu_quota()
    workers, threads = machine.plan.num_workers.value, machine.plan.num_threads.value
    container = f", of which this container may use {quota:g}" if quota and quota < cores else ""
    each = f"{count_noun(threads, 'thread')} and {count_noun(workers, 'loader worker')} each"
    what = f"{count_noun(cores, 'core')}{container}, for {count_noun(local, 'process')} with {each}"
    too_many = machine.kind == "cpu" and local > usable and not is_launched
    if not too_many and local * max(workers, threads) <= max(usable, local):
        return passed(what)
    hint = f"lower trainer.devices, data.num_workers or cluster.num_threads, for {count_noun(usable, 'core')} in all"
    return [Check("", False, f"{what}, more than can run at the same time", hint)]


def _plan(machine: Machine) -> list[Check]:
    """Show the batch, and the main automatic choices with their reasons."""
    plan = machine.plan
    size, accumulate = plan.config.data.batch_size, plan.config.trainer.accumulate_grad_batches
    batch = f"{count_noun(size, 'image')} per device" + (f" × {accumulate} accumulation" if accumulate > 1 else "")
    words = [batch if plan.batch.reason == "as set" else f"{batch} ({plan.batch.reason})"]
    for name in ("learning_rate", "warmup_epochs", "accelerator", "precision", "compile", "num_workers"):
        choice = plan.choices()[name]
        if choice["reason"] != "as set":
            value = choice["value"]
            words.append(f"{name} {f'{value:.6g}' if isinstance(value, float) else value} ({choice['reason']})")
    return passed("; ".join(words))


def _shared_memory(machine: Machine) -> list[Check]:
    """Check /dev/shm, through which loader workers pass their batches."""
    folder, data, workers = Path("/dev/shm"), machine.config.data, machine.plan.num_workers.value
    if not workers or not folder.is_dir():
        return passed("not needed, because there are no loader workers" if not workers else "there is no /dev/shm")
    size, _, free = shutil.disk_usage(folder)
    images, size_px = max(data.batch_size, data.val_batch_size or 0), max(data.image_size, data.train_size or 0)
    batch = images * 3 * size_px**2  # uint8
    needed = machine.num_local * workers * PREFETCH * batch
    what = (
        f"/dev/shm has {free // MIB:,} of {size // MIB:,} MiB free; {machine.num_local} × {workers} loader workers "
        f"with {PREFETCH} batches of {batch / MIB:.1f} MiB each need {-(-needed // MIB):,} MiB"
    )
    if needed <= free:
        return passed(what)
    size_option = f"--shm-size={max(2 * needed // 2**30, 1)}g"
    hint = f"start the container by `docker run {size_option}` or `docker run --ipc=host`, or lower data.num_workers"
    return [Check("", False, f"{what}, so workers would end with a bus error", hint)]


# ---- other machines: variables, rendezvous ---------------------------------------------------------------------------


def _variables(machine: Machine) -> list[Check]:
    if mistakes := _variable_mistakes(machine):
        return failed(mistakes)
    keys, environ = machine.config.nccl.env, machine.environ
    meets = machine.rendezvous_host
    words = [f"{name}={environ[name]} (environment)" for name in sorted(environ) if name.startswith(nccl.PREFIXES)]
    made = nccl.configured_variables(keys, environ)
    words += [f"{name}={value} (nccl=)" for name, value in made.items() if name not in environ]
    if machine.num_local > 1 or machine.has_other_nodes:
        words += nccl.interface_variables(meets, not machine.has_other_nodes, keys, environ)[1]
    return passed("; ".join(words) or "none set, none needed")


def _variable_mistakes(machine: Machine) -> list[Mistake]:
    return nccl.validate(machine.config.nccl.env, machine.environ, machine.rendezvous_host)


def _rendezvous(machine: Machine) -> list[Check]:
    config, environ, typed = machine.config, machine.environ, machine.typed
    place, mistakes = check_launch.find(config, environ, verb="doctor", typed=typed)
    mistakes += check_launch.validate(config, environ, place, verb="doctor", typed=typed)
    of_variables = _variable_mistakes(machine)  # the check `variables` reports them
    if mistakes := [text for text in mistakes if text not in of_variables]:
        return failed(mistakes)
    found = machine.place
    assert found is not None  # otherwise, validate() has reported why
    if not found.is_node:
        return passed(found.sentence().removeprefix("Rendezvous: ").rstrip("."))
    if found.is_alone:
        return passed(f"none needed: this machine alone, {count_noun(machine.num_local, 'process')}")
    which = "numbered in order of arrival" if found.node_rank is None else f"this is node {found.node_rank}"
    what = f"{found.launcher}: {found.num_nodes} nodes meet at {found.address}, {which}"
    return passed(f"{what}, {count_noun(machine.num_local, 'process')} each")


def _time_limit(machine: Machine) -> list[Check]:
    """Return a failed check if a SLURM job has too short a time limit, otherwise none."""
    mistake = slurm.short_time_limit(machine.environ)
    return failed([mistake]) if mistake else []


# ---- images and run folder -------------------------------------------------------------------------------------------


def _data(machine: Machine) -> list[Check]:
    data, dataset = machine.config.data, machine.dataset
    if data.target:
        return passed(f"{data.target}, which only training opens")
    if dataset.mistakes:
        return failed(dataset.mistakes)
    words = [data.name]
    for split in dataset.splits.values():
        least, most = min(split.counts.values()), max(split.counts.values())
        spread = f"{least} to {most}" if least < most else f"{most}"
        classes = f"{spread} of each of {len(split.counts):,} classes"
        words.append(f"{split.num_images:,} images in {split.images.location}, {classes}")
    return passed("; ".join([*words, *dataset.notes]))


def _samples(machine: Machine) -> list[Check]:
    dataset = machine.dataset
    if dataset.mistakes:
        return passed("not read, because the check data failed")
    if not dataset.splits:
        return passed("there are no images that can be read one by one")
    reading = dataset_summary.read_samples(dataset)
    if reading.mistakes:
        return failed(reading.mistakes)
    what = f"{reading.num_read:,} images read and decoded, from as many classes as time allowed"
    return passed(f"{what}, {reading.images_per_s:,.0f} a second on one core")


def _run_folder(machine: Machine) -> list[Check]:
    """Check that the run folder can be created in its nearest existing parent, without creating it."""
    from imagenet_ddp.models.factory import create_model
    from imagenet_ddp.runs.checkpoint_io import checkpoint_bytes

    config = machine.config
    if mistakes := check_run.validate(config, machine.environ, verb="train"):
        return failed(mistakes)
    wanted = machine.run_dir.absolute()
    if reason := not_writable_reason(wanted):
        what = f"the run folder {wanted} cannot be created: {reason}"
        return failed([Mistake(what, ("hydra.run.dir",), (setting("hydra.run.dir=FOLDER"),))])
    num_classes = machine.dataset.num_classes or DEFAULT_NUM_CLASSES
    # not on the meta device, because many nets read numbers from tensors while they are made (x.item())
    net = create_model(config.model, num_classes, config.seed, config.data.image_size)
    store = CheckpointStore.planned(config.callbacks, wanted)
    free, size = store.free_bytes(), checkpoint_bytes(net, config)
    what = f"{free / 2**30:,.1f} GiB free for {store.folder}; a checkpoint takes {size / 2**20:,.0f} MiB"
    if free < store.MOST_FILES * size:
        hint = "set hydra.run.dir=FOLDER with a folder on another disk"
        return [Check("", False, f"{what}, and {store.MOST_FILES} must fit", hint)]
    return passed(what)


CHECKS: tuple[tuple[str, CheckFunction], ...] = (
    ("versions", _versions),
    ("devices", _devices),
    ("plan", _plan),
    ("cores", _cores),
    ("shared memory", _shared_memory),
    ("variables", _variables),
    ("rendezvous", _rendezvous),
    ("time limit", _time_limit),
    ("data", _data),
    ("images", _samples),
    ("run folder", _run_folder),
)
