"""Declare the keys of model, compile, teacher and averaging."""

import math
from dataclasses import field
from typing import Annotated, Any

from imagenet_ddp.config.section import Replaceable, Section
from imagenet_ddp.config.validators import Example, choice, integer, number


class ModelConfig(Replaceable):
    name: Annotated[str, "Classifier of torchvision.models or timm."] = "resnet18"
    library: Annotated[str, choice("torchvision", "timm"), "Library of the model; timm needs the extra timm."] = (
        "torchvision"
    )
    _target_: Annotated[str | None, "Class of your own network."] = None
    args: Annotated[dict[str, Any], "Keyword arguments of the network."] = field(default_factory=dict[str, Any])
    weights: Annotated[
        str | None,
        Example("DEFAULT"),
        "Initial weights, or those used instead of checkpoint=: DEFAULT or another name of the library, a file, a URL, "
        "or hf://OWNER/NAME; null: random.",
    ] = None
    freeze: Annotated[
        str | None, choice("backbone"), Example("backbone"), "backbone: train only the last layer; null: all layers."
    ] = None
    unfreeze_epoch: Annotated[
        int | None, integer(1), Example("3"), "Epoch, counted from 0, from which all layers are trained; null: never."
    ] = None
    batch_norm: Annotated[
        str,
        choice("train", "frozen"),
        "train: use the statistics of each batch; frozen: keep those of model.weights; its weights and biases learn.",
    ] = "train"
    head: Annotated[
        str,
        choice("new", "regression"),
        "Start of a last layer for new classes; new: nearly equal logits for them, beside the rows that model.weights "
        "has for known ones; regression: logistic regression of all classes on the features of at most 20,000 "
        "training images.",
    ] = "new"
    drop_path: Annotated[
        float | None, number(0, below=1), Example("0.1"), "Stochastic depth: probability of leaving out the last block."
    ] = None
    zero_init_last: Annotated[bool, "Start each residual block as the identity, with a last norm of 0."] = False
    blur_pool: Annotated[bool, "Blur before each strided convolution with 16 or more input channels."] = False
    channels_last: Annotated[bool, "Memory format, faster on CPUs and tensor cores."] = True
    activation_checkpointing: Annotated[bool, "timm: recompute the inside of each block, to save memory."] = False


class ModuleConfig(Replaceable):
    """Keys of the LightningModule that trains the net."""

    _target_: Annotated[
        str | None,
        Example("PACKAGE.CLASS"),
        "Class of your own training steps, derived from imagenet_ddp.models.ImageClassifier.",
    ] = None
    args: Annotated[dict[str, Any], "Further arguments of your own class."] = field(default_factory=dict[str, Any])


class CompileConfig(Section):
    """Keys of torch.compile, which compiles only the net, for full batches. Smaller batches run eagerly."""

    name: Annotated[str, choice("off", "default", "reduce-overhead", "max-autotune"), "Mode of torch.compile."] = "off"


class TeacherConfig(Section):
    """Keys of distillation, in which the loss pulls the net's probabilities towards those of a trained net."""

    weights: Annotated[
        str | None, Example("DEFAULT"), "Teacher's weights, typed like model.weights; null: no distillation."
    ] = None
    name: Annotated[str | None, Example("resnet50"), "Teacher's network; null: the checkpoint's, or model.name."] = None
    library: Annotated[str, choice("torchvision", "timm"), "Library of the teacher's network."] = "torchvision"
    share: Annotated[float, number(above=0, most=1), "Share of the teacher in the loss."] = 0.5
    temperature: Annotated[float, number(above=0), "Divisor of both networks' logits before the softmax."] = 1.0


class AveragingConfig(Section):
    """Keys of the running average of the weights. If enabled, the average is validated, stored in best.ckpt, and used
    afterwards."""

    name: Annotated[
        str, choice("none", "ema", "swa"), "ema: exponential moving average; swa: equal average of the ends of epochs."
    ] = "none"
    decay: Annotated[float, number(above=0, below=1), "ema: weight of the old average in each update."] = 0.9998
    warmup: Annotated[bool, "ema: the decay of update n is at most (1 + n) / (10 + n)."] = True
    every_n_steps: Annotated[int, integer(1), "ema: optimizer steps between two updates."] = 1
    start_epoch: Annotated[
        int | None,
        integer(0),
        Example("75"),
        "First averaged epoch, from 0; null: ema: 0; swa: the last quarter's first.",
    ] = None

    def first_epoch(self, max_epochs: int | None) -> int:
        """Return the first epoch, counted from 0, whose weights are averaged. By default, swa averages the last quarter
        of the training (Izmailov et al. 2018, arXiv:1803.05407)."""
        if self.start_epoch is not None or self.name != "swa":
            return self.start_epoch or 0
        return max(min(math.ceil(0.75 * (max_epochs or 0)), (max_epochs or 0) - 1), 0)
