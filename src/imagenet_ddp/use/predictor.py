"""Predict the classes of image files with a checkpoint on one device, or with an exported file on the CPU."""

import json
import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from imagenet_ddp.data.decoding.decode import Reading, decode
from imagenet_ddp.data.decoding.errors import UnreadableImage
from imagenet_ddp.data.sources.image_files import read_file
from imagenet_ddp.data.transforms import EvalTransform, normalise, whole
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.exported.formats import KEY, Function, graph_format
from imagenet_ddp.launch import devices
from imagenet_ddp.launch.plan import Config, choose_precision, image_statistics
from imagenet_ddp.launch.stored_config import model_title
from imagenet_ddp.launch.trained_model import TrainedModel
from imagenet_ddp.models.choose_task import TASKS
from imagenet_ddp.models.class_activation import class_activation_maps
from imagenet_ddp.models.factory import create_model
from imagenet_ddp.models.layers import average_views
from imagenet_ddp.runs.checkpoint_file import load_weights
from imagenet_ddp.runs.result_files import NOT_FINITE
from imagenet_ddp.system.text import first_line

HALF = {"bf16": torch.bfloat16, "16": torch.float16}
AHEAD = 2  # batches that read_in_order reads in advance


@dataclass(frozen=True)
class FileReader:
    """Read, decode and prepare an image file. prepare: called with the decoded image, uint8 (3, H, W)."""

    reading: Reading
    prepare: Callable[[Tensor], Tensor]

    def __call__(self, path: str) -> Tensor | UnreadableImage:
        """Return the prepared image, or an UnreadableImage with the reason why it cannot be read. This method is
        thread-safe."""
        try:
            return self.prepare(decode(read_file(path), path, self.reading))
        except UnreadableImage as error:
            return error
        except OSError as error:
            return UnreadableImage(path, error.strerror or str(error))


@dataclass(frozen=True)
class Predictor:
    """A network with its validation transform.

    read: maps a path to an image, uint8 (3, H, W); thread-safe. probabilities: maps a list of such images to float32
    (B, num_classes) on the CPU. explain: maps (images of one size, class indices) to float (B, H, W) in 0..1, which
    shows where each class was found; None for an exported file, which has no gradients. title: what the net is called.
    """

    classes: list[str]
    labels: list[str]  # names for display, in the order of classes
    read: FileReader
    probabilities: Callable[[list[Tensor]], Tensor]
    device: torch.device
    explain: Callable[[list[Tensor], list[int]], Tensor] | None = None
    title: str = ""
    reads_whole: bool = False  # whether images are read in their original size, which needs much memory

    def predict(self, images: list[Tensor | UnreadableImage], top_k: int) -> list[tuple[list[tuple[int, float]], str]]:
        """Return for each image ([(class index, probability), ...] of the top_k classes, ""), or ([], reason) if the
        image could not be read, or its probabilities are not finite."""
        readable = [image for image in images if isinstance(image, Tensor)]
        rows = iter(self._top(readable, top_k) if readable else [])
        results: list[tuple[list[tuple[int, float]], str]] = [
            ([], image.reason) if isinstance(image, UnreadableImage) else (next(rows), "") for image in images
        ]
        return [
            (top, reason) if all(math.isfinite(share) for _, share in top) else ([], NOT_FINITE)
            for top, reason in results
        ]

    def _top(self, images: list[Tensor], top_k: int) -> list[list[tuple[int, float]]]:
        top: Any = self.probabilities(images).topk(top_k)  # Any, because torch does not declare what tolist() returns
        pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        return [list(zip(*pair, strict=True)) for pair in pairs]


def read_in_order(
    reader: FileReader, paths: Sequence[str], batch_size: int, num_threads: int
) -> Generator[list[Tensor | UnreadableImage]]:
    """Yield the images in the order of `paths`, batch_size at a time, read in advance by threads. Processes would be
    slower, because decoding and resizing leave Python's lock to other threads."""
    pool = ThreadPoolExecutor(num_threads)
    try:
        coming: deque[list[Future[Tensor | UnreadableImage]]] = deque()
        for start in range(0, len(paths) + AHEAD * batch_size, batch_size):
            coming.append([pool.submit(reader, path) for path in paths[start : start + batch_size]])
            if len(coming) > AHEAD and (batch := [each.result() for each in coming.popleft()]):
                yield batch
    finally:
        pool.shutdown(cancel_futures=True)  # otherwise Ctrl-C waits for all files that are still to be read


