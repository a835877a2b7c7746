"""The typed keys of the command line, where conf/ lies, and how a mistake is said.

The ground floor: every room may import this file; it imports neither torch nor lightning nor any other room.
Lightning's own Trainer keys are in `trainer_options.py`; a field here says its unit and what None or "auto" means.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig


def conf_dir() -> Path:
    """The folder of YAML files: beside the modules in an installed wheel, at the top of a checkout otherwise."""
    here = Path(__file__).resolve().parents[1]
    for candidate in (here / "conf", here.parent.parent / "conf"):
        if (candidate / "train.yaml").is_file():
            return candidate
    raise FileNotFoundError(f"conf/train.yaml is neither in {here} nor in {here.parent.parent}: reinstall imagenet_ddp")


def leaves(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"trainer.devices": 2, ...}"""
    found: dict[str, Any] = {}
    for key, value in node.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            found.update(leaves(value, f"{path}."))
        else:
            found[path] = value
    return found


@dataclass
class DataConfig:
    name: str = MISSING  # shapes, imagefolder, imagenet, stl10, packed, streamed; free where _target_ is given
    _target_: str | None = None  # your own source: called with root= and the keys of args; see data/sources/base.py
    args: dict[str, Any] = field(default_factory=dict)  # keyword arguments of _target_; streamed: of its file system
    root: str | None = None  # folder of the data set; None: the source's own default place
    train_dir: str = "train"  # folder of training images, below root or absolute
    val_dir: str = "val"  # folder of validation images, below root or absolute
    val_fraction: float | None = (
        None  # share of each class's training images kept for validation, where there is no val_dir
    )
    fold: int | None = None  # stl10: official fold 0 to 9 of 1,000 training images; None: all 5,000
    download: bool = True  # stl10: fetch the archive where it is missing
    verify: bool = False  # packed, streamed: compare the checksum of each image as it is read
    shuffle_window_shards: int = 0  # packed, streamed: shards among which images are shuffled; 0: all
    cache_dir: str | None = None  # streamed: folder of shards; None: $XDG_CACHE_HOME/imagenet_ddp, ~/.cache/...
    cache_gib: float | None = None  # streamed: most room of the shards kept there, the oldest leave; None: all are kept
    image_size: int = 224  # pixels, height and width of what the net sees
    val_resize: int | None = None  # pixels of the short side before the centre crop; None: image_size × 256/224
    augment: str = "crop"  # crop: random resized crop and flip; none: as in validation
    crop_scale: list[float] = field(default_factory=lambda: [0.08, 1.0])  # share of the image's area, least and most
    flip: float = 0.5  # probability of a horizontal flip
    progressive_start: int | None = None  # pixels of training images in the first epochs; None: image_size throughout
    progressive_epochs: list[int] | None = None  # epochs, from 0, between which they grow to image_size, by 32 pixels
    mean: list[float] = field(default_factory=lambda: [0.485, 0.456, 0.406])  # per channel, of pixels in 0..1
    std: list[float] = field(default_factory=lambda: [0.229, 0.224, 0.225])
    batch_size: int = 32  # images per device and step
    val_batch_size: int | None = None  # images per device; None: batch_size
    decoder: str = "auto"  # of JPEG files: simplejpeg, torchvision, pillow; auto: the fastest there is
    exif_orientation: bool = False  # true: images are turned as the camera noted; false: as stored, as ImageNet's are
    on_bad_image: str = "raise"  # an image that cannot be read: raise: ends the run; skip: another takes its place
    bad_image_limit: float = 0.01  # skip: images that may be unreadable: a number, or below 1 a share
    cache_mib: int = 512  # of each process: images that fit in there are decoded once and kept; 0: none
    num_workers: Any = "auto"  # loader processes per rank: a number or auto
    loader_timeout_s: float = 1800.0  # longest wait for one batch of images, then the run ends; 0: no bound
    pin_memory: Any = "auto"  # true, false or auto (where there is a CUDA device)
    mp_context: str = (
        "auto"  # how loader processes start: fork, forkserver, spawn; auto: see data/loading/worker_processes.py
    )


@dataclass
class LoaderConfig:
    name: str = "default"  # default; dali: NVIDIA DALI decodes and crops the training images; see docs/data.md
    device: str = "auto"  # dali: where it decodes: cpu, gpu; auto: where the model trains
    num_threads: Any = "auto"  # dali: its threads on the CPU; auto: as many as there would be loader processes


@dataclass
class ModelConfig:
    name: str = "resnet18"  # any classifier of torchvision.models; free where _target_ is given
    _target_: str | None = None  # your own net: called with num_classes= and the keys of args
    args: dict[str, Any] = field(default_factory=dict)  # keyword arguments of the net
    channels_last: bool = True  # memory format; convolutions are faster in it on CPUs and on tensor cores


