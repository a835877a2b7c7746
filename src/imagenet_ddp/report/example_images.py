"""Read images of an evaluation, for thumbnails and class activation maps. page.py chooses the images. Imports torch."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from imagenet_ddp.cli.check_config import refused_targets
from imagenet_ddp.config.schema.commands import EvaluateConfig
from imagenet_ddp.config.section import to_config
from imagenet_ddp.data.decode import UnreadableImage
from imagenet_ddp.data.sources.files import map_concurrently
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.report.evaluation import Predictions
from imagenet_ddp.runs.summary import read_config

SIDE = 96  # pixels of a thumbnail's longer side
QUALITY = 80  # JPEG quality of a thumbnail
MAPS_AT_ONCE = 4


class EvaluatedImages:
    """The images to which predictions belong, by their rows. Raises ConfigError if the data is not available, or is not
    the data that was evaluated."""

    def __init__(self, found: Predictions):
        self._found = found
        config = _trusted_config(found.folder, "data")
        split = open_source(config.data, config.seed, verb="evaluate").val
        for index, path in zip(found.index.tolist(), found.paths, strict=True):
            if split is None or index >= len(split) or split.path(index) != path:
                raise ConfigError(
                    f"the data must be that of the evaluation in {found.folder}, but image {index} is no longer "
                    f"{path}. Hint: run `rm -r {found.folder}`, then run report again to evaluate the run."
                )
        assert split is not None
        self._split = split

    def thumbnails(self, rows: Sequence[int]) -> dict[int, str]:
        """Return row -> data URI, for the images that can be read."""

        def read(row: int) -> str | None:
            try:
                picture = self._split.open(int(self._found.index[row]))
                pixels = picture.region(0, 0, picture.height, picture.width, size=SIDE)
            except (UnreadableImage, OSError):
                return None
            return data_uri(pixels, picture.width / picture.height)

        wanted = sorted(set(rows))
        uris = zip(wanted, map_concurrently(read, wanted), strict=True)
        return {row: uri for row, uri in uris if uri is not None}

    def activation_maps(self, rows: Sequence[int]) -> dict[int, str]:
        """Return row -> data URI of the image as the net receives it, overlaid with the map of the predicted class."""
        import torch

        from imagenet_ddp.data.transforms import normalise
        from imagenet_ddp.distributed.devices import device_of
        from imagenet_ddp.engine.predictor import eval_transform, load_net
        from imagenet_ddp.engine.trained_model import load
        from imagenet_ddp.models.class_activation import class_activation_maps, overlay

        found, uris = self._found, {}
        config = _trusted_config(found.folder, "model")
        device = device_of(config.trainer)
        net = load_net(config, load(config, found.checkpoint)).to(device)
        transform = eval_transform(config)
        for start in range(0, len(rows), MAPS_AT_ONCE):
            few = rows[start : start + MAPS_AT_ONCE]
            images = torch.stack([transform(self._split.read(int(found.index[row]))) for row in few])
            batch = normalise(images.to(device), transform.mean, transform.std, config.model.channels_last)
            classes = torch.tensor(found.prediction[few], device=device)
            for row, image, activation in zip(few, images, class_activation_maps(net, batch, classes), strict=True):
                uris[row] = data_uri(overlay(image, activation).permute(1, 2, 0).numpy(), 1)
        return uris


def _trusted_config(folder: Path, group: str) -> EvaluateConfig:
    """Return the config of an evaluation. Raises ConfigError if this group names code outside the allowed packages,
    because a folder may come from anyone."""
    config = read_config(folder)
    if group not in config:
        raise ConfigError(f"{folder / 'config.yaml'} must hold the options of the evaluation, but does not.")
    if refused_targets(config[group], []):
        raise ConfigError(f"{folder / 'config.yaml'} names code outside this program under {group}; it is not run.")
    return to_config(config, EvaluateConfig)


def data_uri(pixels: np.ndarray, aspect: float) -> str:
    """Return a JPEG with at most SIDE pixels on its longer side. pixels: uint8 (H, W, 3); aspect: width over height."""
    image = Image.fromarray(np.ascontiguousarray(pixels))
    longer = min(SIDE, max(image.size))
    width, height = (longer, longer / aspect) if aspect >= 1 else (longer * aspect, longer)
    image = image.resize((max(round(width), 1), max(round(height), 1)), Image.Resampling.BILINEAR)
    stream = io.BytesIO()
    image.save(stream, format="JPEG", quality=QUALITY, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}"