def eval_transform(config: Config) -> EvalTransform:
    """Return the transform of an evaluation. config: result of stored_config.from_checkpoint, so that each key has the
    checkpoint's value unless it was typed."""
    statistics = {key: choice.value for key, choice in image_statistics(config).items()}
    return EvalTransform.of(replace(config.data, **statistics))


def load_net(config: Config, trained: TrainedModel) -> torch.nn.Module:
    """Return the trained net in evaluation mode, in fp32 on the CPU."""
    net = create_model(config.model, len(trained.classes), 0, config.data.image_size)
    load_weights(net, trained.weights, trained.origin)
    return net.eval()


def make_predictor(
    config: Config, trained: TrainedModel, net: torch.nn.Module, device: torch.device | None = None
) -> Predictor:
    """Make the predictor of a trained net, and set up this process as for an evaluation. net: result of load_net.
    device: None means the device and the precision of an evaluation. On a given device the predictor computes in fp32,
    for comparisons."""
    transform = eval_transform(config)
    precision = "32-true"
    if device is None:
        device = devices.use_device(config.trainer)
        precision = choose_precision(config, device).value
    devices.set_up_process(device.type, devices.choose_num_threads(config.cluster.num_threads, 1)[0])
    net, task = net.to(device), TASKS[config.data.labels]
    # the weights stay in fp32, also for bf16-true: explain needs gradients
    kind = HALF.get(precision.partition("-")[0])
    autocast = torch.autocast(device.type, kind) if kind is not None else nullcontext()

    def normalised(images: list[Tensor]) -> Tensor:
        """Return images, each uint8 (3, image_size, image_size), as a normalised batch on the device."""
        pixels = torch.stack(images).to(device)
        return normalise(pixels, transform.mean, transform.std, config.model.channels_last)

    @torch.inference_mode()
    def probabilities(images: list[Tensor]) -> Tensor:
        with autocast:
            logits = average_views(net, normalised(images), transform.views)
        return task.probabilities(logits.float()).cpu()

    def explain(images: list[Tensor], classes: list[int]) -> Tensor:
        indices = torch.tensor(classes, device=device)
        return class_activation_maps(net, normalised(images), indices).cpu()

    reading = Reading.of(config.data)
    reader = FileReader(reading, transform)
    title = model_title(config.model, trained.contents["config"]["data"]) if trained.contents else trained.origin
    return Predictor(trained.classes, trained.labels, reader, probabilities, device, explain, title=title)


def open_exported(path: Path, decoder: str) -> Predictor:
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
    try:
        metadata = json.loads(text)
        classes, labels, size = (metadata[name] for name in ("classes", "labels", "batch_size"))
        if not all(isinstance(each, str) for each in [*classes, *labels]) or not len(classes) == len(labels) > 0:
            raise TypeError("classes and labels must be names")
        if size is not None and (type(size) is not int or size < 1):
            raise TypeError("batch_size must be an integer > 0 or null")
        predictor = _predictor(function, metadata, decoder, path.name)
        predictor.read.prepare(torch.zeros(3, 8, 8, dtype=torch.uint8))
    except (AttributeError, KeyError, RecursionError, RuntimeError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {first_line(error).rstrip('.')}"
        raise ConfigError(f"{path} must have the metadata {KEY} that export writes, got {reason}. {hint}") from error
    return predictor


def _predictor(function: Function, metadata: dict[str, Any], decoder: str, title: str) -> Predictor:
    transform = EvalTransform.of_stored(metadata["eval_transform"])
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

    reading = Reading(decoder, metadata["exif_orientation"], metadata.get("white_level"))
    is_inside = preprocessing == "inside"
    reader = FileReader(reading, whole if is_inside else transform)
    cpu = torch.device("cpu")
    return Predictor(
        metadata["classes"], metadata["labels"], reader, probabilities, cpu, title=title, reads_whole=is_inside
    )
