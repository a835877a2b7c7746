"""Declare every key of the command line once: its type, the values it may have, its default and its meaning.

    batch_size: Annotated[int, integer(1), "Images per device and step."] = 32

From here come the checks (`config/keys.py`), `--help` and docs/reference.md. Without allowed values the type alone
counts; null is allowed where the type is `| None`. `Example` is what a hint tells to type instead of the default.
The keys of Lightning's Trainer are in `trainer_options.py`. Imports neither torch nor lightning.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from omegaconf import MISSING, DictConfig, ListConfig

from imagenet_ddp.config.validators import AUTO, FLAG, NULL, Example, choice, integer, kind, list_of, matching, number


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


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of each channel, of pixels in 0..1
_NAMES = r"[^\s,=^]+(,[^\s,=^]+)*"
_WORD = matching(r"\S+( \S+)*", "text without blanks at its ends")
_CROP_SCALE = kind(
    "two shares of the image's area, 0 < least ≤ most ≤ 1",
    lambda value: list_of(number(above=0, most=1), "", 2).accepts(value) and value[0] <= value[1],
)
_EPOCHS = kind(
    "two epochs, counted from 0, first < last",
    lambda value: list_of(integer(0), "", 2).accepts(value) and value[0] < value[1],
)

# fmt: off  (one key per line, or two)


@dataclass
class DataConfig:
    name: Annotated[str, "shapes, imagefolder, imagenet, stl10, packed or streamed; any name with _target_."] = MISSING
    _target_: Annotated[str | None, "Your own source: called with root= and the keys of args."] = None
    args: Annotated[dict[str, Any], "Keyword arguments of _target_; streamed: of its file system."] = field(
        default_factory=dict
    )
    root: Annotated[str | None, "Folder of the data set: train/<class>/, val/<class>/; null: the source's default."] = (
        None
    )
    train_dir: Annotated[str, "Folder of training images, below root or absolute."] = "train"
    val_dir: Annotated[str, "Folder of validation images, below root or absolute."] = "val"
    val_fraction: Annotated[
        float | None,
        number(above=0, below=1),
        Example("0.1"),
        "Share of each class kept for validation where there is no val_dir.",
    ] = None
    fold: Annotated[int | None, integer(0, 9), "stl10: official fold of 1,000 training images; null: all 5,000."] = None
    download: Annotated[bool, "stl10: download the archive if it is missing."] = True
    verify: Annotated[bool, "packed, streamed: compare the checksum of each image as it is read."] = False
    shuffle_window_shards: Annotated[
        int, integer(0), Example("16 (0: all)"), "packed, streamed: shards among which images are shuffled; 0: all."
    ] = 0
    cache_dir: Annotated[str | None, "streamed: folder of cached shards; null: $XDG_CACHE_HOME/imagenet_ddp."] = None
    cache_gib: Annotated[
        float | None,
        number(above=0),
        Example("100"),
        "streamed: size limit of the cache in GiB, oldest shards removed first; null: none.",
    ] = None
    image_size: Annotated[
        int,
        integer(8),
        Example("224 (a ResNet wants 32 or more)"),
        "Height and width in pixels of what the model sees.",
    ] = 224
    val_resize: Annotated[
        int | None, "Pixels of the short side before the centre crop; null: image_size × 256/224."
    ] = None
    interpolation: Annotated[
        str, choice("bilinear", "bicubic"), "How images are resized, in training and validation."
    ] = "bilinear"
    val_mirror: Annotated[bool, "In validation, average the logits of each image and its mirror image."] = False
    augment: Annotated[
        str,
        choice("crop", "pad_crop", "none"),
        "crop: random resized crop and flip; pad_crop: random crop of the padded image and flip; none: as in "
        "validation.",
    ] = "crop"
    crop_scale: Annotated[list[float], _CROP_SCALE, "Smallest and largest share of the image's area in a crop."] = (
        field(default_factory=lambda: [0.08, 1.0])
    )
    pad: Annotated[int, integer(0), Example("4"), "pad_crop: pixels of the mean colour on each side."] = 4
    flip: Annotated[float, number(0, 1), "Probability of a horizontal flip."] = 0.5
    policy: Annotated[
        str,
        choice("none", "randaugment", "trivialaugment", "autoaugment", "augmix", "three_augment"),
        "Random changes of each training image, torchvision's; three_augment: grey, solarised or blurred.",
    ] = "none"
    policy_ops: Annotated[
        int | None, integer(1), "randaugment: operations per image, null: 2; augmix: chains that are mixed, null: 3."
    ] = None
    policy_magnitude: Annotated[
        int | None, integer(0, 30), "randaugment: strength from 0 to 30, null: 9; augmix: from 1 to 10, null: 3."
    ] = None
    autoaugment: Annotated[
        str, choice("imagenet", "cifar10", "svhn"), "autoaugment: images for which the policy was found."
    ] = "imagenet"
    color_jitter: Annotated[
        float, number(0), Example("0.3"), "Largest relative change of brightness, contrast and saturation."
    ] = 0.0
    grayscale: Annotated[float, number(0, 1), Example("0.2"), "Probability that an image becomes grey."] = 0.0
    blur: Annotated[float, number(0, 1), Example("0.1"), "Probability of a Gaussian blur of 0.1 to 2 pixels."] = 0.0
    erasing: Annotated[
        float, number(0, 1), Example("0.25"), "Probability that a rectangle is erased to the mean colour."
    ] = 0.0
    cutout: Annotated[
        int, integer(0), Example("0"), "Pixels of the side of a square erased to the mean colour; 0: none."
    ] = 0
    repeats: Annotated[
        int,
        integer(1),
        "Augmented copies of each image, side by side; an epoch has one in so many of the images.",
    ] = 1
    mixup_alpha: Annotated[
        float,
        number(0),
        Example("0.2"),
        "Mixup: both parameters of the Beta distribution; 0: none. Training top-1 counts the larger share's label.",
    ] = 0.0
    cutmix_alpha: Annotated[
        float, number(0), Example("1.0"), "CutMix: the same; with mixup_alpha, one of the two is drawn for each batch."
    ] = 0.0
    mix_probability: Annotated[float, number(0, 1), "Probability that a batch is mixed, by mixup or CutMix."] = 1.0
    train_size: Annotated[
        int | None,
        integer(8),
        Example("176"),
        "Pixels of training images where they differ from those of validation; null: image_size.",
    ] = None
    progressive_start: Annotated[
        int | None,
        integer(8),
        Example("128"),
        "Pixels of training images in the first epochs; null: train_size throughout.",
    ] = None
    progressive_epochs: Annotated[
        list[int] | None,
        _EPOCHS,
        Example("[10,14]"),
        "First and last epoch, from 0, of the growth to train_size in steps of 32 pixels.",
    ] = None
    mean: Annotated[
        list[float] | None,
        list_of(number(), "three numbers, one per channel", 3),
        Example("[0.485,0.456,0.406]"),
        "Mean of each channel, of pixels in 0..1; null: that of a timm model's weights, else ImageNet's.",
    ] = None
    std: Annotated[
        list[float] | None,
        list_of(number(above=0), "three numbers > 0, one per channel", 3),
        Example("[0.229,0.224,0.225]"),
        "Standard deviation of each channel, of pixels in 0..1; null: as for the mean.",
    ] = None
    batch_size: Annotated[int, integer(1), "Images per device and step."] = 32
    val_batch_size: Annotated[
        int | None,
        integer(1),
        Example("null (as data.batch_size)"),
        "Images per device and validation step; null: batch_size.",
    ] = None
    decoder: Annotated[
        str, choice("auto", "simplejpeg", "torchvision", "pillow"), "JPEG decoder; auto: the fastest."
    ] = "auto"
    exif_orientation: Annotated[bool, "Rotate images as their EXIF data says; ImageNet is used as stored."] = False
    on_bad_image: Annotated[
        str,
        choice("raise", "skip"),
        Example("skip"),
        "An unreadable image ends the run (raise), or is replaced by another (skip).",
    ] = "raise"
    bad_image_limit: Annotated[
        float,
        number(0),
        Example("0.01 (a share) or 20 (images)"),
        "skip: how many images may be unreadable: a number, or a share if below 1.",
    ] = 0.01
    num_workers: Annotated[Any, AUTO | integer(0), "Loader processes per device, or auto."] = "auto"
    loader_timeout_s: Annotated[
        float,
        number(0),
        Example("1800 (seconds; 0: no bound)"),
        "Longest wait in seconds for one batch before the run fails; 0: no limit.",
    ] = 1800.0
    pin_memory: Annotated[Any, AUTO | FLAG, "Page-locked batches for the GPU; auto: where there is a CUDA device."] = (
        "auto"
    )


@dataclass
class LoaderConfig:
    name: Annotated[str, choice("default", "dali"), "dali: NVIDIA DALI decodes and crops training images."] = "default"
    device: Annotated[str, choice("auto", "cpu", "gpu"), "dali: where it decodes; auto: where the model trains."] = (
        "auto"
    )
    num_threads: Annotated[Any, AUTO | integer(1), "dali: CPU threads; auto: as many as there would be workers."] = (
        "auto"
    )


@dataclass
class ModelConfig:
    name: Annotated[str, "A classifier of torchvision.models or timm, such as resnet50; any name with _target_."] = (
        "resnet18"
    )
    library: Annotated[str, choice("torchvision", "timm"), "Whose model: torchvision's, or timm's (extra timm)."] = (
        "torchvision"
    )
    _target_: Annotated[str | None, "Your own network: called with num_classes= and the keys of args."] = None
    args: Annotated[dict[str, Any], "Keyword arguments of the network."] = field(default_factory=dict)
    weights: Annotated[
        str | None,
        Example("DEFAULT"),
        "Weights to start from: DEFAULT (the library's, downloaded once), a name of theirs, or a file; null: random.",
    ] = None
    freeze: Annotated[
        str | None, choice("backbone"), Example("backbone"), "backbone: train the last layer alone; null: all layers."
    ] = None
    unfreeze_epoch: Annotated[
        int | None, integer(1), Example("3"), "Epoch, counted from 0, from which all layers are trained; null: never."
    ] = None
    drop_path: Annotated[
        float | None,
        number(0, below=1),
        Example("0.1"),
        "Stochastic depth: probability of leaving out the last block; null: the model's default.",
    ] = None
    zero_init_last: Annotated[
        bool, "Start the last normalisation of each residual block at 0, so that the block begins as the identity."
    ] = False
    blur_pool: Annotated[bool, "Blur before each strided convolution of 16 or more input channels (BlurPool)."] = False
    channels_last: Annotated[bool, "Memory format; faster convolutions on CPUs and tensor cores."] = True


@dataclass
class OptimConfig:
    name: Annotated[
        str,
        "sgd, adamw, adam, nadam or rmsprop; lamb, lars, lion, muon and others of timm.optim; any name with _target_.",
    ] = "sgd"
    _target_: Annotated[str | None, "Your own optimizer: called with params=, lr= and the keys of args."] = None
    args: Annotated[dict[str, Any], "Further keyword arguments of the optimizer."] = field(default_factory=dict)
    lr: Annotated[float, number(above=0), "Learning rate for optim.reference_batch images a step."] = 0.1
    lr_head: Annotated[
        float | None, number(above=0), Example("0.1"), "Learning rate of the last layer, as optim.lr; null: optim.lr."
    ] = None
    layer_decay: Annotated[
        float | None,
        number(above=0, most=1),
        Example("0.75"),
        "Factor on the learning rate from each block to the one before it; null: 1.",
    ] = None
    reference_batch: Annotated[
        int | None, integer(1), "Global batch that lr is for; lr is scaled linearly to the real one. null: not scaled."
    ] = None
    momentum: Annotated[float, number(0, below=1), "sgd, rmsprop, lars, muon: momentum."] = 0.9
    betas: Annotated[
        list[float] | None,
        list_of(number(0, below=1), "two numbers ≥ 0 and < 1", 2),
        Example("[0.9,0.999]"),
        "adamw, adam, nadam, lamb, lion: decay of the two running means; null: the optimizer's default.",
    ] = None
    eps: Annotated[float | None, number(above=0), Example("1.0e-8"), "Added to a divisor; null: the default."] = None
    weight_decay: Annotated[float, number(0), Example("1e-4"), "Weight decay."] = 1e-4
    no_decay_on: Annotated[
        list[str],
        kind(
            "a list of norm, bias and embedding",
            lambda value: (
                isinstance(value, list | tuple | ListConfig)
                and all(item in ("norm", "bias", "embedding") for item in value)
            ),
        ),
        Example("[norm,bias]"),
        "Parameters without weight decay: norm, bias, embedding (class token and positions).",
    ] = field(default_factory=list)
    nesterov: Annotated[bool, "sgd: Nesterov momentum."] = False


@dataclass
class ScheduleConfig:
    name: Annotated[
        str,
        choice("step", "multistep", "cosine", "linear", "poly", "exponential", "one_cycle", "wsd", "constant"),
        "Learning-rate schedule; wsd: warm-up, stable, decay.",
    ] = "step"
    interval: Annotated[
        str, choice("step", "epoch"), "step: the rate changes with each step; epoch: it stays within an epoch."
    ] = "step"
    step_epochs: Annotated[int, integer(1), "step: epochs between two drops."] = 30
    milestones: Annotated[
        list[int], list_of(integer(1), "a list of epochs such as [30,60,80]"), "multistep: epochs of the drops."
    ] = field(default_factory=lambda: [30, 60, 80])
    gamma: Annotated[float, number(above=0), "step, multistep: factor of each drop; exponential: of each epoch."] = 0.1
    power: Annotated[float, number(above=0), "poly: the exponent."] = 1.0
    cycle_epochs: Annotated[
        int | None, integer(1), Example("10"), "cosine: epochs until the rate starts again at its top; null: never."
    ] = None
    decay_fraction: Annotated[
        float, number(above=0, most=1), "wsd: share of the training at its end in which the rate falls linearly."
    ] = 0.2
    peak_fraction: Annotated[float, number(above=0, below=1), "one_cycle: share of the training until the top."] = 0.3
    warmup: Annotated[
        str, choice("linear", "constant"), "linear: from warmup_start to 1; constant: warmup_start until its end."
    ] = "linear"
    warmup_epochs: Annotated[Any, AUTO | number(0), "Epochs of warm-up; auto: 5 where lr is scaled up, else 0."] = (
        "auto"
    )
    warmup_start: Annotated[
        float, number(0, 1), Example("0.01"), "First learning rate of the warm-up, as a share of lr."
    ] = 0.0
    final_fraction: Annotated[
        float, number(0, 1), Example("0"), "cosine, linear, poly, one_cycle, wsd: last learning rate as a share of lr."
    ] = 0.0


_WEIGHTS = kind(
    "balanced or a list of one number > 0 per class",
    lambda value: value == "balanced" or list_of(number(above=0), "").accepts(value),
)


@dataclass
class LossConfig:
    name: Annotated[
        str,
        choice("cross_entropy", "bce", "focal"),
        "Loss function; bce: binary cross entropy of each class, as in ResNet strikes back.",
    ] = "cross_entropy"
    label_smoothing: Annotated[float, number(0, below=1), Example("0.1"), "Label smoothing."] = 0.0
    focal_gamma: Annotated[float, number(0), "focal: exponent that lowers the weight of easy images."] = 2.0
    bce_threshold: Annotated[
        float | None,
        number(0, below=1),
        Example("0.2"),
        "bce: mixed targets above it become 1, others 0; null: they stay shares.",
    ] = None
    class_weights: Annotated[
        Any,
        _WEIGHTS | NULL,
        Example("balanced"),
        "Weight of each class: balanced (as many images / classes / its images), or a list; null: all 1.",
    ] = None


@dataclass
class TeacherConfig:
    """Distillation: the loss pulls the net's probabilities towards those of a trained one."""

    weights: Annotated[
        str | None, Example("DEFAULT"), "Weights of the teacher, as model.weights; null: no distillation."
    ] = None
    name: Annotated[str | None, Example("resnet50"), "Its network; null: that of the checkpoint, or model.name."] = None
    library: Annotated[str, choice("torchvision", "timm"), "Whose model the name is."] = "torchvision"
    share: Annotated[float, number(above=0, most=1), "Share of the teacher in the loss; the labels have the rest."] = (
        0.5
    )
    temperature: Annotated[float, number(above=0), "Divides the logits of both before their probabilities."] = 1.0


