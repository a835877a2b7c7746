"""Declare the optimizers: the keys of optim.*, and how torch's optimizer is made of them. Imports torch and timm only
when one is made. A further one is a class here, named in OPTIMIZERS, and a file in conf/optim/ with values to start
from."""

from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from imagenet_ddp.config.section import OneOf, make, one_of
from imagenet_ddp.config.validators import Example, choice, integer, list_of, number
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.packages import missing_package

if TYPE_CHECKING:
    from torch.optim import Optimizer


class OptimConfig(OneOf):
    """The keys that each optimizer has.

    is_fused: whether torch has one kernel for its step. needs_each_momentum: whether that kernel fails if only some
    weights have a momentum yet. package: what it needs besides torch. scales_by_weights: whether it scales each step by
    the ratio of weights to gradients.
    """

    name: Annotated[
        str, "sgd, adamw, adam, nadam, rmsprop, adafactor; lamb, lars, lion, muon and others of timm.optim."
    ] = "sgd"
    _target_: Annotated[str | None, Example("torch.optim.Adam"), "Class of your own optimizer."] = None
    args: Annotated[dict[str, Any], "Further keyword arguments of the optimizer."] = field(
        default_factory=dict[str, Any]
    )
    lr: Annotated[float, number(above=0), "Learning rate for a batch of optim.reference_batch."] = 0.1
    lr_head: Annotated[
        float | None, number(above=0), Example("0.1"), "Learning rate of the last layer, scaled like lr; null: lr."
    ] = None
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
        "linear; none for your own.",
    ] = "auto"
    no_decay_on: Annotated[
        list[str] | None,
        list_of(choice("norm", "bias", "embedding"), "a list of norm, bias and embedding", least=0),
        Example("[norm,bias]"),
        "Parameters without weight decay; null: [norm,bias] for lars and lamb (also without trust ratio), else none.",
    ] = None

    is_fused: ClassVar[bool] = False
    needs_each_momentum: ClassVar[bool] = False
    package: ClassVar[str] = ""
    scales_by_weights: ClassVar[bool] = False

    def make(self, groups: list[dict[str, Any]], lr: float, **more: Any) -> "Optimizer":
        """Return the optimizer. groups: of parameters. lr: the scaled learning rate. Raises TypeError or ValueError if
        the class does not accept the arguments."""
        raise NotImplementedError

    def settings(self, *, decays: bool, is_vector: bool) -> dict[str, Any]:
        """Return the settings of a parameter that differ from those of the optimizer. is_vector: whether it is a
        vector, an embedding or of the last layer."""
        return {} if decays else {"weight_decay": 0.0}

    def rate(self, settings: dict[str, Any]) -> float:
        """Return the learning rate of a parameter with these settings, before scaling."""
        return self.lr


class OwnOptimizer(OptimConfig):
    def make(self, groups: list[dict[str, Any]], lr: float, **more: Any) -> "Optimizer":
        from torch.optim import Optimizer

        return make("optim._target_", str(self.target), self.args, Optimizer, params=groups, lr=lr)


