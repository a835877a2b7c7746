"""Predict the classes of image files with a checkpoint, on one device."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from imagenet_ddp.data.decode import Reading, UnreadableImage
from imagenet_ddp.data.loader import FileReader
from imagenet_ddp.data.transforms import EvalTransform, normalise
from imagenet_ddp.distributed import devices
from imagenet_ddp.engine.plan import Config, image_statistics
from imagenet_ddp.engine.stored_config import model_title
from imagenet_ddp.engine.trained_model import TrainedModel
from imagenet_ddp.models.class_activation import class_activation_maps
from imagenet_ddp.models.factory import create_model
from imagenet_ddp.models.views import average_views
from imagenet_ddp.runs.checkpoint_file import load_weights
from imagenet_ddp.runs.predictions_file import NOT_FINITE


@dataclass(frozen=True)
class Predictor:
    """A network with its validation transform.

    read: maps a path to an image, uint8 (3, H, W); thread-safe and picklable. probabilities: maps a list of such images
    to float32 (B, num_classes) on the CPU. explain: maps (images of one size, class indices, method) to float (B, H, W)
    in 0..1, which shows where each class was found; None for an exported file, which has no gradients.
    title: what the net is called.
    """

    classes: list[str]
    labels: list[str]  # names for display, in the order of classes
    read: FileReader
    probabilities: Callable[[list[Tensor]], Tensor]
    device: torch.device
    explain: Callable[[list[Tensor], list[int], str], Tensor] | None = None
    title: str = ""
    reads_whole: bool = False  # whether images are read in their original size, which needs much memory

    def predict(self, images: list[Tensor | UnreadableImage], top_k: int) -> list[tuple[list[tuple[int, float]], str]]:
        """Return for each image ([(class index, probability), ...] of the top_k classes, ""), or ([], reason) if the
        image could not be read, or its probabilities are not finite."""
        readable = [image for image in images if isinstance(image, Tensor)]
        rows = iter(self._top(readable, top_k) if readable else [])
        results = [([], image.reason) if isinstance(image, UnreadableImage) else (next(rows), "") for image in images]
        return [
            (top, reason) if all(math.isfinite(share) for _, share in top) else ([], NOT_FINITE)
            for top, reason in results
        ]

    def _top(self, images: list[Tensor], top_k: int) -> list[list[tuple[int, float]]]:
        top = self.probabilities(images).topk(top_k)
        pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        return [list(zip(indices, values, strict=True)) for indices, values in pairs]


def eval_transform(config: Config) -> EvalTransform:
    """Return the transform of an evaluation. config: result of stored_config.from_checkpoint, so that each key has the
    checkpoint's value unless it was typed."""
    statistics = {key: choice.value for key, choice in image_statistics(config).items()}
    return EvalTransform.from_options({**config["data"], **statistics})


def load_net(config: Config, trained: TrainedModel) -> torch.nn.Module:
    """Return the trained net in evaluation mode, in fp32 on the CPU."""
    net = create_model(config["model"], len(trained.classes), 0, config["data"]["image_size"])
    load_weights(net, trained.weights, trained.origin)
    return net.eval()


def make_predictor(
    config: Config, trained: TrainedModel, net: torch.nn.Module, device: torch.device | None = None
) -> Predictor:
    """Make the predictor of a trained net. net: result of load_net. device: None means the device of trainer.*. The
    predictor computes in fp32, because speed does not matter for a few images."""
    transform = eval_transform(config)
    device = device or devices.device_of(config["trainer"])
    net = net.to(device)

    def normalised(images: list[Tensor]) -> Tensor:
        """Return images, each uint8 (3, image_size, image_size), as a normalised batch on the device."""
        pixels = torch.stack(images).to(device)
        return normalise(pixels, transform.mean, transform.std, config["model"]["channels_last"])

    @torch.inference_mode()
    def probabilities(images: list[Tensor]) -> Tensor:
        batch = normalised(images)
        logits = average_views(net, batch, transform.views)
        return logits.float().softmax(dim=1).cpu()

    def explain(images: list[Tensor], classes: list[int], method: str) -> Tensor:
        indices = torch.tensor(classes, device=device)
        return class_activation_maps(net, normalised(images), indices, method=method).cpu()

    reading = Reading(config["data"]["decoder"], config["data"]["exif_orientation"])
    reader = FileReader(reading, transform)
    title = model_title(config["model"], trained.contents["config"]["data"]) if trained.contents else trained.origin
    return Predictor(trained.classes, trained.labels, reader, probabilities, device, explain, title=title)
