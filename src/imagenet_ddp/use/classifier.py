"""Use a trained model from Python: `from imagenet_ddp import load`."""

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from imagenet_ddp.cli.overrides import quoted
from imagenet_ddp.cli.parse import command_line
from imagenet_ddp.config.schema.predict import DemoConfig
from imagenet_ddp.data.decoding.decode import decode
from imagenet_ddp.data.decoding.errors import UnreadableImage
from imagenet_ddp.data.sources.walk import find_images
from imagenet_ddp.launch.stored_config import resolved_config
from imagenet_ddp.system.cpu_cores import num_cores
from imagenet_ddp.use.open_predictor import open_predictor
from imagenet_ddp.use.predictor import Predictor, read_in_order

BATCH_SIZE = 32


@dataclass(frozen=True)
class Prediction:
    """The classes of one image, most probable first. reason: why the image could not be read; "" if it could.

    known: whether the image is like the training images; None if the run has no known.npz, which the command
    features writes. familiarity: 1 is that of a typical image of the classes.
    """

    top: list[tuple[str, float]]  # (class, probability from 0 to 1)
    path: str = ""
    reason: str = ""
    known: bool | None = None
    familiarity: float | None = None

    @property
    def label(self) -> str | None:
        """Return the most probable class; None if the image could not be read."""
        return self.top[0][0] if self.top else None


@dataclass(frozen=True)
class Classifier:
    """A trained model with its preprocessing and the names of its classes."""

    predictor: Predictor

    @property
    def classes(self) -> list[str]:
        return self.predictor.classes

    def predict(self, images: Any, top_k: int = 5) -> list[Prediction]:
        """Return the most probable classes of each image, in order.

        images: a path of an image, a folder or a pattern such as "photos/*.jpg", a PIL image, an array uint8 (H, W, 3),
        or a list of paths, PIL images and arrays. An image that cannot be read has a reason in place of classes.
        """
        given = _listed(images)
        top_k = min(top_k, len(self.classes))
        read = self.predictor.read
        if all(isinstance(image, str) for image in given):
            batches = read_in_order(read, given, BATCH_SIZE, num_cores())
        else:
            batches = (
                [_open(read, image) for image in given[i : i + BATCH_SIZE]] for i in range(0, len(given), BATCH_SIZE)
            )
        found = [result for batch in batches for result in self.predictor.predict(batch, top_k)]
        return [
            Prediction(
                [(self.predictor.labels[index], share) for index, share in result.top],
                image if isinstance(image, str) else "",
                result.reason,
                result.is_known,
                result.familiarity,
            )
            for image, result in zip(given, found, strict=True)
        ]


def load(path: str | Path = "", *options: str) -> Classifier:
    """Load a checkpoint or an exported file for predictions; a run's folder means its best checkpoint.

    options: as for `python -m imagenet_ddp.predict`, such as "model.name=resnet50", "model.weights=DEFAULT" without a
    path. Raises ConfigError with every mistake.
    """
    typed = [quoted(f"checkpoint={path}")] if str(path) else []
    request = command_line("demo", [*typed, *options], os.environ)
    return Classifier(open_predictor(resolved_config(request, os.environ, DemoConfig)))


def _listed(images: Any) -> list[Any]:
    if isinstance(images, str | Path):
        return find_images(str(images))
    if isinstance(images, Sequence):
        given = cast("Sequence[Any]", images)
        return [str(image) if isinstance(image, Path) else image for image in given]
    return [images]


def _open(read: Any, image: Any) -> Any:
    """Return an image ready for the network, as if it stood in a file."""
    if isinstance(image, str):
        return read(image)
    from PIL import Image

    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    file = io.BytesIO()
    # TIFF also has CMYK and floating point, which PNG lacks; the orientation of a photograph is in its EXIF data
    picture = picture.convert("RGB") if picture.mode in ("YCbCr", "HSV", "RGBa", "La") else picture
    # Pillow turns any TIFF with an orientation, also where the model takes photographs as they are stored
    exif = picture.getexif() if read.reading.exif_orientation else Image.Exif()
    picture.save(file, format="PNG" if picture.mode == "P" else "TIFF", exif=exif)
    try:
        return read.prepare(decode(file.getvalue(), "image", read.reading))
    except UnreadableImage as error:
        return error
