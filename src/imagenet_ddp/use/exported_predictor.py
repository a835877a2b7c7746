"""Predict the classes of image files with an exported file, on the CPU."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from imagenet_ddp.config.schema.stated import wrong_facts
from imagenet_ddp.data.decoding.decode import Reading
from imagenet_ddp.data.transforms import EvalTransform, normalise, whole
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.exported.formats.base import KEY, Function
from imagenet_ddp.exported.formats.registry import graph_format
from imagenet_ddp.system.text import count_noun, first_line
from imagenet_ddp.use.predictor import FileReader, Outputs, Predictor

MOST_IMAGES = 4096  # of a batch whose size a file states


def open_exported(path: Path, decoder: str) -> Predictor:
    """Open an exported file. decoder: value of data.decoder. Raises ConfigError for a file that export did not
    write."""
    hint = "Hint: write the file with `python -m imagenet_ddp.export`."
    kind = graph_format(path)
    assert kind is not None
    if lacking := [each.name for each in kind.paths(path) if not each.is_file()]:
        raise ConfigError(f"{path} must have {lacking[0]} beside it, which is no file. {hint}")
    try:
        opened = kind.open(path)
    except Exception as error:  # a runtime, zip or pickle error, depending on the file
        raise ConfigError(
            f"{path} must be an exported model, but cannot be read as one ({first_line(error).rstrip('.')}). {hint}"
        ) from error
    if opened is None:
        raise ConfigError(f"{path} must be a file that export has written, but has no metadata {KEY}. {hint}")
    function, text = opened
    try:
        metadata = json.loads(text)
        if wrong := wrong_facts(metadata):
            raise TypeError(f"{wrong[0]}, which it is not")
        if not metadata["classes"]:
            raise TypeError("classes must be names")
        size = metadata["batch_size"]
        if size is not None and (type(size) is not int or not 0 < size <= MOST_IMAGES):
            raise TypeError(f"batch_size must be an integer > 0 and at most {MOST_IMAGES:,}, or null")
        if not isinstance(metadata.get("familiarity_threshold", 0.0), float | None):
            raise TypeError("familiarity_threshold must be a number or null")
        predictor = _predictor(function, metadata, decoder, path.name)
        predictor.read.prepare(torch.zeros(3, 8, 8, dtype=torch.uint8))
    except (AttributeError, KeyError, RecursionError, RuntimeError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {first_line(error).rstrip('.')}"
        raise ConfigError(f"{path} must have the metadata {KEY} that export writes, got {reason}. {hint}") from error
    return predictor


def _predictor(function: Function, metadata: dict[str, Any], decoder: str, title: str) -> Predictor:
    transform = EvalTransform.of_stored(metadata["eval_transform"])
    size, preprocessing = metadata["batch_size"], metadata["preprocessing"]
    threshold, num_classes = metadata.get("familiarity_threshold"), len(metadata["classes"])
    num_outputs = num_classes + (threshold is not None)

    @torch.inference_mode()
    def run(batch: Tensor) -> Tensor:
        """Return the probabilities of a batch, uint8 (B, 3, H, W), and in a further column the familiarity, if the file
        has it: (B, num_classes) or (B, num_classes + 1)."""
        is_outside = preprocessing == "outside"
        given = normalise(batch, transform.mean, transform.std, channels_last=False) if is_outside else batch
        try:
            found, *more = function(given)
            outputs = torch.cat(
                [found.softmax(dim=1) if is_outside else found, *(each[:, None] for each in more)], dim=1
            )
            if outputs.shape != (len(batch), num_outputs):
                raise ValueError(f"it computes {tuple(outputs.shape)} of {count_noun(len(batch), 'image')}")
        except Exception as error:  # of the runtime, too
            raise ConfigError(
                f"{title} must compute {count_noun(num_outputs, 'number')} of each image, but does not: "
                f"{first_line(error).rstrip('.')}. Hint: write the file with `python -m imagenet_ddp.export`."
            ) from error
        return outputs

    def compute(images: list[Tensor]) -> Outputs:
        """Return the outputs for images. Images of the same shape form a batch. If the file has a fixed batch size, the
        last batch is padded."""
        rows = torch.empty(len(images), num_outputs)
        shapes: dict[tuple[int, ...], list[int]] = {}
        for position, image in enumerate(images):
            shapes.setdefault(tuple(image.shape), []).append(position)
        for positions in shapes.values():
            step = size or len(positions)
            for part in (positions[start : start + step] for start in range(0, len(positions), step)):
                padded = part + part[:1] * (step - len(part) if size else 0)
                rows[part] = run(torch.stack([images[position] for position in padded]))[: len(part)].float()
        return Outputs(rows[:, :num_classes], None if threshold is None else rows[:, num_classes])

    reading = Reading(decoder, metadata["exif_orientation"], metadata.get("white_level"))
    is_inside = preprocessing == "inside"
    reader = FileReader(reading, whole if is_inside else transform)
    cpu = torch.device("cpu")
    return Predictor(
        metadata["classes"], metadata["labels"], reader, compute, cpu, title=title, reads_whole=is_inside,
        threshold=threshold,
    )  # fmt: skip
