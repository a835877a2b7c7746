"""The baseline: the loader of pytorch/examples/imagenet. Pillow decodes, crops, resizes and flips; each image is
converted to floats and normalised on the CPU.

Source: https://github.com/pytorch/examples/blob/main/imagenet/main.py
"""

from collections.abc import Sequence
from typing import Any

from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.datasets.folder import pil_loader


class BaselineImages(Dataset):
    """Items are float32 (3, size, size) and the target 0."""

    def __init__(self, paths: list[str], size: int, mean: Sequence[float], std: Sequence[float]):
        self._paths = paths
        self._transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(size),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(mean, std),
            ]
        )

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self._transform(pil_loader(self._paths[index])), 0


def baseline_loader(
    paths: list[str], batch_size: int, size: int, mean: Sequence[float], std: Sequence[float]
) -> DataLoader:
    return DataLoader(BaselineImages(paths, size, mean, std), batch_size, shuffle=True)
