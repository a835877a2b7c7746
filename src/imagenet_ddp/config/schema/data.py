"""Keys of data and of its loader."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from omegaconf import MISSING

from imagenet_ddp.config.validators import AUTO, FLAG, Example, choice, integer, kind, list_of, number

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of each channel, of pixels in 0..1
_CROP_SCALE = kind(
    "two shares of the image's area, 0 < least ≤ most ≤ 1",
    lambda value: list_of(number(above=0, most=1), "", 2).accepts(value) and value[0] <= value[1],
)
_EPOCHS = kind(
    "two epochs, counted from 0, first < last",
    lambda value: list_of(integer(0), "", 2).accepts(value) and value[0] < value[1],
)


@dataclass
class DataConfig:
    name: Annotated[str, "shapes, imagefolder, imagenet, table, stl10, packed, streamed; any with _target_."] = MISSING
    _target_: Annotated[str | None, "Your own source: called with root= and the keys of args."] = None
    args: Annotated[
        dict[str, Any], "Arguments of _target_; streamed: of its file system; table: names of its columns."
    ] = field(default_factory=dict)
    root: Annotated[
        str | None, "Folder of the data set: train/<class>/, val/<class>/; table: its file; null: the source's default."
    ] = None
    train_dir: Annotated[str, "Folder of training images, below root or absolute."] = "train"
    val_dir: Annotated[str, "Folder of validation images, below root or absolute."] = "val"
    val_fraction: Annotated[
        float | None,
        number(above=0, below=1),
        Example("0.1"),
        "Share of each class kept for validation where there is no val_dir, or no column split.",
    ] = None
    val_fold: Annotated[
        int, integer(0), Example("0"), "Which of the 1 / val_fraction disjoint shares is kept for validation, from 0."
    ] = 0
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
    sampling: Annotated[
        str,
        choice("shuffled", "balanced"),
        "shuffled: an epoch has each training image once; balanced: each class as often as any other.",
    ] = "shuffled"
    repeats: Annotated[
        int,
        integer(1),
        "Augmented copies of each image, side by side; with n copies an epoch has 1/n of the images.",
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