class _Named(OptimConfig):
    """One of torch.optim, under the name of its class, or of timm.optim, under its own name."""

    weight_decay: Annotated[float, number(0), Example("1e-4"), "Weight decay."] = 1e-4

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the class besides lr, which optim.args may replace."""
        return {"weight_decay": self.weight_decay}

    def make(self, groups: list[dict[str, Any]], lr: float, **more: Any) -> "Optimizer":
        arguments: dict[str, Any] = {**self.arguments(), "lr": lr, **more, **self.args}
        if not self.package:
            import torch

            return getattr(torch.optim, type(self).__name__)(groups, **arguments)
        if missing := missing_package(f"optim.name={self.name}", self.package):
            raise ConfigError(missing)
        from timm.optim import create_optimizer_v2  # pyright: ignore[reportPrivateImportUsage]

        return create_optimizer_v2(groups, opt=self.name, **arguments)


class _Momentum(_Named):
    momentum: Annotated[float, number(0, below=1), "factor of the previous update in each update."] = 0.9

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | {"momentum": self.momentum}


class _Betas(_Named):
    betas: Annotated[
        list[float] | None,
        list_of(number(0, below=1), "two numbers ≥ 0 and < 1", 2),
        Example("[0.9,0.999]"),
        "decay of the two running means; null: the optimizer's default.",
    ] = None

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | ({"betas": tuple(self.betas)} if self.betas else {})


class _Eps(_Named):
    eps: Annotated[
        float | None,
        number(above=0),
        Example("1.0e-8"),
        "term added to the denominator; null: the optimizer's default.",
    ] = None

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | ({} if self.eps is None else {"eps": self.eps})


class _ByWeights(_Named):
    package = "timm"
    scales_by_weights = True

    def settings(self, *, decays: bool, is_vector: bool) -> dict[str, Any]:
        # the trust ratio, which timm ties to weight decay
        own = {} if "always_adapt" in self.args else {"always_adapt": decays}
        return super().settings(decays=decays, is_vector=is_vector) | own


class SGD(_Momentum):
    name: str = "sgd"
    nesterov: Annotated[bool, "Nesterov momentum."] = False
    is_fused = True
    needs_each_momentum = True

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | {"nesterov": self.nesterov}


class AdamW(_Betas, _Eps):
    name: str = "adamw"
    is_fused = True


class Adam(_Betas, _Eps):
    name: str = "adam"
    is_fused = True


class NAdam(_Betas, _Eps):
    name: str = "nadam"

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | {"decoupled_weight_decay": True}  # from the gradient, as in AdamW


class RMSprop(_Momentum, _Eps):
    name: str = "rmsprop"


class Adafactor(_Named):
    name: str = "adafactor"


class AdaBelief(_Betas, _Eps):
    name: str = "adabelief"
    package = "timm"


class Adan(_Betas, _Eps):
    name: str = "adan"
    package = "timm"


class Adopt(_Betas, _Eps):
    name: str = "adopt"
    package = "timm"


class Lamb(_ByWeights, _Betas, _Eps):
    name: str = "lamb"


class Lars(_ByWeights, _Momentum):
    name: str = "lars"


class Lion(_Betas):
    name: str = "lion"
    package = "timm"


class Madgrad(_Eps):
    name: str = "madgrad"
    package = "timm"


class Mars(_Betas, _Eps):
    name: str = "mars"
    package = "timm"


class Muon(_Momentum, _Betas, _Eps):
    """Muon for the matrices of hidden layers, AdamW for the rest (Jordan 2024, kellerjordan.github.io/posts/muon)."""

    name: str = "muon"
    lr_adamw: Annotated[
        float, number(above=0), "learning rate of the last layer, embeddings and vectors, scaled like lr."
    ] = 1e-3
    package = "timm"

    def arguments(self) -> dict[str, Any]:
        # for weights that timm does not give to Muon, such as those of depthwise convolutions
        return super().arguments() | {"fallback_lr_scale": self.lr_adamw / self.lr}

    def settings(self, *, decays: bool, is_vector: bool) -> dict[str, Any]:
        own = {"use_fallback": True, "fallback_lr_scale": 1.0} if is_vector else {}
        return super().settings(decays=decays, is_vector=is_vector) | own

    def rate(self, settings: dict[str, Any]) -> float:
        return self.lr_adamw if settings.get("use_fallback") else self.lr


class NAdamW(_Betas, _Eps):
    name: str = "nadamw"
    package = "timm"


# Those of timm that need more than gradients (a closure, the Hessian) are left out.
OPTIMIZERS = one_of(
    OptimConfig, OwnOptimizer, SGD, AdamW, Adam, NAdam, RMSprop, Adafactor, AdaBelief, Adan, Adopt, Lamb, Lars, Lion,
    Madgrad, Mars, Muon, NAdamW,
)  # fmt: skip
