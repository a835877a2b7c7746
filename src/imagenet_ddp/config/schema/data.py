"""Declare the keys of data: those that each source of images has, and those of one source. data/sources/ reads them. A
further source is a class here, named at the end, and a row of SOURCES in registry.py there."""

from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from omegaconf import MISSING

from imagenet_ddp.config.section import OneOf, Replaceable, one_of
from imagenet_ddp.config.validators import (
    AUTO,
    FLAG,
    Example,
    Instead,
    PerMachine,
    choice,
    integer,
    kind,
    list_of,
    matching,
    number,
)

# config of timm's rand_augment_transform
TIMM_POLICY = r"rand(-(m\d+|n[1-9]\d*|p(0?\.\d+|[01])|mstd\d+(\.\d+)?|mmax\d+|inc[01]|t(weights|3aw?)))+"
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")  # to recognise a table; data=table reads files with any extension
MOST_PIXELS = 4096  # of a side, because an untrusted checkpoint states it, and a net's memory grows with the square
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of each channel, of pixels in 0..1
_FINDER = Instead(("auto", "-1"), "trainer.batch_finder=true", "(on a GPU; else leave both out)")
_CROP_SCALE = kind(
    "two shares of the image's area, 0 < least ≤ most ≤ 1",
    lambda value: list_of(number(above=0, most=1), "", 2).accepts(value) and value[0] <= value[1],
)
_EPOCHS = kind(
    "two epochs, counted from 0, first < last",
    lambda value: list_of(integer(0), "", 2).accepts(value) and value[0] < value[1],
)

D = TypeVar("D", bound="DataConfig")


