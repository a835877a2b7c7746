"""Predict on the CPU with a file that export has written."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from imagenet_ddp.data.decode import Reading
from imagenet_ddp.data.loader import FileReader
from imagenet_ddp.data.transforms import EvalTransform, normalise, whole
from imagenet_ddp.engine.predictor import Predictor
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.export.formats.base import KEY, Function
from imagenet_ddp.export.formats.registry import graph_format
from imagenet_ddp.system.text import first_line


def make_predictor(path: Path, decoder: str) -> Predictor:
    """Open an exported file. decoder: value of data.decoder. Raises ConfigError for a file that export did not
    write."""
    hint = "Hint: write the file with python -m imagenet_ddp.export."
    kind = graph_format(path)
    assert kind is not None
    try:
        opened = kind.open(path)
    except Exception as error:  # a runtime, zip or pickle error, depending on the file
        raise ConfigError(
            f"{path} must be an exported model, but cannot be read as one ({first_line(error).rstrip('.')}). {hint}"
        ) from error
    if opened is None:
        raise ConfigError(f"{path} must be a file that export has written, but has no metadata {KEY}. {hint}")
    function, text = opened
    return _predictor(function, json.loads(text), decoder, path.name)


def _predictor(function: Function, metadata: dict[str, Any], decoder: str, title: str) -> Predictor:
    transform = EvalTransform.from_options(metadata["eval_transform"])
    size, preprocessing = metadata["batch_size"], metadata["preprocessing"]

    @torch.inference_mode()
    def run(batch: Tensor) -> Tensor:
        """Return the probabilities of a batch, uint8 (B, 3, H, W)."""
        if preprocessing != "outside":
            return function(batch)
        return function(normalise(batch, transform.mean, transform.std, channels_last=False)).softmax(dim=1)

    def probabilities(images: list[Tensor]) -> Tensor:
        """Return the probabilities of images. Images of the same shape form a batch. If the file has a fixed batch
        size, the last batch is padded."""
        rows = torch.empty(len(images), len(metadata["classes"]))
        shapes: dict[tuple[int, ...], list[int]] = {}
        for position, image in enumerate(images):
            shapes.setdefault(tuple(image.shape), []).append(position)
        for positions in shapes.values():
            step = size or len(positions)
            for part in (positions[start : start + step] for start in range(0, len(positions), step)):
                padded = part + part[:1] * (step - len(part) if size else 0)
                rows[part] = run(torch.stack([images[position] for position in padded]))[: len(part)].float()
        return rows

    reading = Reading(decoder, metadata["exif_orientation"])
    is_inside = preprocessing == "inside"
    reader = FileReader(reading, whole if is_inside else transform)
    cpu = torch.device("cpu")
    return Predictor(
        metadata["classes"], metadata["labels"], reader, probabilities, cpu, title=title, reads_whole=is_inside
    )
