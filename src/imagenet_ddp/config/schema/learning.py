"""Declare the keys of model, compile, optim, schedule, loss, teacher and averaging, and list the optimizers, schedules
and losses by name. The keys that a row reads are refused beside the other rows (config/read_if.py)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from imagenet_ddp.config.section import Replaceable, Section
from imagenet_ddp.config.validators import AUTO, NULL, Example, choice, integer, is_mapping, kind, list_of, number


@dataclass(frozen=True)
class Optimizer:
    """A value of optim.name.

    reads: keys of optim.* that are its arguments, besides lr and weight_decay, which all have. torch_class: its name in
    torch.optim; "": it is one of timm.optim, under the name of the row. fused: whether torch has one kernel for its
    step. trust_ratio: whether it scales each step by the ratio of weights to gradients. arguments: further ones, which
    optim.args may replace.
    """

    reads: tuple[str, ...]
    torch_class: str = ""
    fused: bool = False
    trust_ratio: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


OPTIMIZERS = {
    "sgd": Optimizer(("momentum", "nesterov"), "SGD", fused=True),
    "adamw": Optimizer(("betas", "eps"), "AdamW", fused=True),
    "adam": Optimizer(("betas", "eps"), "Adam", fused=True),
    # decouples the weight decay from the gradient, as AdamW does
    "nadam": Optimizer(("betas", "eps"), "NAdam", arguments={"decoupled_weight_decay": True}),
    "rmsprop": Optimizer(("momentum", "eps"), "RMSprop"),
    "adafactor": Optimizer((), "Adafactor"),
    # Those of timm that need more than gradients (a closure, the Hessian) are left out.
    "adabelief": Optimizer(("betas", "eps")),
    "adan": Optimizer(("betas", "eps")),
    "adopt": Optimizer(("betas", "eps")),
    "lamb": Optimizer(("betas", "eps"), trust_ratio=True),
    "lars": Optimizer(("momentum",), trust_ratio=True),
    "lion": Optimizer(("betas",)),
    "madgrad": Optimizer(("eps",)),
    "mars": Optimizer(("betas", "eps")),
    "muon": Optimizer(("momentum", "betas", "eps", "lr_adamw")),
    "nadamw": Optimizer(("betas", "eps")),
}


@dataclass(frozen=True)
class Schedule:
    """A value of schedule.name. reads: keys of schedule.*, besides those that all read. to_the_end: whether it depends
    on the last epoch. at_epochs: whether the rate drops at given epochs."""

    reads: tuple[str, ...] = ()
    to_the_end: bool = False
    at_epochs: bool = False


SCHEDULES = {
    "step": Schedule(("step_epochs", "gamma"), at_epochs=True),
    "multistep": Schedule(("milestones", "milestone_steps", "gamma"), at_epochs=True),
    "cosine": Schedule(("cycle_epochs", "final_fraction"), to_the_end=True),
    "linear": Schedule(("final_fraction",), to_the_end=True),
    "poly": Schedule(("power", "final_fraction"), to_the_end=True),
    "exponential": Schedule(("gamma",)),
    "one_cycle": Schedule(("peak_fraction", "final_fraction"), to_the_end=True),
    "wsd": Schedule(("decay_fraction", "final_fraction"), to_the_end=True),
    "constant": Schedule(),
}

LOSSES = {"cross_entropy": (), "bce": ("bce_threshold",), "focal": ("focal_gamma",)}  # name -> keys of loss.* it reads


def readers(key: str) -> tuple[str, ...]:
    """Return the names of the optimizers that read a key of optim.*."""
    return tuple(name for name, row in OPTIMIZERS.items() if key in row.reads)


@dataclass
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
        "Start of a last layer without weights; new: nearly equal logits; regression: logistic regression on the "
        "features of at most 20,000 training images.",
    ] = "new"
    drop_path: Annotated[
        float | None, number(0, below=1), Example("0.1"), "Stochastic depth: probability of leaving out the last block."
    ] = None
    zero_init_last: Annotated[bool, "Start each residual block as the identity, with a last norm of 0."] = False
    blur_pool: Annotated[bool, "Blur before each strided convolution with 16 or more input channels."] = False
    channels_last: Annotated[bool, "Memory format, faster on CPUs and tensor cores."] = True
    activation_checkpointing: Annotated[bool, "timm: recompute the inside of each block, to save memory."] = False


@dataclass
class CompileConfig(Section):
    """Keys of torch.compile, which compiles only the net, for full batches. Smaller batches run eagerly."""

    name: Annotated[str, choice("off", "default", "reduce-overhead", "max-autotune"), "Mode of torch.compile."] = "off"


@dataclass
class OptimConfig(Replaceable):
    name: Annotated[
        str,
        f"{', '.join(name for name, row in OPTIMIZERS.items() if row.torch_class)}; lamb, lars, lion, muon and others "
        "of timm.optim.",
    ] = "sgd"
    _target_: Annotated[str | None, "Class of your own optimizer."] = None
    args: Annotated[dict[str, Any], "Further keyword arguments of the optimizer."] = field(
        default_factory=dict[str, Any]
    )
    lr: Annotated[float, number(above=0), "Learning rate for a batch of optim.reference_batch."] = 0.1
    lr_head: Annotated[
        float | None, number(above=0), Example("0.1"), "Learning rate of the last layer, scaled like lr; null: lr."
    ] = None
    lr_adamw: Annotated[
        float, number(above=0), "muon: learning rate of the last layer, embeddings and vectors, scaled like lr."
    ] = 1e-3
    layer_decay: Annotated[
        float | None,
        number(above=0, most=1),
        Example("0.75"),
        "Learning rate of each block as a share of the next one's.",
    ] = None
    reference_batch: Annotated[
        int | None, integer(1), Example("256"), "Global batch size for which lr is given; null: lr is not scaled."
    ] = 256
    scaling: Annotated[
        str,
        choice("auto", "linear", "sqrt", "none"),
        "How lr grows with the global batch; auto, as in timm: sqrt for lamb and names with ada (adamw, nadam), else "
        "linear.",
    ] = "auto"
    momentum: Annotated[float, number(0, below=1), f"{', '.join(readers('momentum'))}: momentum."] = 0.9
    betas: Annotated[
        list[float] | None,
        list_of(number(0, below=1), "two numbers ≥ 0 and < 1", 2),
        Example("[0.9,0.999]"),
        f"{', '.join(readers('betas'))}: decay of the two running means; null: the optimizer's default.",
    ] = None
    eps: Annotated[
        float | None,
        number(above=0),
        Example("1.0e-8"),
        "Term added to the denominator; null: the optimizer's default.",
    ] = None
    weight_decay: Annotated[float, number(0), Example("1e-4"), "Weight decay."] = 1e-4
    no_decay_on: Annotated[
        list[str] | None,
        list_of(choice("norm", "bias", "embedding"), "a list of norm, bias and embedding", least=0),
        Example("[norm,bias]"),
        "Parameters without weight decay; null: [norm,bias] for lars and lamb (also without trust ratio), else none.",
    ] = None
    nesterov: Annotated[bool, "sgd: Nesterov momentum."] = False


@dataclass
class ScheduleConfig(Replaceable):
    name: Annotated[str, choice(*SCHEDULES), "Learning-rate schedule."] = "step"
    _target_: Annotated[str | None, "Class of your own schedule."] = None
    args: Annotated[dict[str, Any], "Arguments of your own schedule."] = field(default_factory=dict[str, Any])
    interval: Annotated[str, choice("step", "epoch"), "Whether the rate changes per step or per epoch."] = "step"
    step_epochs: Annotated[int, integer(1), "step: epochs between two drops of the rate."] = 30
    milestones: Annotated[
        list[int],
        list_of(integer(1), "a list of epochs such as [30,60,80]"),
        "multistep: epochs at which the rate drops.",
    ] = field(default_factory=lambda: [30, 60, 80])
    milestone_steps: Annotated[
        list[int] | None,
        list_of(integer(1), "a list of steps such as [5000,9000]"),
        Example("[5000,9000]"),
        "multistep: optimizer steps, instead of milestones.",
    ] = None
    gamma: Annotated[
        float, number(above=0), "step, multistep: factor of each drop; exponential: factor of each epoch."
    ] = 0.1
    power: Annotated[float, number(above=0), "poly: exponent of the decay."] = 1.0
    cycle_epochs: Annotated[
        int | None, integer(1), Example("10"), "cosine: epochs until the rate restarts at its maximum; null: never."
    ] = None
    decay_fraction: Annotated[
        float, number(above=0, most=1), "wsd: final share of training in which the rate falls."
    ] = 0.2
    peak_fraction: Annotated[
        float, number(above=0, below=1), "one_cycle: share of training in which the rate rises."
    ] = 0.3
    warmup: Annotated[
        str, choice("linear", "constant"), "The factor on lr rises from warmup_start to 1, or stays at warmup_start."
    ] = "linear"
    warmup_epochs: Annotated[Any, AUTO | number(0), "Warm-up epochs; auto: 5 if lr is scaled up, else 0."] = "auto"
    warmup_steps: Annotated[int | None, integer(0), Example("500"), "Warm-up steps, instead of warmup_epochs."] = None
    warmup_start: Annotated[float, number(0, 1), Example("0.01"), "First rate of the warm-up, as a share of lr."] = 0.0
    final_fraction: Annotated[
        float, number(0, 1), "cosine, linear, poly, one_cycle, wsd: last learning rate as a share of lr."
    ] = 0.0

    @property
    def row(self) -> Schedule:
        """Return what is known of the schedule; of one of the user's own, nothing."""
        return SCHEDULES.get(self.name, Schedule()) if self.target is None else Schedule()


