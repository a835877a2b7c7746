"""Predict the classes of image files with a net on one device."""

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from imagenet_ddp.curation.unknown import Familiarity, Reference, find, net_digest
from imagenet_ddp.data.decoding.decode import Reading, decode
from imagenet_ddp.data.decoding.errors import UnreadableImage
from imagenet_ddp.data.sources.image_files import read_file
from imagenet_ddp.data.transforms import EvalTransform, normalise
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch import devices
from imagenet_ddp.launch.plan import Config, image_statistics, precision_of
from imagenet_ddp.launch.stored_config import model_title
from imagenet_ddp.launch.trained_model import TrainedModel
from imagenet_ddp.mistakes import Mistake, without
from imagenet_ddp.models.choose_task import TASKS
from imagenet_ddp.models.class_activation import class_activation_maps
from imagenet_ddp.models.factory import create_model, of_size
from imagenet_ddp.models.head import compute_features, head_names, only_linear
from imagenet_ddp.models.layers import average_views
from imagenet_ddp.runs.checkpoint_file import load_weights
from imagenet_ddp.runs.result_files import NOT_FINITE

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


class Outputs(NamedTuple):
    """What a net gives for a batch, on the CPU."""

    probabilities: Tensor  # float32 (B, num_classes)
    familiarity: Tensor | None = None  # float32 (B,), see curation/unknown.py; None without a reference
    features: Tensor | None = None  # float32 (B, D), the input of the last layer; None unless they are kept


class Result(NamedTuple):
    """The prediction for one image. reason: why there is none, or ""."""

    top: list[tuple[int, float]]  # (class index, probability) of the most probable classes
    reason: str = ""
    familiarity: float | None = None
    is_known: bool | None = None  # None: the predictor has no reference
    features: Tensor | None = None


@dataclass(frozen=True)
class Predictor:
    """A network with its validation transform.

    read: maps a path to an image, uint8 (3, H, W); thread-safe. compute: maps a list of such images to the outputs of
    the net. threshold: familiarity from which an image is known; None if it is not computed. explain: maps (images of
    one size, class indices) to float (B, H, W) in 0..1, which shows where each class was found; None for an exported
    file, which has no gradients. title: what the net is called.
    """

    classes: list[str]
    labels: list[str]  # names for display, in the order of classes
    read: FileReader
    compute: Callable[[list[Tensor]], Outputs]
    device: torch.device
    explain: Callable[[list[Tensor], list[int]], Tensor] | None = None
    title: str = ""
    reads_whole: bool = False  # whether images are read in their original size, which needs much memory
    threshold: float | None = None

    def probabilities(self, images: list[Tensor]) -> Tensor:
        """Return float32 (B, num_classes) on the CPU."""
        return self.compute(images).probabilities

    def predict(self, images: list[Tensor | UnreadableImage], top_k: int) -> list[Result]:
        """Return a result with the top_k classes for each image. An image that could not be read, or whose
        probabilities are not finite, has a reason in place of classes."""
        readable = [image for image in images if isinstance(image, Tensor)]
        rows = iter(self._results(readable, top_k) if readable else [])
        return [Result([], image.reason) if isinstance(image, UnreadableImage) else next(rows) for image in images]

    def _results(self, images: list[Tensor], top_k: int) -> list[Result]:
        outputs = self.compute(images)
        top: Any = outputs.probabilities.topk(top_k)  # Any, because torch does not declare what tolist() returns
        nothing: Any = [None] * len(images)
        scores, features = (
            nothing if each is None else each.unbind() for each in (outputs.familiarity, outputs.features)
        )
        rows = zip(top.indices.tolist(), top.values.tolist(), scores, features, strict=True)
        return [
            self._result(list(zip(classes, shares, strict=True)), score, vector)
            if all(map(math.isfinite, shares))
            else Result([], NOT_FINITE)
            for classes, shares, score, vector in rows
        ]

    def _result(self, top: list[tuple[int, float]], score: Tensor | None, features: Tensor | None) -> Result:
        value = None if score is None else float(score)
        is_known = None if value is None or self.threshold is None else value >= self.threshold
        return Result(top, "", value, is_known, features)


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
    with of_size(config.model, trained.weights, trained.origin):
        net = create_model(config.model, len(trained.classes), 0, config.data.image_size)
    load_weights(net, trained.weights, trained.origin)
    return net.eval()


