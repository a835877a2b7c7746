"""Combine the net and the operations around it into one graph: resize, crop, normalisation, mean over orientations,
softmax."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imagenet_ddp.curation.unknown import Familiarity, Reference
from imagenet_ddp.data.transforms import EvalTransform, mean_colour
from imagenet_ddp.errors import RunError
from imagenet_ddp.models.layers import oriented
from imagenet_ddp.system.text import first_line


class Classifier(nn.Module):
    """The net with the operations around it. With preprocessing "inside", it maps uint8 (B, 3, H, W) of any size to
    probabilities (B, num_classes). With "normalise", it does the same for images of image_size pixels. With "outside",
    it maps normalised float32 (B, 3, image_size, image_size) to logits (B, num_classes). With a reference, the second
    output is the familiarity of each image, float32 (B,). head: name of the last layer, for a reference."""

    def __init__(
        self,
        net: nn.Module,
        transform: EvalTransform,
        preprocessing: str,
        reference: Reference | None = None,
        head: str = "",
    ):
        super().__init__()
        # contiguous, because torch.export.save warns about weights in another memory format
        self.net = net.to(memory_format=torch.contiguous_format)
        self.transform, self.preprocessing = transform, preprocessing
        self.head: nn.Module | None = None
        if reference is not None:
            self.net = copy.deepcopy(self.net)  # without its last layer
            self.head = self.net.get_submodule(head)
            self.net.set_submodule(head, nn.Identity())
            self.familiarity = Familiarity(reference)
        std, mean = torch.tensor(transform.std), torch.tensor(transform.mean)
        self.register_buffer("scale", (1 / (255 * std)).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("shift", (-mean / std).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        if self.preprocessing == "inside":
            images = _resize_and_crop(images, self.transform)
        if self.preprocessing != "outside":
            images = images.float() * self.get_buffer("scale") + self.get_buffer("shift")
        views = oriented(images, self.transform.views)
        found = self.net(torch.cat(views) if len(views) > 1 else images)  # one batch: the graph holds each layer once
        logits = found if self.head is None else self.head(found)
        if len(views) > 1:
            logits = logits.unflatten(0, (len(views), -1)).mean(0)
        output = logits if self.preprocessing == "outside" else logits.softmax(dim=1)
        if self.head is None:
            return output
        # of the first view, the image as it is; not a slice by len(images), which would fix the size of a batch
        features = found.unflatten(0, (len(views), -1))[0] if len(views) > 1 else found
        return output, self.familiarity(features)

    def export(self, batch_size: int | None) -> torch.export.ExportedProgram:
        """Trace the graph. batch_size: None for any size. Raises RunError if the net cannot be traced."""
        size, any_size = self.transform.image_size, self.preprocessing == "inside"
        height, width = (size + 37, size + 64) if any_size else (size, size)
        kind = torch.float32 if self.preprocessing == "outside" else torch.uint8
        example = torch.zeros(batch_size or 2, 3, height, width, dtype=kind)
        free = ([] if batch_size else [0]) + ([2, 3] if any_size else [])
        shapes = dict.fromkeys(free, torch.export.Dim.DYNAMIC)
        try:
            with torch.no_grad():
                return torch.export.export(self, (example,), dynamic_shapes=(shapes,))
        except Exception as error:  # the type depends on the net
            raise RunError(
                f"torch.export must be able to trace this net, but cannot ({first_line(error).rstrip('.')}). "
                f"Hint: set {'format=safetensors' if batch_size else 'batch_size=1'}."
            ) from error


def _resize_and_crop(images: Tensor, transform: EvalTransform) -> Tensor:
    """Resize and crop as EvalTransform does, but without branches and floats, so that torch.export can trace it for any
    size."""
    height, width = images.shape[2:]
    if transform.fit == "squash":
        return F.interpolate(images, (transform.image_size,) * 2, mode=transform.interpolation, antialias=True)
    if transform.fit == "pad":
        return _pad(images, transform)
    short = torch.sym_min(height, width)
    tall, wide = transform.val_resize * height // short, transform.val_resize * width // short
    size: Any = (tall, wide)  # these are symbolic integers while torch.export traces
    resized = F.interpolate(images, size, mode=transform.interpolation, antialias=True)
    positions = torch.arange(transform.image_size, device=images.device)
    for axis, length in ((2, tall), (3, wide)):
        spare = length - transform.image_size
        start: Any = (spare + spare % 4 // 3) // 2  # equals round(spare / 2), which rounds halves to even
        # not a slice, which torch.export would specialise on whether it covers the whole axis
        resized = resized.index_select(axis, start + positions)
    return resized


def _pad(images: Tensor, transform: EvalTransform) -> Tensor:
    height, width = images.shape[2:]
    side = transform.image_size
    longest = torch.sym_max(height, width)
    size: Any = tuple(torch.sym_max(side * length // longest, 2) for length in (height, width))
    padded = F.interpolate(images, size, mode=transform.interpolation, antialias=True)
    positions = torch.arange(side, device=images.device)
    is_inside = torch.ones(side, side, dtype=torch.bool, device=images.device)
    for axis, length in enumerate(size):
        start = (side - length) // 2
        padded = padded.index_select(2 + axis, (positions - start).clamp(0, length - 1))
        is_inside = is_inside & ((positions >= start) & (positions < start + length)).unsqueeze(1 - axis)
    colour = torch.tensor(mean_colour(transform.mean), dtype=images.dtype, device=images.device)
    return torch.where(is_inside, padded, colour.view(1, 3, 1, 1))