class DataConfig(OneOf):
    """The keys that each source has."""

    name: Annotated[str, "Source: shapes, imagefolder, imagenet, table, arrays, stl10, packed or streamed."] = MISSING
    _target_: Annotated[str | None, "Class of your own source."] = None
    args: Annotated[
        dict[str, Any], "Arguments of _target_; streamed: arguments of the file system; table: names of the columns."
    ] = field(default_factory=dict[str, Any])
    root: Annotated[
        str | None,
        Example("FOLDER"),
        PerMachine(),
        "Folder of the images: <class>/, or train/<class>/ and val/<class>/ (train_dir, val_dir); table, arrays: path "
        "of the file; null: the source's default.",
    ] = None
    labels: Annotated[
        str,
        choice("one", "several"),
        "Labels of an image; several: any number (multi-label), in a table between ; or | in one cell.",
    ] = "one"
    image_size: Annotated[
        int,
        integer(8, MOST_PIXELS),
        Example("224 (a ResNet needs 32 or more)"),
        "Height and width of the model's input in pixels.",
    ] = 224
    val_resize: Annotated[
        int | None,
        integer(1, 2 * MOST_PIXELS),
        "Validation: short side in pixels before the centre crop; null: image_size × 256/224.",
    ] = None
    interpolation: Annotated[str, choice("bilinear", "bicubic"), "Interpolation of resized images."] = "bilinear"
    fit: Annotated[
        str,
        choice("crop", "pad", "squash"),
        "Validation: crop the centre, pad with the mean colour, or squash to a square.",
    ] = "crop"
    val_mirror: Annotated[
        bool, "Validation: average the logits over mirror images; with vflip, also upside down; with rot90, all eight."
    ] = False
    augment: Annotated[
        str,
        choice("crop", "pad_crop", "none"),
        "crop: random resized crop and flip; pad_crop: random crop of the padded image and flip; none: as validation.",
    ] = "crop"
    crop_scale: Annotated[list[float], _CROP_SCALE, "Smallest and largest share of the image's area in a crop."] = (
        field(default_factory=lambda: [0.08, 1.0])
    )
    pad: Annotated[int, integer(0), "pad_crop: pixels of mean colour added on each side."] = 4
    flip: Annotated[float, number(0, 1), "Probability of a horizontal flip."] = 0.5
    vflip: Annotated[float, number(0, 1), Example("0.5"), "Probability of a vertical flip, for aerial images."] = 0.0
    rot90: Annotated[float, number(0, 1), Example("1"), "Probability of a turn by 0, 90, 180 or 270°."] = 0.0
    policy: Annotated[
        str,
        choice("none", "randaugment", "trivialaugment", "autoaugment", "augmix", "three_augment")
        | matching(TIMM_POLICY, "timm's form of RandAugment such as rand-m9-mstd0.5-inc1"),
        "Random augmentation by torchvision, or rand-… by timm; three_augment: grey, solarised or blurred.",
    ] = "none"
    policy_ops: Annotated[
        int | None, integer(1), "randaugment: operations per image (null: 2); augmix: chains that are mixed (null: 3)."
    ] = None
    policy_magnitude: Annotated[
        int | None, integer(0, 30), "randaugment: strength up to 30 (null: 9); augmix: strength up to 10 (null: 3)."
    ] = None
    autoaugment: Annotated[
        str, choice("imagenet", "cifar10", "svhn"), "autoaugment: data set for which the policy was found."
    ] = "imagenet"
    color_jitter: Annotated[
        float, number(0), Example("0.3"), "Largest relative change of brightness, contrast and saturation."
    ] = 0.0
    grayscale: Annotated[float, number(0, 1), Example("0.2"), "Probability that an image is converted to grey."] = 0.0
    blur: Annotated[float, number(0, 1), Example("0.1"), "Probability of a Gaussian blur of 0.1 to 2 pixels."] = 0.0
    erasing: Annotated[float, number(0, 1), Example("0.25"), "Probability that 2 to 33 % of the image is erased."] = 0.0
    erasing_fill: Annotated[str, choice("mean", "noise"), "Filling: the mean colour, or noise in each pixel."] = "mean"
    cutout: Annotated[int, integer(0), "Side in pixels of a square filled with the mean colour; 0: none."] = 0
    sampling: Annotated[
        str,
        choice("shuffled", "balanced"),
        "shuffled: an epoch has each training image once; balanced: an epoch has all classes equally often.",
    ] = "shuffled"
    repeats: Annotated[
        int, integer(1), "Augmented copies of each image in a batch; with n copies, an epoch has 1/n of the images."
    ] = 1
    mixup_alpha: Annotated[
        float, number(0), Example("0.2"), "Both parameters of Mixup's Beta distribution; 0: no Mixup."
    ] = 0.0
    cutmix_alpha: Annotated[
        float, number(0), Example("1.0"), "CutMix: as mixup_alpha; if both are set, one is drawn for each batch."
    ] = 0.0
    mix_probability: Annotated[float, number(0, 1), "Probability that a batch is mixed."] = 1.0
    train_size: Annotated[
        int | None,
        integer(8, MOST_PIXELS),
        Example("176"),
        "Height and width of training images in pixels; null: image_size.",
    ] = None
    progressive_start: Annotated[
        int | None,
        integer(8, MOST_PIXELS),
        Example("128"),
        "Height and width of training images in the first epochs; null: as later.",
    ] = None
    progressive_epochs: Annotated[
        list[int] | None,
        _EPOCHS,
        Example("[10,14]"),
        "Epochs in which the size grows to train_size in steps of 32 pixels.",
    ] = None
    mean: Annotated[
        list[float] | None,
        list_of(number(), "three numbers, one per channel", 3, has_equal_parts=True),
        Example("[0.485,0.456,0.406]"),
        "Mean of each channel for pixels in 0..1; null: that of the weights or of a timm model, else ImageNet's.",
    ] = None
    std: Annotated[
        list[float] | None,
        list_of(number(), "three numbers, one per channel", 3, has_equal_parts=True),
        Example("[0.229,0.224,0.225]"),
        "Standard deviation of each channel for pixels in 0..1; null: as for the mean.",
    ] = None
    batch_size: Annotated[int, integer(1), _FINDER, "Images per device and step."] = 32
    val_batch_size: Annotated[
        int | None, integer(1), Example("32"), "Images per device and validation step; null: batch_size."
    ] = None
    decoder: Annotated[str, choice("auto", "simplejpeg", "pillow"), "JPEG decoder; auto: the fastest here."] = "auto"
    exif_orientation: Annotated[
        bool, "Rotate images of folders and tables by their EXIF orientation; false: as stored (ImageNet)."
    ] = False
    white_level: Annotated[
        float | None,
        number(above=0, most=65535),
        Example("4095"),
        "Value of white in grey images of more than 8 bits; null: 65535, or 1 in floating point.",
    ] = None
    on_bad_image: Annotated[
        str, choice("raise", "skip"), "An unreadable image ends the run (raise), or is replaced by another (skip)."
    ] = "raise"
    bad_image_limit: Annotated[
        float, number(0), "skip: number of images that may be unreadable, or their share if below 1."
    ] = 0.01
    num_workers: Annotated[Any, AUTO | integer(0), "Loader processes per device, or auto."] = "auto"
    loader_timeout_s: Annotated[
        float, number(0), "Longest wait in seconds for one batch before the run fails; 0: no limit."
    ] = 1800.0
    pin_memory: Annotated[
        Any, AUTO | FLAG, "Load batches into page-locked memory; auto: if there is a CUDA device."
    ] = "auto"

    @property
    def share(self) -> float | None:
        """Return which share of the training images is kept for validation; None: there are images for it."""
        return None

    def at(self, root: Path, source: type[D]) -> D:
        """Return the options for images of another source. The keys that all sources have keep their values."""
        values: dict[str, Any] = {key: self[key] for key in DataConfig()}
        values |= {"name": source.name, "root": str(root), "_target_": None, "args": {}}
        return source(**values)