def find_reference(
    config: Config, trained: TrainedModel, net: torch.nn.Module, path: Path | None
) -> tuple[Reference | None, str]:
    """Return (the reference of a checkpoint's run, ""), or (None, why there are none). The reason is "" for
    weights of another program, several labels per image, and a net whose last layer is not a linear one, none of which
    can have any.

    net: result of load_net. path: the file of checkpoint=, or None.
    """
    heads = head_names(net, len(trained.classes))
    last = only_linear(net, heads)
    if path is None or not trained.contents or last is None or config.data.labels == "several":
        return None, ""
    return find(path, last.in_features, lambda: net_digest(net, heads, eval_transform(config), Reading.of(config.data)))


def make_predictor(
    config: Config,
    trained: TrainedModel,
    net: torch.nn.Module,
    device: torch.device | None = None,
    reference: Reference | None = None,
    *,
    keep_features: bool = False,
) -> Predictor:
    """Make the predictor of a trained net, and set up this process as for an evaluation. net: result of load_net.
    device: None means the device and the precision of an evaluation. On a given device the predictor computes in fp32,
    for comparisons. reference: for the familiarity of images. keep_features: return features, too. Raises
    ConfigError if the net has none."""
    transform = eval_transform(config)
    precision = "32-true"
    if device is None:
        device = devices.use_device(config.trainer)
        precision = precision_of(config, device).value
    devices.set_up_process(device.type, devices.choose_num_threads(config.cluster.num_threads, 1)[0])
    net, task = net.to(device), TASKS[config.data.labels]
    # the weights stay in fp32, also for bf16-true: explain needs gradients
    kind = HALF.get(precision.partition("-")[0])
    autocast = torch.autocast(device.type, kind) if kind is not None else nullcontext()

    needs_features, heads = reference is not None or keep_features, tuple[str, ...]()
    if needs_features:
        heads = head_names(net, len(trained.classes))
    familiarity = None if reference is None else Familiarity(reference).to(device)

    if keep_features and only_linear(net, heads) is None:
        what = f"label_next needs a net that ends in one linear layer, but {config.model.name} does not"
        raise ConfigError(Mistake(what, ("label_next",), (without("label_next"),)))

    def normalised(images: list[Tensor]) -> Tensor:
        """Return images, each uint8 (3, image_size, image_size), as a normalised batch on the device."""
        pixels = torch.stack(images).to(device)
        return normalise(pixels, transform.mean, transform.std, config.model.channels_last)

    @torch.inference_mode()
    def compute(images: list[Tensor]) -> Outputs:
        found: list[Tensor] = []

        def run(pixels: Tensor) -> Tensor:
            if not needs_features:
                return net(pixels)
            features, logits = compute_features(net, heads[0], pixels)
            found.append(features)
            return logits

        with autocast:
            logits = average_views(run, normalised(images), transform.views)
        features = found[-1].float() if found else None  # of the last view, which is the image as it is
        scores = familiarity(features).cpu() if familiarity is not None and features is not None else None
        kept = features.cpu() if keep_features and features is not None else None
        return Outputs(task.probabilities(logits.float()).cpu(), scores, kept)

    def explain(images: list[Tensor], classes: list[int]) -> Tensor:
        indices = torch.tensor(classes, device=device)
        return class_activation_maps(net, normalised(images), indices).cpu()

    reading = Reading.of(config.data)
    reader = FileReader(reading, transform)
    title = model_title(config.model, trained.contents["config"]["data"]) if trained.contents else trained.origin
    threshold = None if reference is None else reference.threshold
    return Predictor(
        trained.classes, trained.labels, reader, compute, device, explain, title=title, threshold=threshold
    )