@dataclass
class OptimConfig:
    name: str = "sgd"  # sgd; adamw: takes lr and weight_decay; free where _target_ is given
    _target_: str | None = None  # your own optimiser: called with params=, lr= and the keys of args
    args: dict[str, Any] = field(default_factory=dict)  # keyword arguments of _target_
    lr: float = 0.1
    reference_batch: int | None = (
        None  # images: lr is for this global batch and scaled linearly to the real one; None: as it is
    )
    momentum: float = 0.9
    weight_decay: float = 1e-4
    nesterov: bool = False


@dataclass
class ScheduleConfig:
    name: str = "step"  # step, cosine, linear, constant
    step_epochs: int = 30  # step: epochs between two drops
    gamma: float = 0.1  # step: factor of each drop
    warmup_epochs: Any = "auto"  # linear from 0 to lr over so many epochs; auto: 5 where lr is scaled up, else 0
    final_fraction: float = 0.0  # cosine, linear: last learning rate as a share of lr


@dataclass
class LossConfig:
    name: str = "cross_entropy"
    label_smoothing: float = 0.0


@dataclass
class StrategyConfig:
    name: str = "auto"  # auto: one device plain, several ddp; ddp; dp; balanced_dp
    process_group_backend: str | None = None  # nccl, gloo, mpi; None: nccl on GPUs, gloo on CPUs
    timeout_s: float = 1800.0  # longest wait in one collective
    find_unused_parameters: bool = False  # DistributedDataParallel: look for parameters without gradient, each step
    bucket_cap_mb: float = 25.0  # DistributedDataParallel: MiB of gradients per all-reduce
    static_graph: bool = False  # DistributedDataParallel: the graph is the same in every step
    gradient_as_bucket_view: bool = True  # DistributedDataParallel: gradients live in the buckets, one copy less
    forward_sync_buffers: bool = True  # DistributedDataParallel: rank 0's buffers to all before each forward
    init_sync: bool = True  # DistributedDataParallel: rank 0's weights to all at the start
    comm_hook: str | None = None  # how gradients travel: fp16, bf16, powersgd; None: as they are
    powersgd_rank: int = 1  # comm_hook=powersgd: rank of the two factors that stand for each gradient matrix
    powersgd_start_step: int = 1000  # comm_hook=powersgd: optimiser steps with whole gradients before
    first_device_batch: Any = "auto"  # balanced_dp: images of the first device per forward; 0: it only gathers


@dataclass
class ClusterConfig:
    name: str = "auto"  # auto; tcp, file: at cluster.address; env: MASTER_ADDR, RANK, ... of the environment
    address: str | None = None  # tcp://HOST:PORT, HOST:PORT, HOST or file:///PATH; None: MASTER_ADDR and MASTER_PORT
    node_rank: int | None = None  # number of this node, one command per node; None: NODE_RANK, or found out
    rank: int | None = None  # number of this process, one command per process; with local_rank and world_size
    local_rank: int | None = None  # number of this process on its node, one command per process
    world_size: int | None = None  # processes in all, one command per process
    job_id: str | None = None  # tells this job from others at the same address; needed for two equal ones
    timeout_s: float = 120.0  # longest wait for all to arrive
    requeue: bool = True  # on SIGUSR2, once all is saved: have SLURM start the job again, where it allows that
    num_threads: Any = "auto"  # CPU threads per process: a number or auto (this machine's cores / its processes)


@dataclass
class NcclConfig:
    """Environment variables of NCCL, Gloo and libfabric, by their own names: see docs/nccl.md."""

    name: str = "default"
    # without struct, so that nccl.env.NCCL_DEBUG=INFO needs no +
    env: dict[str, Any] = field(default_factory=lambda: DictConfig({}, flags={"struct": False}))  # type: ignore