class OwnData(DataConfig):
    """A source of the user's own."""


class ShapesData(DataConfig):
    name: str = "shapes"


class FilesData(DataConfig):
    """Files, of which a share can be kept for validation."""

    val_fraction: Annotated[
        float | None,
        number(above=0, below=1),
        Example("0.1"),
        "share of each class kept for validation.",
    ] = None
    val_fold: Annotated[int, integer(0), "which of the 1 / val_fraction disjoint shares is kept, counted from 0."] = 0
    groups: Annotated[
        str | None,
        Example("FILE.csv"),
        "table with path and group; each group is on one side of the split.",
    ] = None

    @property
    def share(self) -> float | None:
        return self.val_fraction


class FolderData(FilesData):
    train_dir: Annotated[str, PerMachine(), "folder of training images, below root or absolute."] = "train"
    val_dir: Annotated[str, PerMachine(), "folder of validation images, below root or absolute."] = "val"


class ImageFolderData(FolderData):
    name: str = "imagefolder"


class ImageNetData(FolderData):
    name: str = "imagenet"


class TableData(FilesData):
    name: str = "table"
    images_dir: Annotated[
        str | None, Example("FOLDER"), "folder to which its paths are relative; null: the table's own folder."
    ] = None


class Stl10Data(DataConfig):
    name: str = "stl10"
    fold: Annotated[int | None, integer(0, 9), "official fold of 1,000 training images; null: all 5,000."] = None
    download: Annotated[bool, "download the archive if it is missing."] = True


class PackedData(DataConfig):
    name: str = "packed"
    verify: Annotated[bool, "verify the checksum of each image."] = False
    shuffle_window_shards: Annotated[int, integer(0), "shards whose images are shuffled together; 0: all."] = 0


class StreamedData(PackedData):
    name: str = "streamed"
    cache_dir: Annotated[str | None, "folder of cached shards; null: $XDG_CACHE_HOME/imagenet_ddp."] = None
    cache_gib: Annotated[
        float | None, number(above=0), Example("100"), "size limit of the cache in GiB; null: no limit."
    ] = None


one_of(DataConfig, OwnData, ShapesData, ImageFolderData, ImageNetData, TableData, Stl10Data, PackedData, StreamedData)


class TransformConfig(Replaceable):
    """Keys of a further transform of the training images."""

    _target_: Annotated[
        str | None,
        Example("torchvision.transforms.v2.RandomPerspective"),
        "Class of your own transform of cropped training images, or one of torchvision.",
    ] = None
    args: Annotated[dict[str, Any], "Its arguments."] = field(default_factory=dict[str, Any])
