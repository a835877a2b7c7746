"""Write only the weights, under the names of torchvision or timm."""

from pathlib import Path

import safetensors.torch
from torch import Tensor

from imagenet_ddp.export.graph import Classifier
from imagenet_ddp.runs.checkpoint_file import KEY


def build(graph: Classifier, batch_size: int | None) -> dict[str, Tensor]:
    # cloned, because shared and strided tensors cannot be stored
    return {name: tensor.clone().contiguous() for name, tensor in graph.net.state_dict().items()}


def save(weights: dict[str, Tensor], path: Path, metadata: str) -> None:
    # save_file would make the file readable only by its owner
    path.write_bytes(safetensors.torch.save(weights, {"format": "pt", KEY: metadata}))
