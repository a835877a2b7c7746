"""Check devices, nodes, launcher and rendezvous before torch is imported, and thus without asking torch for GPUs."""

import os
import shlex
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.config.schema.keys import validate_group
from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.config.schema.trainer import DEVICES, TrainerConfig, num_devices
from imagenet_ddp.config.validators import integer, shown
from imagenet_ddp.distributed import nccl
from imagenet_ddp.distributed.launchers.detect import LaunchRequest, detect
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, key_of, must_be, setting
from imagenet_ddp.strategies import batch_split
from imagenet_ddp.strategies.batch_split import DATA_PARALLEL
from imagenet_ddp.system import interfaces
from imagenet_ddp.system.cpu_cores import num_cores
from imagenet_ddp.system.nvidia_gpus import no_gpu_reason

BF16 = ("bf16-mixed", "bf16-true", "bf16", "16-mixed", "16")  # on a CPU, where Lightning uses bf16-mixed for 16-mixed
MIN_BF16_PIXELS = 17  # smallest image size for training in bf16 on a CPU

PROCESSES_PER_CORE = 4  # with more processes per core, the machine would only swap


def check(
    config: CommonConfig,
    environ: Mapping[str, str],
    place: Place | None = None,
    *,
    verb: str,
    typed: Sequence[str],
    multirun: bool,
) -> tuple[Place | None, list[Mistake]]:
    """Return (the place of this command; the mistakes of its launcher and devices). place: if it is known; the result
    is None if the launcher is not recognised. multirun: whether this process runs several jobs."""
    if verb == "doctor":  # whose checks look for the launcher
        return None, validate_options(config)
    place, found = (place, []) if place else find(config, environ, verb=verb, typed=typed)
    return place, found + validate(config, environ, place, verb=verb, typed=typed, multirun=multirun)


def validate(
    config: CommonConfig,
    environ: Mapping[str, str],
    place: Place | None,
    *,
    verb: str = "train",
    typed: Sequence[str] = (),
    multirun: bool = False,
) -> list[Mistake]:
    """Return every mistake. place: that of this command; None if the launcher is not recognised. typed: the options as
    typed, for the command lines in hints."""
    trainer, devices = config.trainer, num_devices(config.trainer.devices)
    local = batch_split.num_processes(config.strategy, devices or 1)
    found = _of_options(config, verb)
    if place is None:
        return found
    if trainer.batch_finder is True and verb == "train":
        found += _batch_finder(config, typed)
    if multirun and not place.is_alone:
        found.append(_sweep(place, f"python -m imagenet_ddp.{verb} -m {shlex.join(typed)}"))
    if (place.num_nodes * local if place.is_node else place.world_size) > 1:
        found += validate_multi_process(config)
    host = place.host if place.num_nodes > 1 else None
    if not place.is_alone or devices != 1:
        found += nccl.validate(config.nccl.env, environ, host)
    if place.is_node:
        found += _too_many_processes(trainer, devices)
    if place.address and place.address.file:
        found += validate_rendezvous_file(Path(place.address.file))
    return found


def validate_elsewhere(config: CommonConfig, environ: Mapping[str, str]) -> list[Mistake]:
    """Return every mistake of a SLURM job on other machines, with the nodes and devices of the config."""
    found, trainer = _of_options(config, "train"), config.trainer
    if validate_group("cluster", config.cluster) or validate_group("strategy", {"name": config.strategy.name}):
        return found
    local = batch_split.num_processes(config.strategy, num_devices(trainer.devices) or 1)
    if local > 1 or integer(2).accepts(trainer.num_nodes):
        found += validate_multi_process(config)
    return found + nccl.validate_names(config.nccl.env, environ)


def _of_options(config: CommonConfig, verb: str) -> list[Mistake]:
    found = validate_options(config) + _gpus_of_cpus(config.trainer)
    return found if verb in ("evaluate", "features") else found + _cpu_precision(config)


def find(
    config: CommonConfig, environ: Mapping[str, str], *, verb: str, typed: Sequence[str]
) -> tuple[Place | None, list[Mistake]]:
    """Return (the place of this command, or None; mistakes of its launcher). (None, []) means that options with which
    it cannot be found out are mistakes themselves."""
    strategy, is_of_nodes = config.strategy.name, integer(2).accepts(config.trainer.num_nodes)
    unusable = validate_group("cluster", config.cluster) or validate_group("strategy", {"name": strategy})
    if unusable or (strategy in DATA_PARALLEL and is_of_nodes):
        return None, []
    try:
        return find_place(config, environ, verb=verb, typed=typed), []
    except ConfigError as error:
        keys = "cluster.name", "trainer.num_nodes"
        return None, [replace(each, keys=each.keys or keys) for each in error.mistakes]


