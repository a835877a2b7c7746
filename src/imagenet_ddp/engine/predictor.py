"""A checkpoint as a function from image files to classes, on one device."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from imagenet_ddp.data.decoding.image import DEFAULT, Reading, UnreadableImage, decode
from imagenet_ddp.data.sources.folder.images import read_file
from imagenet_ddp.data.transforms import EvalTransform, normalise
from imagenet_ddp.distributed import devices
from imagenet_ddp.engine.plan import Config
from imagenet_ddp.models.create_model import create_model
from imagenet_ddp.runs.checkpoint_file import load_weights


class Predictor:
    """A checkpoint's net with the transform it was validated with, on one device."""

    def __init__(
        self,
        net: torch.nn.Module,
        transform: EvalTransform,
        channels_last: bool,
        device: torch.device,
        reading: Reading = DEFAULT,
    ):
        self._net, self._device = net.eval().to(device), device
        self._transform, self._channels_last, self._reading = transform, channels_last, reading

    def read(self, path: str) -> Tensor | UnreadableImage:
        """uint8 (3, image_size, image_size). Called from many threads."""
        try:
            return self._transform(decode(read_file(path), path, self._reading))
        except UnreadableImage as error:
            return error
        except OSError as error:
            return UnreadableImage(path, error.strerror or str(error))

    @torch.inference_mode()
    def predict(self, images: list[Tensor | UnreadableImage], top_k: int) -> list[tuple[list[tuple[int, float]], str]]:
        """For each image (class position, probability) of the top_k, and "" or why it could not be read."""
        readable = [image for image in images if isinstance(image, Tensor)]
        found: list[list[tuple[int, float]]] = []
        if readable:
            transform = self._transform
            batch = normalise(
                torch.stack(readable).to(self._device), transform.mean, transform.std, self._channels_last
            )
            top = self._net(batch).float().softmax(dim=1).topk(top_k)
            found = [
                list(zip(indices, values, strict=True))
                for indices, values in zip(top.indices.tolist(), top.values.tolist(), strict=True)
            ]
        results = iter(found)
        return [([], image.reason) if isinstance(image, UnreadableImage) else (next(results), "") for image in images]


def make_predictor(config: Config, contents: Mapping[str, Any], state_dict: Mapping[str, Tensor]) -> Predictor:
    """contents, state_dict: of the checkpoint. Computes in fp32: a few images need no speed."""
    net = create_model(config["model"], len(contents["classes"]), 0, contents["eval_transform"]["image_size"])
    prefix = "net."
    weights = {key.removeprefix(prefix): value for key, value in state_dict.items() if key.startswith(prefix)}
    load_weights(net, weights, config["checkpoint"])
    transform = EvalTransform.from_keys(contents["eval_transform"])
    device = devices.first_device(config["trainer"])
    reading = Reading(config["data"]["decoder"], config["data"]["exif_orientation"])
    return Predictor(net, transform, config["model"]["channels_last"], device, reading)
