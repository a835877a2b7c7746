"""Implement trainer.sync_batchnorm where torch.nn.SyncBatchNorm cannot: on CPUs, and for timm's layers."""

from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.plugins.layer_sync import TorchSyncBatchNorm
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from imagenet_ddp.errors import ConfigError


class SyncBatchNorm(TorchSyncBatchNorm):
    """Convert each batch norm to a synchronised batch norm for a kind of device: cpu, cuda or mps.

    Raises ConfigError for subclasses of torch's layers on CPUs.
    """

    def __init__(self, kind: str):
        self._kind = kind  # must be given, because Lightning converts the layers before the net is on its device

    def apply(self, model: nn.Module) -> nn.Module:
        layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
        if self._kind != "cpu":
            if any(type(layer).__module__.startswith("timm.") for layer in layers):
                from timm.layers import convert_sync_batchnorm  # torch's would drop the activations in timm's layers

                return convert_sync_batchnorm(model)
            return super().apply(model)
        for layer in layers:
            if type(layer) not in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
                raise ConfigError(
                    f"trainer.sync_batchnorm=true on CPUs needs torch's own layers, got {type(layer).__name__}. "
                    "Hint: set trainer.sync_batchnorm=false, or choose another model."
                )
            layer.__class__ = _CPUSyncBatchNorm
        return model


class _CPUSyncBatchNorm(_BatchNorm):
    """Batch norm with the mean and variance over the batches of all ranks.

    It needs two collectives in the forward pass and two in the backward pass. The class does not inherit from
    torch.nn.SyncBatchNorm, which DistributedDataParallel refuses on CPUs.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        pass

    @torch.compiler.disable
    def forward(self, input: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not self.training:
            return super().forward(input)
        values = input.float() if input.dtype in (torch.bfloat16, torch.float16) else input
        dims = [0, *range(2, input.dim())]
        shape = [1, -1] + [1] * (input.dim() - 2)
        own = values.new_tensor([values.numel() // values.shape[1]])
        sums = _Sum.apply(torch.cat([values.sum(dims), own]))
        count = sums[-1]
        mean = sums[:-1] / count
        centred = values - mean.view(shape)
        variance = _Sum.apply(centred.square().sum(dims)) / count
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            with torch.no_grad():
                self.num_batches_tracked += 1
                share = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
                self.running_var.lerp_((variance * count / (count - 1)).to(self.running_var.dtype), share)
        normed = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            normed = normed * self.weight.view(shape) + self.bias.view(shape)
        return normed.to(input.dtype)


class _Sum(torch.autograd.Function):
    """Sum a tensor over all ranks in the forward pass, and its gradient in the backward pass."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _Sum.forward(ctx, gradients[0])
