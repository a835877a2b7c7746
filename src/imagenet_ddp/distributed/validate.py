"""Check devices, nodes, launcher and rendezvous before torch is imported, and thus without asking torch for GPUs."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from imagenet_ddp.config.keys import key_of, validate_group
from imagenet_ddp.config.schema.trainer import DEVICES
from imagenet_ddp.config.validators import integer, shown
from imagenet_ddp.distributed import address_file
from imagenet_ddp.distributed.launchers import slurm
from imagenet_ddp.distributed.launchers.detect import detect
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo, num_devices
from imagenet_ddp.distributed.network import interfaces, nccl
from imagenet_ddp.distributed.nvidia_gpus import no_gpu_reason
from imagenet_ddp.distributed.strategies import batch_split
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.cpu_cores import num_cores

PROCESSES_PER_CORE = 4  # with more processes per core, the machine would only swap
BF16 = ("bf16-mixed", "bf16-true", "bf16", "16-mixed", "16")  # on a CPU, where Lightning uses bf16-mixed for 16-mixed
MIN_BF16_PIXELS = 17  # smallest image size for training in bf16 on a CPU


def validate(
    config: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    verb: str = "train",
    typed: Sequence[str] = (),
    multirun: bool = False,
    elsewhere: bool = False,
) -> tuple[list[str], LaunchInfo | None]:
    """Return all errors, and the launch info of this command.

    The launch info is None if the launcher is not recognised, or if elsewhere is true. typed: the options as typed, for
    the command lines in hints. elsewhere: whether the run is a SLURM job on other machines, with the nodes and devices
    of the config.
    """
    local = batch_split.num_processes(config["strategy"], num_devices(config["trainer"].get("devices")) or 1)
    if elsewhere:
        environ = slurm.first_task(environ, config["trainer"].get("num_nodes"), local)
    errors = validate_options(config)
    strategy, num_nodes = config["strategy"], config["trainer"].get("num_nodes")
    unusable = validate_group("cluster", config["cluster"]) or validate_group("strategy", {"name": strategy["name"]})
    errors += _cpu(config, environ)
    if verb != "evaluate":
        errors += _cpu_precision(config)
    if unusable or (strategy["name"] in batch_split.DATA_PARALLEL and integer(2).accepts(num_nodes)):
        return errors, None  # the number of processes depends on these values
    try:
        launch_info = detect(config, environ, verb=verb, typed=typed)
    except ConfigError as error:
        return errors + error.mistakes, None
    if config["trainer"].get("batch_finder") is True and verb == "train" and not elsewhere:
        errors += _batch_finder(config, typed)
    if multirun and not launch_info.standalone:
        errors.append(_sweep(launch_info, f"python -m imagenet_ddp.{verb} -m {shlex.join(typed)}"))
    if (launch_info.world_info.world_size if launch_info.world_info else launch_info.num_nodes * local) > 1:
        errors += validate_multi_process(config["trainer"])
    host = launch_info.host if launch_info.num_nodes > 1 else None
    if not launch_info.standalone or num_devices(config["trainer"].get("devices")) != 1:
        errors += nccl.validate(config["nccl"], environ, host, elsewhere=elsewhere)
    if launch_info.address and launch_info.address.file and not elsewhere:
        errors += address_file.validate(launch_info.address.file)
    return errors, None if elsewhere else launch_info


def _batch_finder(config: Mapping[str, Any], typed: Sequence[str]) -> list[str]:
    """Return the errors that trainer.batch_finder=true causes."""
    found = []
    if reason := no_gpu_reason(config["trainer"]):
        found.append(
            f"trainer.batch_finder=true needs a GPU, whose memory limits the batch, but {reason}. Hint: "
            "set trainer.batch_finder=false."
        )
    if config["strategy"]["name"] in batch_split.DATA_PARALLEL:
        found.append(
            f"trainer.batch_finder=true tries batches on one device, but strategy={config['strategy']['name']} uses "
            "several devices in one process. Hint: set strategy=ddp."
        )
    if config["teacher"]["weights"]:
        found.append(
            "trainer.batch_finder=true tries batches without the teacher, which needs memory too, but teacher.weights="
            f"{config['teacher']['weights']} is set. Hint: set trainer.batch_finder=false data.batch_size=32."
        )
    if size := next((option for option in typed if key_of(option) == "data.batch_size"), None):
        found.append(
            f"trainer.batch_finder=true finds data.batch_size, but {size} is set. Hint: set trainer.batch_finder=false."
        )
    return found


def validate_options(config: Mapping[str, Any]) -> list[str]:
    """Return the errors in cluster.* and strategy.* that do not depend on the machine or the launcher."""
    return [
        *validate_group("cluster", config["cluster"]),
        *validate_group("strategy", config["strategy"]),
        *_static_graph(config["strategy"], config["trainer"]),
        *batch_split.validate(config["strategy"], config["trainer"], num_devices(config["trainer"].get("devices"))),
    ]


def _static_graph(strategy: Mapping[str, Any], trainer: Mapping[str, Any]) -> list[str]:
    if strategy["name"] in batch_split.DATA_PARALLEL or not strategy["static_graph"]:
        return []
    if not integer(2).accepts(accumulate := trainer.get("accumulate_grad_batches")):
        return []
    return [
        f"strategy.static_graph=true does not work with trainer.accumulate_grad_batches={accumulate}, because torch's "
        "DistributedDataParallel stops in the first step (expect_autograd_hooks_ INTERNAL ASSERT FAILED, pytorch issue "
        "143580). Hint: set strategy.static_graph=false, with strategy.find_unused_parameters=true if there are unused "
        "parameters."
    ]


def validate_multi_process(trainer: Mapping[str, Any]) -> list[str]:
    """Return the errors of options that do not work with several processes."""
    interval = trainer.get("val_check_interval")
    if not isinstance(interval, str | Mapping):
        return []
    return [
        "trainer.val_check_interval must be a number of batches or a fraction of an epoch with several processes, got "
        f"{shown(interval)}. A time could end at a different step in each process. "
        "Hint: set trainer.val_check_interval=0.25."
    ]


def _sweep(launch_info: LaunchInfo, line: str) -> str:
    folder = "" if "hydra.sweep.dir=" in line else " hydra.sweep.dir=runs/SWEEP"
    return (
        f"-m starts the workers of each job itself, on one node, but {launch_info.size} {launch_info.noun}s take part "
        f"({launch_info.source}). Hint: run the same job on each {launch_info.noun}: `{line}{folder} sweep.job=0`, "
        "then the same line with sweep.job=1."
    )


def is_elsewhere(launch_info: LaunchInfo) -> bool:
    """Return whether this may be a different machine than node 0, the only node that needs the files of a run."""
    if launch_info.standalone or launch_info.num_nodes == 1:
        return False
    if launch_info.node_rank is not None:
        return launch_info.node_rank > 0
    try:
        return launch_info.host is None or not interfaces.is_local(interfaces.resolve(launch_info.host))
    except OSError:
        return False


def is_too_small_for_bf16(data: Mapping[str, Any]) -> bool:
    """Return whether images of this size are too small to train on in bf16 on a CPU.

    A net that halves the image five times then has feature maps of 1 pixel. A strided 3 × 3 kernel applies 8 of its 9
    weights only to padding, and oneDNN leaves the gradients of these weights uninitialised, although they should be 0
    (torch 2.15, AVX512-BF16). tests/distributed/test_devices.py checks this behaviour.
    """
    sizes = [data.get(key) for key in ("image_size", "train_size", "progressive_start")]
    return any(isinstance(size, int) and size < MIN_BF16_PIXELS for size in sizes)


def _cpu_precision(config: Mapping[str, Any]) -> list[str]:
    precision, data = config["trainer"].get("precision"), config.get("data") or {}
    if str(precision) not in BF16 or no_gpu_reason(config["trainer"]) is None or not is_too_small_for_bf16(data):
        return []
    return [
        f"trainer.precision must be 32-true on a CPU for images of less than {MIN_BF16_PIXELS} pixels, because "
        f"gradients in bf16 may be wrong at that size, got {precision}. Hint: set trainer.precision=32-true."
    ]


def _cpu(config: Mapping[str, Any], environ: Mapping[str, str]) -> list[str]:
    """Return an error if trainer.devices cannot be used on CPUs; [] if there may be a GPU."""
    trainer = config["trainer"]
    devices, reason = trainer.get("devices"), no_gpu_reason(trainer)
    if not DEVICES.accepts(devices) or reason is None:
        return []  # the value is reported elsewhere, or torch checks the GPUs later
    count, origin = num_devices(devices), ""
    names_gpus = (isinstance(devices, str) and "," in devices) or not isinstance(devices, str | int | None)
    if names_gpus or devices in (-1, "-1"):
        what = "names GPUs" if names_gpus else "means all GPUs"
        return [
            f"trainer.devices={shown(devices)} {what}, but {reason}. "
            f"Hint: set trainer.devices={count or 2} to use {count or 2} CPU processes."
        ]
    if count is None and environ.get("LOCAL_WORLD_SIZE", "").isdecimal():
        count, origin = int(environ["LOCAL_WORLD_SIZE"]), " (LOCAL_WORLD_SIZE, from the launcher)"
    cores = num_cores()
    if environ.get("SLURM_CPUS_ON_NODE", "").isdecimal() and slurm.read_step(environ):
        cores = max(cores, int(environ["SLURM_CPUS_ON_NODE"]))  # this task may use only some cores of the node
    if count is not None and count > PROCESSES_PER_CORE * cores:
        return [
            f"trainer.devices must be at most {PROCESSES_PER_CORE * cores} ({PROCESSES_PER_CORE} processes "
            f"for each of {cores} CPU cores; {reason}), got {count}{origin}. Hint: set trainer.devices={cores}."
        ]
    return []
