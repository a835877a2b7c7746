"""After a fine-tuning, make the probabilities of its best net agree with how often it is right (best.ckpt).

A regression with a strong penalty, and a training with label smoothing, are right far more often than their
probabilities say. The logits are multiplied by one factor, in the weights of the last layer, so that every program that
reads the checkpoint has the same probabilities. The order of the classes stays the same.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from imagenet_ddp.models.calibration import MIN_IMAGES, calibrating_factor
from imagenet_ddp.runs.checkpoint_io import write_checkpoint
from imagenet_ddp.system.text import format_loss

MOST = 10.0  # factor, or its inverse; a net that needs more says little, or has diverged
LEAST_GAIN = 0.01  # share of the loss, for which the file is changed


def calibrate(best: Path, head: str, logits: Tensor, targets: Tensor, images: str) -> str:
    """Scale the last layer of a checkpoint, and replace the file. Return a sentence, "" if nothing is changed, as of
    weights in bf16 or fp16, which the factor would round, or of those that are computed from others (weight_norm).
    Raises RunError if the file cannot be written.

    head: name of the last layer in the net, which is linear. logits: of held-out images, float (N, C). targets: int64
    (N,). images: what they are, such as "96 validation images".
    """
    stored = torch.load(best, "cpu", weights_only=True)
    layers = {name: stored["state_dict"].get(f"net.{head}.{name}") for name in ("weight", "bias")}
    tensors = {name: tensor for name, tensor in layers.items() if tensor is not None}
    is_exact = "weight" in tensors and all(each.dtype in (torch.float32, torch.float64) for each in tensors.values())
    if len(targets) < MIN_IMAGES or not is_exact:
        return ""
    factor = calibrating_factor(logits, targets)
    if not 1 / MOST < factor < MOST:
        return ""
    before, after = (float(F.cross_entropy(each, targets)) for each in (logits, factor * logits))
    if after > (1 - LEAST_GAIN) * before:
        return ""
    for tensor in tensors.values():
        tensor.mul_(factor)  # in place, so that it is scaled under each name by which a net has it
    write_checkpoint(stored, best)
    losses = f"{format_loss(before)} to {format_loss(after)}"
    return (
        f"{best.name} is calibrated: its logits are multiplied by {factor:.2f}, so that its probabilities agree with "
        f"how often it is right, by {images} (loss {losses}). The predicted classes stay the same."
    )
