"""Read images of an evaluation, for thumbnails, statistics by size and brightness, and class activation maps.
assemble.py chooses the images. Imports torch."""

import base64
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from imagenet_ddp.cli.validate import refused_targets
from imagenet_ddp.config.schema.commands import EvaluateConfig
from imagenet_ddp.config.section import to_config
from imagenet_ddp.data.decode import Picture, UnreadableImage
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.files import map_concurrently
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.report.page.evaluation import Predictions, config_of

SIDE = 96  # pixels of a thumbnail's longer side
QUALITY = 80  # JPEG quality of a thumbnail
MOST_MEASURED = 2000
MAPS_AT_ONCE = 4
NUM_BINS = 5


@dataclass(frozen=True)
class Group:
    """Images of similar size or brightness. text: the range of values."""

    text: str
    num_images: int
    accuracy: float


class EvaluatedImages:
    """The images to which predictions belong, by their rows. Raises ConfigError if the data is not available, or is not
    the data that was evaluated."""

    def __init__(self, found: Predictions):
        self._found = found
        self._splits: list[Images] = []
        for part, folder in enumerate(found.folders):
            config = _trusted_config(folder, "data")
            split = open_source(config["data"], config["seed"], os.environ, verb="evaluate").val
            for row in np.flatnonzero(found.part == part).tolist():
                index = int(found.index[row])
                if split is None or index >= len(split) or split.path(index) != found.paths[row]:
                    raise ConfigError(
                        f"the data must be that of the evaluation in {folder}, but image {index} is no longer "
                        f"{found.paths[row]}. Hint: run `rm -r {folder}`, then run report again to evaluate the run."
                    )
            assert split is not None
            self._splits.append(split)

    def _open(self, row: int, side: int) -> tuple[Picture, np.ndarray] | None:
        """Return the image and its pixels, shrunk to about `side`; None if it cannot be read."""
        try:
            picture = self._splits[int(self._found.part[row])].open(int(self._found.index[row]))
            return picture, picture.region(0, 0, picture.height, picture.width, size=side)
        except (UnreadableImage, OSError):
            return None

    def thumbnails(self, rows: Sequence[int]) -> dict[int, str]:
        """Return row -> data URI, for the images that can be read."""

        def read(row: int) -> str | None:
            if (opened := self._open(row, SIDE)) is None:
                return None
            picture, pixels = opened
            return data_uri(pixels, picture.width / picture.height)

        wanted = sorted(set(rows))
        uris = zip(wanted, map_concurrently(read, wanted), strict=True)
        return {row: uri for row, uri in uris if uri is not None}

    def by_size_and_brightness(self) -> tuple[int, list[Group], list[Group]]:
        """Return (number of measured images, accuracy by shorter side, accuracy by mean brightness), for a sample that
        is spread evenly over the images."""

        def measure(row: int) -> tuple[float, float]:
            if (opened := self._open(row, 32)) is None:
                return np.nan, np.nan
            picture, pixels = opened
            return min(picture.height, picture.width), float(pixels.mean()) / 255

        total = len(self._found)
        rows = np.unique(np.linspace(0, max(total - 1, 0), min(total, MOST_MEASURED)).astype(int))
        values = np.array(list(map_concurrently(measure, rows.tolist()))).reshape(-1, 2)
        there = np.isfinite(values[:, 0])
        values, is_right = values[there], self._found.is_right[rows[there]]
        sizes = groups(values[:, 0], is_right, "{:.0f} px")
        return len(values), sizes, groups(100 * values[:, 1], is_right, "{:.0f} %")

    def activation_maps(self, rows: Sequence[int]) -> dict[int, str]:
        """Return row -> data URI of the image as the net receives it, overlaid with the map of the predicted class."""
        import torch

        from imagenet_ddp.data.transforms import normalise
        from imagenet_ddp.distributed.devices import device_of
        from imagenet_ddp.engine.predictor import eval_transform, load_net
        from imagenet_ddp.engine.trained_model import load
        from imagenet_ddp.models.class_activation import class_activation_maps, overlay

        found, uris = self._found, {}
        for part, folder in enumerate(found.folders):
            own = [row for row in rows if found.part[row] == part]
            if not own:
                continue
            config = to_config(_trusted_config(folder, "model"), EvaluateConfig)
            device = device_of(config["trainer"])
            net = load_net(config, load(config, found.checkpoint(part))).to(device)
            transform = eval_transform(config)
            for start in range(0, len(own), MAPS_AT_ONCE):
                few = own[start : start + MAPS_AT_ONCE]
                images = torch.stack([transform(self._splits[part].read(int(found.index[row]))) for row in few])
                batch = normalise(images.to(device), transform.mean, transform.std, config.model.channels_last)
                classes = torch.tensor(found.prediction[few], device=device)
                for row, image, activation in zip(few, images, class_activation_maps(net, batch, classes), strict=True):
                    uris[row] = data_uri(overlay(image, activation).permute(1, 2, 0).numpy(), 1)
        return uris


def _trusted_config(folder: Path, group: str) -> dict[str, Any]:
    """Return the config of an evaluation. Raises ConfigError if this group names code outside the allowed packages,
    because a folder may come from anyone."""
    config = config_of(folder)
    if refused_targets(config[group], []):
        raise ConfigError(f"{folder / 'config.yaml'} names code outside this program under {group}; it is not run.")
    return config


def data_uri(pixels: np.ndarray, aspect: float) -> str:
    """Return a JPEG with at most SIDE pixels on its longer side. pixels: uint8 (H, W, 3); aspect: width over height."""
    image = Image.fromarray(np.ascontiguousarray(pixels))
    longer = min(SIDE, max(image.size))
    width, height = (longer, longer / aspect) if aspect >= 1 else (longer * aspect, longer)
    image = image.resize((max(round(width), 1), max(round(height), 1)), Image.Resampling.BILINEAR)
    stream = io.BytesIO()
    image.save(stream, format="JPEG", quality=QUALITY, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}"


def groups(values: np.ndarray, is_right: np.ndarray, form: str) -> list[Group]:
    """Divide images by their values into groups with about equal numbers of images. Images with the same value are in
    the same group. form: format of a value, such as "{:.0f} px"."""
    if not len(values):
        return []
    edges = np.unique(np.quantile(values, np.linspace(0, 1, NUM_BINS + 1), method="nearest"))
    number = np.searchsorted(edges[1:-1], values, side="right") if len(edges) > 2 else np.zeros(len(values), int)
    found = []
    for each in np.unique(number).tolist():
        inside = number == each
        low, high = form.format(values[inside].min()), form.format(values[inside].max())
        text = low if low == high else f"{low} to {high}"
        found.append(Group(text, int(inside.sum()), float(is_right[inside].mean())))
    return found
