# pyright: standard
# The calls of autograd have no types.
"""Run the step of a training on generated images: the batch finder tries whether it fits into memory, and doctor times
it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.data.transforms import last_train_size, mean_and_std, normalise
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch.devices import choose_cudnn_benchmark
from imagenet_ddp.mistakes import Mistake, setting
from imagenet_ddp.models.factory import create_model, require_batch
from imagenet_ddp.models.optimizers import choose_fused, make_optimizer

AUTOCAST = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}
TRUE_PRECISION = {"16-true": torch.float16, "bf16-true": torch.bfloat16, "64-true": torch.float64}


@dataclass
class Training:
    """The net, the optimizer and the generated images of a training step.

    images: uint8 (B, 3, H, W), on the device. target: int64 (B,), on the device. prepare: converts images to the net's
    input. autocast: data type for mixed precision; None without it.
    """

    net: nn.Module
    optimizer: torch.optim.Optimizer
    images: Tensor
    target: Tensor
    prepare: Callable[[Tensor], Tensor]
    autocast: torch.dtype | None = None

    def forward(self, net: nn.Module) -> Tensor:
        device = self.images.device.type
        with torch.autocast(device, self.autocast, enabled=self.autocast is not None):
            logits = net(self.prepare(self.images))
        return F.cross_entropy(logits.float(), self.target)

    def backward(self, loss: Tensor) -> None:
        """As Lightning does, keep the gradients of the previous step until the loss has been computed."""
        self.optimizer.zero_grad()
        loss.backward()


def make_training(config: CommonConfig, precision: str, device: torch.device, classes: int) -> Training:
    """Make the net and the optimizer of the run, and one batch of noise of the largest size in training.

    precision: precision of the plan, never auto. classes: number of classes of the net. Also run the first step. Raises
    ConfigError if this step does not fit into memory.
    """
    data, model = config.data, config.model
    size = last_train_size(data)
    torch.backends.cudnn.benchmark = bool(choose_cudnn_benchmark(config.trainer, device.type))  # as in the run
    net = create_model(model, classes, config.seed, data.image_size)
    require_batch(model, net, data.batch_size, data.progressive_start or size)
    net = net.to(device, TRUE_PRECISION.get(precision))
    kind, channels_last = TRUE_PRECISION.get(precision, torch.float32), model.channels_last
    generator = torch.Generator().manual_seed(config.seed)
    images = torch.randint(0, 256, (data.batch_size, 3, size, size), dtype=torch.uint8, generator=generator)
    target = torch.randint(0, classes, (data.batch_size,), generator=generator)
    training = Training(
        net,
        make_optimizer(config.optim, net, lr=1e-6, fused=choose_fused(config, device.type, precision)[0]),
        images.to(device),
        target.to(device),
        lambda images: normalise(images, *mean_and_std(data), channels_last).to(kind),
        AUTOCAST.get(precision),
    )
    try:
        training.backward(training.forward(net))
        training.optimizer.step()
    except torch.OutOfMemoryError as error:
        what = f"a step of {data.batch_size} images of {size} pixels does not fit into the memory of {device}"
        way = setting(f"data.batch_size={max(data.batch_size // 2, 1)}", "trainer.accumulate_grad_batches=2")
        raise ConfigError(Mistake(what, ("data.batch_size",), (way,))) from error
    return training