def find_place(
    config: CommonConfig, environ: Mapping[str, str], *, verb: str = "train", typed: Sequence[str] = ()
) -> Place:
    """Return where this process is, according to its launcher and the options. Raises ConfigError if they are refused.

    config: the resolved config, whose types have been checked. verb: name of the command. typed: the options as typed.
    """
    trainer, strategy = config.trainer, config.strategy.name
    num_nodes = trainer.num_nodes
    one_process = strategy if strategy in DATA_PARALLEL else None
    request = LaunchRequest(
        num_nodes=num_nodes if isinstance(num_nodes, int) else None,
        devices=None if one_process else num_devices(trainer.devices),
        cluster=config.cluster,
        line=f"python -m imagenet_ddp.{verb} {shlex.join(typed) or f'trainer.num_nodes={num_nodes}'}",
        cpu=no_gpu_reason(trainer.accelerator) is not None,
        one_process=one_process,
    )
    return detect(request, environ)


def _too_many_processes(trainer: TrainerConfig, num_local: int | None) -> list[Mistake]:
    reason, most = no_gpu_reason(trainer.accelerator), PROCESSES_PER_CORE * num_cores()
    if reason is None or num_local is None or num_local <= most:
        return []
    allowed = f"at most {most} ({PROCESSES_PER_CORE} processes per CPU core; {reason})"
    return [must_be("trainer.devices", allowed, str(num_local), setting(f"trainer.devices={num_cores()}"))]


def _batch_finder(config: CommonConfig, typed: Sequence[str]) -> list[Mistake]:
    """Return the errors that trainer.batch_finder=true causes."""
    no_gpu, name = no_gpu_reason(config.trainer.accelerator), config.strategy.name
    size = next((option for option in typed if key_of(option) == "data.batch_size"), None)
    reasons = (
        (no_gpu, "trainer.accelerator", f"needs a GPU, whose memory limits the batch, but {no_gpu}"),
        (
            name in DATA_PARALLEL,
            "strategy",
            f"tries batches on one device, but strategy={name} uses several in one process",
        ),
        (
            config.teacher.weights,
            "teacher.weights",
            "tries batches without the teacher's memory, but teacher.weights is set",
        ),
        (size, "data.batch_size", f"finds data.batch_size, but {size} is set"),
    )
    off = (setting("trainer.batch_finder=false"),)
    return [
        Mistake(f"trainer.batch_finder=true {reason}", ("trainer.batch_finder", key), off)
        for found, key, reason in reasons
        if found
    ]


def validate_options(config: CommonConfig) -> list[Mistake]:
    """Return the errors in cluster.* and strategy.* that do not depend on the machine or the launcher."""
    strategy, trainer = config.strategy, config.trainer
    found = validate_group("cluster", config.cluster) + validate_group("strategy", strategy)
    if (name := strategy.name) in DATA_PARALLEL:
        if integer(2).accepts(trainer.num_nodes):
            what = f"strategy={name} runs in one process, but trainer.num_nodes is {trainer.num_nodes}"
            fixes, hint = (setting("trainer.num_nodes=1"),), "set strategy=ddp to use several machines"
            found.append(Mistake(what, ("strategy.name", "trainer.num_nodes"), fixes, hint))
        if trainer.sync_batchnorm is True:
            what = (
                f"trainer.sync_batchnorm=true is for strategy=ddp, but the strategy is {name}, which keeps only the "
                "batch-norm statistics of the first replica"
            )
            keys = ("trainer.sync_batchnorm", "strategy.name")
            found.append(Mistake(what, keys, (setting("trainer.sync_batchnorm=false"),)))
    return found


def validate_multi_process(config: CommonConfig) -> list[Mistake]:
    """Return the errors of options that do not work with several processes."""
    found, interval = _changes_graph(config), config.trainer.val_check_interval
    if isinstance(interval, str | Mapping):
        allowed = (
            "a number of batches or a fraction of an epoch with several processes, because a time could end at a "
            "different step in each process"
        )
        fix = setting("trainer.val_check_interval=0.25")
        found.append(must_be("trainer.val_check_interval", allowed, shown(interval), fix))
    return found


