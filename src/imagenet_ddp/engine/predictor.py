"""Predict the classes of image files with a checkpoint, on one device."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from imagenet_ddp.data.decoding.image import Reading, UnreadableImage, decode
from imagenet_ddp.data.sources.folder.images import read_file
from imagenet_ddp.data.transforms import EvalTransform, normalise
from imagenet_ddp.distributed import devices
from imagenet_ddp.engine.plan import Config
from imagenet_ddp.models.factory import create_model
from imagenet_ddp.models.mirror import average_mirrored
from imagenet_ddp.runs.checkpoint_file import load_weights


class Predictor:
    """A checkpoint's network with the transform of its validation."""

    def __init__(
        self,
        net: torch.nn.Module,
        transform: EvalTransform,
        channels_last: bool,
        device: torch.device,
        reading: Reading,
    ):
        self.net, self.device, self.transform = net.eval().to(device), device, transform
        self._channels_last, self._reading = channels_last, reading

    def read(self, path: str) -> Tensor | UnreadableImage:
        """Return uint8 (3, image_size, image_size). Thread-safe."""
        try:
            return self.transform(decode(read_file(path), path, self._reading))
        except UnreadableImage as error:
            return error
        except OSError as error:
            return UnreadableImage(path, error.strerror or str(error))

    @torch.inference_mode()
    def predict(self, images: list[Tensor | UnreadableImage], top_k: int) -> list[tuple[list[tuple[int, float]], str]]:
        """Return, for each image, ((class index, probability) of the top_k, "") or ([], why it could not be read)."""
        readable = [image for image in images if isinstance(image, Tensor)]
        rows = iter(self._top(torch.stack(readable), top_k) if readable else [])
        return [([], image.reason) if isinstance(image, UnreadableImage) else (next(rows), "") for image in images]

    def _top(self, images: Tensor, top_k: int) -> list[list[tuple[int, float]]]:
        """images: uint8 (B, 3, H, W)."""
        mean, std = self.transform.mean, self.transform.std
        batch = normalise(images.to(self.device), mean, std, self._channels_last)
        logits = average_mirrored(self.net, batch) if self.transform.mirror else self.net(batch)
        top = logits.float().softmax(dim=1).topk(top_k)
        pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        return [list(zip(indices, values, strict=True)) for indices, values in pairs]


def make_predictor(config: Config, contents: Mapping[str, Any], state_dict: Mapping[str, Tensor]) -> Predictor:
    """contents, state_dict: of the checkpoint. The predictor computes in fp32: a few images need no speed."""
    net = create_model(config["model"], len(contents["classes"]), 0, contents["eval_transform"]["image_size"])
    prefix = "net."
    weights = {key.removeprefix(prefix): value for key, value in state_dict.items() if key.startswith(prefix)}
    load_weights(net, weights, config["checkpoint"])
    transform = EvalTransform.from_options(contents["eval_transform"])
    device = devices.device_of(config["trainer"])
    reading = Reading(config["data"]["decoder"], config["data"]["exif_orientation"])
    return Predictor(net, transform, config["model"]["channels_last"], device, reading)