@dataclass
class AveragingConfig:
    """A running average of the weights. Where there is one, it is validated, stored as best.ckpt, and used later."""

    name: Annotated[
        str, choice("none", "ema", "swa"), "ema: exponential moving average; swa: equal average of each epoch's end."
    ] = "none"
    decay: Annotated[float, number(above=0, below=1), "ema: share of the old average in each update."] = 0.9998
    every_n_steps: Annotated[int, integer(1), "ema: steps of the optimizer between two updates."] = 1
    start_epoch: Annotated[
        int | None,
        integer(0),
        Example("75"),
        "First epoch, counted from 0, that is averaged; null: 0 (ema), the last quarter (swa).",
    ] = None


@dataclass
class StrategyConfig:
    name: Annotated[str, choice("auto", "ddp", "dp", "balanced_dp"), "auto: ddp if there is more than one device."] = (
        "auto"
    )
    process_group_backend: Annotated[str | None, choice("nccl", "gloo"), "null: nccl on GPUs, gloo on CPUs."] = None
    timeout_s: Annotated[float, number(above=0), Example("1800"), "Longest wait in seconds in one collective."] = 1800.0
    find_unused_parameters: Annotated[bool, "ddp: look for parameters without gradient in each step."] = False
    bucket_cap_mb: Annotated[float, number(above=0), Example("25"), "ddp: MiB of gradients per all-reduce."] = 25.0
    static_graph: Annotated[bool, "ddp: the graph is the same in every step."] = False
    gradient_as_bucket_view: Annotated[bool, "ddp: gradients live in the buckets, which saves a copy."] = True
    forward_sync_buffers: Annotated[bool, "ddp: broadcast rank 0's buffers before each forward."] = True
    init_sync: Annotated[bool, "ddp: broadcast rank 0's weights at the start."] = True
    comm_hook: Annotated[
        str | None, choice("fp16", "bf16", "powersgd"), Example("bf16"), "ddp: compression of gradients; null: none."
    ] = None
    powersgd_rank: Annotated[int, integer(1), "powersgd: rank of the two factors of each gradient matrix."] = 1
    # DistributedDataParallel rebuilds its buckets after the first step, and the hook remembers them: 2 or more.
    powersgd_start_step: Annotated[int, integer(2), "powersgd: optimizer steps without compression at the start."] = (
        1000
    )
    first_device_batch: Annotated[
        int | None,
        integer(0),
        Example("2"),
        "balanced_dp: images of the first device per forward; 0: it only gathers; null: half of data.batch_size.",
    ] = None


