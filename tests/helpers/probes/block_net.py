"""Provide a net with repeated blocks that compiles in seconds."""

from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, images: Tensor) -> Tensor:
        return images + self.norm(self.conv(images)).relu_()


class BlockNet(nn.Module):
    def __init__(self, num_classes: int, depth: int = 2):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=4)
        self.blocks = nn.Sequential(*(Block(8) for _ in range(depth)))
        self.fc = nn.Linear(8, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.blocks(self.stem(images)).mean((2, 3)))
