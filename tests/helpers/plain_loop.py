"""Train with a plain loop, with which the tests compare the recipes of this project.

The loop uses torch alone, and trains as pytorch/examples' imagenet/main.py and torchvision's
references/classification/train.py do.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import lr_scheduler

NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.modules.instancenorm._InstanceNorm)
MEAN, STD = (torch.tensor(values).view(1, 3, 1, 1) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


@dataclass(frozen=True)
class Options:
    """The options of these programs, with torchvision's names and defaults, which pytorch/examples shares.

    batch_size: the images of all ranks together in one step.
    """

    epochs: int = 90
    batch_size: int = 256
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    norm_weight_decay: float | None = None
    label_smoothing: float = 0.0
    lr_scheduler: str = "steplr"
    lr_step_size: int = 30
    lr_gamma: float = 0.1
    lr_warmup_epochs: int = 0
    lr_warmup_decay: float = 0.01


class Mix(NamedTuple):
    """How a batch is mixed: each image with the image `shift` positions before it, whose target has the weight
    1 - share. box: top, bottom, left and right of the rectangle that is replaced (CutMix); None: all pixels are blended
    (mixup)."""

    share: float
    shift: int
    box: tuple[int, int, int, int] | None


class Batch(NamedTuple):
    pixels: Tensor  # uint8 (B, 3, H, W)
    flip: Tensor  # bool (B,)
    target: Tensor  # int64 (B,)
    mix: Mix | None = None


@dataclass
class Trained:
    losses: list[float] = field(default_factory=list)  # of each step
    rates: list[float] = field(default_factory=list)


def weight_decays(net: nn.Module, options: Options) -> dict[str, float]:
    """Return the weight decay of each parameter."""
    norms = {
        f"{prefix}.{name}"
        for prefix, module in net.named_modules()
        if isinstance(module, NORMS)
        for name, _ in module.named_parameters(recurse=False)
    }
    of_norms = options.weight_decay if options.norm_weight_decay is None else options.norm_weight_decay
    return {name: of_norms if name in norms else options.weight_decay for name, _ in net.named_parameters()}


def make_optimizer(net: nn.Module, options: Options) -> torch.optim.SGD:
    decays = weight_decays(net, options)
    groups = [{"params": [parameter], "weight_decay": decays[name]} for name, parameter in net.named_parameters()]
    return torch.optim.SGD(groups, lr=options.lr, momentum=options.momentum)


def make_scheduler(optimizer: torch.optim.Optimizer, options: Options) -> lr_scheduler.LRScheduler:
    """Return the scheduler, whose step() is called after each epoch."""
    warmup = options.lr_warmup_epochs
    if options.lr_scheduler == "steplr":
        return lr_scheduler.StepLR(optimizer, options.lr_step_size, options.lr_gamma)
    main = lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.epochs - warmup)
    rise = lr_scheduler.LinearLR(optimizer, start_factor=options.lr_warmup_decay, total_iters=warmup)
    return lr_scheduler.SequentialLR(optimizer, [rise, main], milestones=[warmup])


def rates(options: Options) -> list[float]:
    """Return the learning rate of each epoch."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(()))], lr=options.lr)
    scheduler, found = make_scheduler(optimizer, options), []
    for _ in range(options.epochs):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def normalised(pixels: Tensor, flip: Tensor) -> Tensor:
    flipped = torch.stack([torch.flip(image, [2]) if turn else image for image, turn in zip(pixels, flip, strict=True)])
    return (flipped / 255 - MEAN) / STD


def mixed(images: Tensor, target: Tensor, mix: Mix) -> tuple[Tensor, Tensor]:
    """Return the mixed images, float (B, 3, H, W), and targets, float (B, classes). target: one-hot."""
    others, share = images.roll(mix.shift, 0), mix.share
    if mix.box is None:
        images = share * images + (1 - share) * others
    else:
        top, bottom, left, right = mix.box
        images = images.clone()
        images[:, :, top:bottom, left:right] = others[:, :, top:bottom, left:right]
        share = 1 - (bottom - top) * (right - left) / (images.shape[2] * images.shape[3])
    return images, share * target + (1 - share) * target.roll(mix.shift, 0)


def train(net: nn.Module, epochs: Sequence[Sequence[Batch]], num_classes: int, options: Options) -> Trained:
    """Train net on the batches of each epoch."""
    optimizer = make_optimizer(net, options)
    scheduler = make_scheduler(optimizer, options)
    trained = Trained()
    net.train()
    for batches in epochs:
        for batch in batches:
            images, target = normalised(batch.pixels, batch.flip), batch.target
            if batch.mix is not None:
                images, target = mixed(images, F.one_hot(target, num_classes).float(), batch.mix)
            loss = F.cross_entropy(net(images), target, label_smoothing=options.label_smoothing)
            trained.rates.append(optimizer.param_groups[0]["lr"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            trained.losses.append(loss.item())
        scheduler.step()
    return trained


class SmallNet(nn.Module):
    """A net whose step takes a few milliseconds: two convolutions with batch norm, one of them in a residual block, and
    a linear layer."""

    def __init__(self, num_classes: int):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.fc = nn.Linear(8, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.stem(images)
        return self.fc((features + self.block(features)).mean((2, 3)))