@dataclass
class _Common:
    """Keys that train and evaluate share."""

    name: str = "${data.name}_${model.name}"  # run folders are runs/<name>/<time>
    seed: int = 0  # of initial weights, order of images, augmentation, generated data
    allow_targets: list[str] = field(default_factory=list)  # packages whose names may stand in a _target_
    val_log_every_n_steps: int = 100  # validation batches between two lines of the log
    data: DataConfig = field(default_factory=DataConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    trainer: dict[str, Any] = field(
        default_factory=dict
    )  # Lightning's Trainer, key by key: see config/trainer_options.py
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    nccl: NcclConfig = field(default_factory=NcclConfig)
    callbacks: dict[str, Any] = field(default_factory=dict)  # name -> {_target_: ..., arguments}
    logger: dict[str, Any] = field(default_factory=dict)  # name -> {_target_: ..., arguments}


@dataclass
class SweepConfig:
    """What -m runs."""

    job: Any = "auto"  # number of the only job to run; all; list: show them; auto: the job array's task, else all
    resume: str | None = None  # folder of a sweep: its options, its finished jobs left out, the others gone on with


@dataclass
class TrainConfig(_Common):
    sweep: SweepConfig = field(default_factory=SweepConfig)
    resume: str | None = None  # path of a checkpoint, or auto: the last one of this run, else a fresh start


@dataclass
class EvaluateConfig(_Common):
    checkpoint: str = MISSING  # path


@dataclass
class DoctorConfig(TrainConfig):
    format: str = "text"  # text, or json for scripts


@dataclass
class PredictConfig(_Common):
    checkpoint: str = MISSING  # path
    images: str = MISSING  # a file, a folder (searched to the bottom), or a pattern
    out: str | None = None  # file to write; None: the screen
    format: str = "csv"  # csv or jsonl
    top_k: int = 5  # classes per image, most likely first


@dataclass
class TuneOptions:
    num_trials: int = 20  # of the whole study: finished, pruned and failed ones
    num_at_once: int = 1  # trials that run at the same time, each with its share of GPUs and CPU cores
    launcher: str = "auto"  # local; srun: a step each, inside an allocation; auto: srun where there is an allocation
    resume: str | None = None  # folder of the study to go on with; auto: the newest unfinished one, else a new one
    sampler: str = "tpe"  # tpe: learns from the trials before; random
    num_random_trials: int = 10  # tpe: so many random trials before it learns
    pruner: str = "median"  # which trials end early: median: below the others' median; hyperband; none
    pruner_num_trials: int = 4  # median: so many trials finish first
    pruner_num_epochs: int = 3  # no trial ends before so many epochs
    hyperband_factor: int = 3  # hyperband: one of so many trials lives on from each rung
    timeout_s: float | None = None  # no trial begins after so many seconds of this command
    max_failures: int = 3  # the study ends after so many failed trials in a row


@dataclass
class TuneConfig(TrainConfig):
    tune: TuneOptions = field(default_factory=TuneOptions)
    search: dict[str, Any] = field(default_factory=dict)  # key -> {low, high, log, step} or {choices}; see docs/tuning


@dataclass
class SubmitOptions:
    """What sbatch is asked for besides nodes and GPUs (trainer.num_nodes, trainer.devices). None: as in the script."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None  # features of the nodes, as sbatch --constraint takes them
    time: str | None = None  # limit of one turn: minutes, hours:minutes:seconds, days-hours, ...
    cpus_per_device: int | None = None  # None: data.num_workers + 1, or 8 where that is auto
    mem_gb_per_device: int | None = None
    gpu_type: str | None = None  # as the cluster calls it
    name: str | None = None  # of the job; None: the run's
    array_parallelism: int | None = None  # tasks of a job array that may run at the same time; None: no limit
    extra: str | None = None  # further options of sbatch, such as --exclusive
    now: bool = False  # true: run the command


@dataclass
class SubmitConfig(TrainConfig):
    submit: SubmitOptions = field(default_factory=SubmitOptions)


@dataclass
class PrepareOptions:
    name: str = MISSING  # imagenet, stl10: from the archives; pack: into the packed form; check: every image looked at
    num_workers: Any = "auto"  # images or classes worked on at the same time: a number or auto (this machine's cores)
    verify: bool = True  # imagenet: whether the archives' MD5 and counts are compared with the official ones
    timeout_s: float = 60.0  # check: longest time for one image; then it is listed as bad
    memory_mib: int = 4096  # check: most memory for one image beyond what the reader itself takes
    short_side: int = 256  # pack: pixels of the short side, never enlarged; 0: as it is
    quality: int = 90  # pack: of the JPEGs, 1 to 100
    form: str = "jpeg"  # pack: jpeg, or raw (uint8 pixels)
    shard_mib: int = 64  # pack: size of one file, about


@dataclass
class PrepareConfig(_Common):
    name: str = "${data.name}"  # the report of check is in runs/<name>/check_<time>
    prepare: PrepareOptions = field(default_factory=PrepareOptions)
    archive_dir: str | None = None  # imagenet, stl10: folder that holds the archives
    out: str | None = None  # folder that is written


@dataclass
class BenchmarkOptions:
    name: str = MISSING  # loader: how many images per second reach the model, and what would make it more
    num_images: int = 500  # training images that are measured with, evenly from all
    repeats: int = 5  # of each measurement, in turns; medians are told
    num_workers: list[int] | None = None  # loader processes to compare; None: 0, 1, 2, 4, ... up to the cores
    short_side: int = 256  # pixels of the packed images that are compared
    quality: int = 90  # of their JPEGs
    model: bool = True  # whether the model's own speed is measured too


@dataclass
class BenchmarkConfig(_Common):
    benchmark: BenchmarkOptions = field(default_factory=BenchmarkOptions)


VERBS: dict[str, type] = {
    "train": TrainConfig,
    "evaluate": EvaluateConfig,
    "predict": PredictConfig,
    "doctor": DoctorConfig,
    "tune": TuneConfig,
    "submit": SubmitConfig,
    "prepare": PrepareConfig,
    "benchmark": BenchmarkConfig,
}


def register(verb: str) -> None:
    """Put the typed node where conf/<verb>.yaml finds it: schema/<verb>. Only this one: Hydra copies the whole store
    about a hundred times for --help, and three nodes cost a third of a second."""
    ConfigStore.instance().store(group="schema", name=verb, package="_global_", node=VERBS[verb])