@dataclass
class ClusterConfig:
    name: Annotated[
        str,
        choice("auto", "tcp", "file", "env"),
        "tcp, file: rendezvous at cluster.address; env: at MASTER_ADDR, with RANK and WORLD_SIZE.",
    ] = "auto"
    address: Annotated[
        str | None, "Rendezvous: tcp://HOST:PORT, HOST:PORT, HOST or file:///PATH; null: MASTER_ADDR."
    ] = None
    node_rank: Annotated[int | None, integer(0), "Number of this node, with one command per node; null: detected."] = (
        None
    )
    rank: Annotated[int | None, integer(0), "Number of this process, with one command per process."] = None
    local_rank: Annotated[
        int | None, integer(0), "Number of this process on its node, with one command per process."
    ] = None
    world_size: Annotated[int | None, integer(1), "Number of processes, with one command per process."] = None
    job_id: Annotated[str | None, "Distinguishes two jobs with the same address and options."] = None
    timeout_s: Annotated[float, number(above=0), Example("120"), "Longest wait in seconds for all nodes to join."] = (
        120.0
    )
    requeue: Annotated[bool, "On SIGUSR2, after saving, have SLURM requeue the job where that is allowed."] = True
    num_threads: Annotated[Any, AUTO | integer(1), "CPU threads per process; auto: cores / processes of the node."] = (
        "auto"
    )


@dataclass
class NcclConfig:
    """Environment variables of NCCL, Gloo and libfabric, by their own names: see docs/nccl.md."""

    name: Annotated[str, "Name of the file in conf/nccl."] = "default"
    # without struct, so that nccl.env.NCCL_DEBUG=INFO needs no +
    env: Annotated[dict[str, Any], "Variable -> value, such as nccl.env.NCCL_DEBUG=INFO."] = field(
        default_factory=lambda: DictConfig({}, flags={"struct": False})  # type: ignore
    )


@dataclass
class SweepConfig:
    job: Annotated[
        Any,
        choice("auto", "all", "list") | integer(0),
        "Number of the only job to run, all, or list; auto: that of the SLURM job array, else all.",
    ] = "auto"
    resume: Annotated[str | None, "Folder of a sweep: run its unfinished jobs with its options."] = None
