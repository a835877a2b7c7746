"""What is compared with: the loader of pytorch/examples/imagenet, as torchvision and PyTorch give it. Pillow decodes,
crops, resizes and flips; each image becomes floats and is normalised on the CPU.

Source: https://github.com/pytorch/examples/blob/main/imagenet/main.py
"""

from typing import Any

from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.datasets.folder import pil_loader


class PlainImages(Dataset):
    """float32 (3, size, size) and a target for each path."""

    def __init__(self, paths: list[str], size: int, mean: list[float], std: list[float]):
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


def plain_loader(paths: list[str], batch_size: int, size: int, mean: list[float], std: list[float]) -> DataLoader:
    return DataLoader(PlainImages(paths, size, mean, std), batch_size, shuffle=True)