def _changes_graph(config: CommonConfig) -> list[Mistake]:
    """Return the options with which strategy.static_graph fails, in the first step or only when layers thaw."""
    key = "strategy.static_graph"
    others = (
        ("trainer.accumulate_grad_batches", config.trainer.accumulate_grad_batches, 2, "1"),
        ("model.unfreeze_epoch", config.model.unfreeze_epoch, 1, "null"),
    )
    return [
        Mistake(
            f"{key}=true needs the same graph in every step, but {other}={value} changes it",
            (key, other),
            (setting(f"{key}=false"), setting(f"{other}={without}")),
        )
        for other, value, least, without in others
        if config.strategy.static_graph is True and integer(least).accepts(value)
    ]


def validate_rendezvous_file(path: Path) -> list[Mistake]:
    """Return an error if no file can be created at this path, before any process waits for the file."""
    try:
        fits = stat.S_ISREG(path.stat().st_mode)  # another node may replace the file meanwhile
    except OSError:
        fits = not path.is_symlink()
    if fits and path.parent.is_dir() and os.access(path.parent, os.W_OK | os.X_OK):
        return []
    what = (
        f"cluster.address=file://{path} must name a regular file or a new file, in a folder that exists and is "
        "writable on every node, but does not on this node"
    )
    return [Mistake(what, ("cluster.address",), hint="mount the shared disk, or set another path")]


def _sweep(place: Place, line: str) -> Mistake:
    folder = "" if "hydra.sweep.dir=" in line else " hydra.sweep.dir=runs/SWEEP"
    what = (
        f"-m starts the workers of each job itself, on one node, but {place.size} {place.noun}s take part "
        f"({place.launcher})"
    )
    first = f"{line}{folder} sweep.job=0"
    hint = f"run the same job on each {place.noun}: `{first}`, then the same line with sweep.job=1"
    return Mistake(what, hint=hint)


def is_elsewhere(place: Place) -> bool:
    """Return whether this may be a different machine than node 0, the only node that needs the files of a run."""
    if place.is_alone or place.num_nodes == 1:
        return False
    if place.node_rank is not None:
        return place.node_rank > 0
    try:
        return place.host is None or not interfaces.is_local(interfaces.resolve(place.host))
    except OSError:
        return False


def is_too_small_for_bf16(data: DataConfig) -> bool:
    """Return whether images of this size are too small to train on in bf16 on a CPU.

    A net that halves the image five times then has feature maps of 1 pixel. A strided 3 × 3 kernel applies 8 of its 9
    weights only to padding, and oneDNN leaves the gradients of these weights uninitialised, although they should be 0
    (torch 2.15, AVX512-BF16). tests/launch/test_devices.py checks this behaviour.
    """
    sizes = data.image_size, data.train_size, data.progressive_start
    return any(isinstance(size, int) and size < MIN_BF16_PIXELS for size in sizes)


def _cpu_precision(config: CommonConfig) -> list[Mistake]:
    precision, data = config.trainer.precision, config.data
    if (
        str(precision) not in BF16
        or no_gpu_reason(config.trainer.accelerator) is None
        or not is_too_small_for_bf16(data)
    ):
        return []
    allowed = (
        f"32-true on a CPU for images of less than {MIN_BF16_PIXELS} pixels, because gradients in bf16 may be wrong at "
        "that size"
    )
    return [must_be("trainer.precision", allowed, str(precision), setting("trainer.precision=32-true"))]


def _gpus_of_cpus(trainer: TrainerConfig) -> list[Mistake]:
    """Return an error if trainer.devices names GPUs, but only CPUs are used."""
    devices, reason = trainer.devices, no_gpu_reason(trainer.accelerator)
    names_gpus = (isinstance(devices, str) and "," in devices) or not isinstance(devices, str | int | None)
    if reason is None or not DEVICES.accepts(devices) or not (names_gpus or devices in (-1, "-1")):
        return []
    count = num_devices(devices) or 2
    fix = setting(f"trainer.devices={count}", aim=f"to use {count} CPU processes")
    return [Mistake(f"trainer.devices={shown(devices)} means GPUs, but {reason}", ("trainer.devices",), (fix,))]