_WEIGHTS = kind(
    "balanced, numbers > 0 by class name, or a list of one per class",
    lambda value: (
        value == "balanced"
        or list_of(number(above=0), "").accepts(list(value.values()) if is_mapping(value) else value)
    ),
)


@dataclass
class LossConfig(Replaceable):
    name: Annotated[str, choice(*LOSSES), "Loss function; bce: binary cross entropy of each class."] = "cross_entropy"
    _target_: Annotated[str | None, "Class of your own loss."] = None
    args: Annotated[dict[str, Any], "Arguments of your own loss."] = field(default_factory=dict[str, Any])
    label_smoothing: Annotated[float, number(0, below=1), Example("0.1"), "Label smoothing."] = 0.0
    focal_gamma: Annotated[float, number(0), "focal: exponent that lowers the weight of easy images."] = 2.0
    bce_threshold: Annotated[
        float | None, number(0, below=1), Example("0.2"), "bce: mixed targets above this value become 1, others 0."
    ] = None
    class_weights: Annotated[
        Any,
        _WEIGHTS | NULL,
        Example("balanced"),
        "Weight of each class: balanced (images / (classes × images of the class)), {cat:3} (others: 1), or a list in "
        "the order of the class names; null: all 1.",
    ] = None


@dataclass
class TeacherConfig(Section):
    """Keys of distillation, in which the loss pulls the net's probabilities towards those of a trained net."""

    weights: Annotated[
        str | None, Example("DEFAULT"), "Teacher's weights, typed like model.weights; null: no distillation."
    ] = None
    name: Annotated[str | None, Example("resnet50"), "Teacher's network; null: the checkpoint's, or model.name."] = None
    library: Annotated[str, choice("torchvision", "timm"), "Library of the teacher's network."] = "torchvision"
    share: Annotated[float, number(above=0, most=1), "Share of the teacher in the loss."] = 0.5
    temperature: Annotated[float, number(above=0), "Divisor of both networks' logits before the softmax."] = 1.0


@dataclass
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
