"""Define the format of a packed folder: packed.json (`Manifest`), which lists the shards with the images, one after the
other, and the arrays of the index."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.config.schema.purpose import Purpose
from imagenet_ddp.config.validators import FLAG, TEXT, TEXTS, Kind, integer, kind
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.files import read_small
from imagenet_ddp.system.text import first_line

FILE = "packed.json"  # written last
WORK = ".packing"  # folder inside an unfinished packed folder
FORMAT, VERSION, FORMS = "imagenet_ddp packed", 1, ("jpeg", "raw")
PACK = "python -m imagenet_ddp.prepare prepare=pack data=SOURCE out=FOLDER"
# SPLIT.<name>.npy: targets int64 (N,), names uint8 (all names, concatenated), name_ends int64 (N,), and records:
# one per image, in the order of the source, with the crc32 of zlib
RECORD = [
    ("offset", "<u8"),
    ("num_bytes", "<u8"),
    ("shard", "<u4"),
    ("crc32", "<u4"),
    ("height", "<u4"),
    ("width", "<u4"),
]
MOST_BYTES = 2**62  # of a file: sums of two such numbers are int64
WEIGHTS = "weights"  # additional array if the training images have weights: float32 (N,)


@dataclass(frozen=True)
class File:
    """A file next to packed.json. Raises ValueError for a name that leads elsewhere: data=streamed writes that file."""

    file: str
    num_bytes: int
    sha256: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w[\w.-]*", self.file):
            raise ValueError(f"{self.file!r} is not a plain file name")
        _require(self, num_bytes=integer(0, MOST_BYTES), sha256=TEXT)


@dataclass(frozen=True)
class Split:
    num_images: int
    shuffled: bool  # whether images are distributed over the shards at random; if false, shards keep their order
    shards: list[File]
    arrays: dict[str, File]  # name -> file
    source_bytes: int  # number of bytes of its images before they were packed
    left_out: list[dict[str, str]] = field(default_factory=list)  # name and reason of images that could not be read

    def __post_init__(self) -> None:
        some = kind("a list", lambda value: isinstance(value, list))
        _require(self, num_images=integer(0, MOST_BYTES), shuffled=FLAG, left_out=some)
        if lacking := {"targets", "names", "name_ends", "records"} - self.arrays.keys():
            raise ValueError(f"it has no {', '.join(sorted(lacking))}")

    def wrong_index(self, arrays: Mapping[str, np.ndarray], is_raw: bool) -> str:
        """Return why the arrays cannot be the index of these shards, "" if they can: each image lies within its shard,
        and each name within the names. A stranger's index has the right SHA-256, too."""
        length, records = (self.num_images,), arrays["records"]
        if records.dtype != np.dtype(RECORD) or records.shape != length:
            return f"records must be {length} of the format, got {records.dtype} {records.shape}"
        for name, kinds in (("targets", "iu"), ("name_ends", "i"), (WEIGHTS, "f")):
            if name in arrays and (arrays[name].shape[:1] != length or arrays[name].dtype.kind not in kinds):
                return f"{name} must be numbers {length}, got {arrays[name].dtype} {arrays[name].shape}"
        text, ends = arrays["names"], arrays["name_ends"]
        if text.dtype != np.uint8 or (np.diff(ends, prepend=0) < 0).any() or ends.max(initial=0) > text.size:
            return "name_ends must be positions in names, one after the other"
        if not (records["shard"] < len(self.shards)).all():
            return f"an image is in none of its {len(self.shards)} shards"
        size = np.array([file.num_bytes for file in self.shards], np.uint64)[records["shard"]]
        if not ((records["num_bytes"] <= size) & (records["offset"] <= size - records["num_bytes"])).all():
            return "an image is not within its shard"
        pixels = records["height"].astype(np.uint64) * records["width"]
        if (
            is_raw
            and not ((records["num_bytes"] % 3 == 0) & (records["num_bytes"] // 3 == pixels) & (pixels > 0)).all()
        ):
            return "an image has another size than its pixels"
        return ""


def _require(part: object, **allowed: Kind) -> None:
    """Raise ValueError unless each of these fields has an allowed value."""
    for name, values in allowed.items():
        if not values.accepts(getattr(part, name)):
            raise ValueError(f"{name} must be {values.words}")


@dataclass(frozen=True)
class PackOptions:
    """Everything that determines the bytes of a packed folder."""

    form: str  # one of FORMS
    short_side: int  # in pixels; images are never enlarged; 0: original size
    quality: int  # JPEG quality of re-encoded images, 1 to 100
    exif_orientation: bool  # whether images are rotated according to their EXIF data
    shard_mib: int  # approximate size of a shard
    encoder: str  # the libraries on which the bytes depend
    source: str  # SHA-256 of the classes, and of the names, targets and weights of the images


@dataclass(frozen=True)
class Manifest(PackOptions):
    classes: list[str]
    labels: list[str]
    splits: dict[str, Split]  # train, val

    def __post_init__(self) -> None:
        _require(self, exif_orientation=FLAG, short_side=integer(0), classes=TEXTS, labels=TEXTS)
        if len(self.classes) != len(self.labels):
            raise ValueError("labels must be as many as classes")

    def dump(self) -> bytes:
        # ASCII also preserves names that are not UTF-8, whose bytes os.fsdecode turns into surrogates
        return (json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1) + "\n").encode()


def parse_manifest(data: str | bytes, where: str) -> Manifest:
    """Parse packed.json. where: its name in messages. Raises ConfigError."""
    try:
        plain = json.loads(data)
        if (plain.pop("format"), plain.pop("version")) != (FORMAT, VERSION) or plain["form"] not in FORMS:
            raise ConfigError(
                f"{where} must describe a packed folder of version {VERSION}, but does not. Hint: remove the folder "
                f"and pack the images again (`{PACK}`)."
            )
        splits = {}
        for name, split in plain.pop("splits").items():
            shards = [File(**file) for file in split.pop("shards")]
            arrays = {key: File(**file) for key, file in split.pop("arrays").items()}
            splits[name] = Split(shards=shards, arrays=arrays, **split)
        return Manifest(**plain, splits=splits)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"{where} must be unchanged since packing, but was altered ({type(error).__name__}: {error}). "
            "Hint: copy it again, or remove the folder and pack the images again."
        ) from error


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a packed folder. Raises ConfigError if `folder` is not a completely packed folder."""
    path = folder / FILE
    if path.is_file():
        try:
            return parse_manifest(read_small(path), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} must be readable, but {first_line(error)}. Hint: copy it again.") from error
    what, hint = f"it has no {FILE}", f"set data.root=FOLDER to a folder that `{PACK}` has made"
    if (folder / WORK).is_dir():
        what, hint = "packing was interrupted", "run the same command with prepare=pack again"
    raise ConfigError(f"data.root must be a packed folder, but {folder.absolute()} is not: {what}. Hint: {hint}.")


def missing_features(manifest: Manifest, where: str, data: DataConfig, purpose: Purpose) -> list[str]:
    """Return messages about everything that these options need but a packed folder lacks. where: the folder or address
    in messages."""
    found = [
        f"{where} must contain packed {name} images, but contains {', '.join(manifest.splits) or 'nothing'}. Hint: "
        f"pack a source that has {name} images."
        for name in purpose.splits
        if name not in manifest.splits
    ]
    if data.exif_orientation and not manifest.exif_orientation:
        found.append(
            f"data.exif_orientation is true, but the images in {where} were packed without it. "
            "Hint: pack them again with data.exif_orientation=true, or set data.exif_orientation=false."
        )
    return found


def wrong_sizes(folder: Path, split: Split) -> list[str]:
    """Return a phrase about each file of the split that is missing or has another size than packed.json says."""
    found = []
    for file in (*split.arrays.values(), *split.shards):
        path = folder / file.file
        if not path.is_file():
            found.append(f"{file.file} is missing")
        elif (size := path.stat().st_size) != file.num_bytes:
            found.append(f"{file.file} has {size:,} bytes instead of {file.num_bytes:,}")
    return found
