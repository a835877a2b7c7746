"""Predict on the CPU with a .onnx or .pt2 file that export has written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from torch import Tensor

from imagenet_ddp.data.decode import Reading
from imagenet_ddp.data.loader import FileReader
from imagenet_ddp.data.transforms import EvalTransform, normalise, whole
from imagenet_ddp.engine.predictor import Predictor
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs.checkpoint_file import KEY
from imagenet_ddp.system.text import first_line

Function = Callable[[Tensor], Tensor]  # (B, 3, H, W) -> (B, num_classes)


def make_predictor(path: Path, decoder: str) -> Predictor:
    """Open an exported file. decoder: value of data.decoder. Raises ConfigError for a file that export did not
    write."""
    hint = "Hint: write the file with python -m imagenet_ddp.export."
    try:
        function, text = _open_onnx(path) if path.suffix == ".onnx" else _open_pt2(path)
    except Exception as error:  # a runtime, zip or pickle error, depending on the file
        raise ConfigError(
            f"{path} must be an exported model, but cannot be read as one ({first_line(error).rstrip('.')}). {hint}"
        ) from error
    if function is None or not text:
        raise ConfigError(f"{path} must be a file that export has written, but has no metadata {KEY}. {hint}")
    return _predictor(function, json.loads(text), decoder, path.name)


def _open_onnx(path: Path) -> tuple[Function, str]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    text = session.get_modelmeta().custom_metadata_map.get(KEY, "")
    return lambda batch: torch.from_numpy(session.run(None, {name: batch.numpy()})[0]), text


def _open_pt2(path: Path) -> tuple[Function | None, str]:
    with ZipFile(path) as archive:  # for any other file, torch.export.load logs a traceback before it raises
        if not any(name.endswith(f"/extra/{KEY}") for name in archive.namelist()):
            return None, ""
    extra = {KEY: ""}
    program = torch.export.load(path, extra_files=extra)
    return program.module(), extra[KEY]


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
