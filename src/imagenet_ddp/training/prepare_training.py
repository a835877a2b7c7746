"""Prepare what must be ready before the Trainer is made: pretrained weights, teacher, frozen layers, weight averaging
and the budget of time."""

import math
import time
from collections.abc import Callable

import lightning.pytorch as L
from torch import nn

from imagenet_ddp.callbacks.fine_tuning import FrozenLayers, has_statistics
from imagenet_ddp.callbacks.regression_head import RegressionHead
from imagenet_ddp.callbacks.time_budget import TimeBudget
from imagenet_ddp.callbacks.weight_average import WeightAverage
from imagenet_ddp.config.figures import START
from imagenet_ddp.config.schema.run import RunConfig
from imagenet_ddp.curation.features import FILE, FOLDER, pass_name
from imagenet_ddp.data.transforms import last_train_size
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch.plan import Plan
from imagenet_ddp.launch.trained_model import find_other
from imagenet_ddp.mistakes import Mistake, setting
from imagenet_ddp.models.factory import require_batch
from imagenet_ddp.models.head import head_names, is_in_head, require_features
from imagenet_ddp.models.lightning_module import ImageClassifier
from imagenet_ddp.models.weights.load import load_weights_into
from imagenet_ddp.models.weights.teacher import make_teacher
from imagenet_ddp.strategies import batch_split

MOST_ON_FEATURES = 0.9  # share of budget_min by which the last layer has its start and its validation


def prepare_training(
    plan: Plan,
    module: ImageClassifier,
    classes: list[str],
    *,
    resumed: bool,
    begin_s: float | None,
    say: Callable[[str], None],
    note: Callable[[str], None],
) -> tuple[list[L.Callback], str]:
    """Load pretrained weights (unless the training is resumed) and a teacher, and freeze layers that are never trained.
    Return (the callbacks for model.head, budget_min, model.freeze, model.batch_norm and averaging.*; what the weights
    of the start are). begin_s: the time.monotonic() from which budget_min counts; None means now. say: writes a line to
    the log; note: to its file only. Raises ConfigError if model.freeze or model.head is set for a net without a
    suitable last layer."""
    config, model = plan.config, plan.config.model
    assert isinstance(config, RunConfig)
    heads = head_names(module.net, len(classes))
    begin_s = time.monotonic() if begin_s is None else begin_s
    callbacks: list[L.Callback] = []
    start = START
    if model.weights and not resumed:
        weights = find_other(model)
        refitted = "model.head=regression fits it to all classes" if model.head == "regression" else ""
        sentence, head_fits = load_weights_into(module.net, weights, heads, classes, refitted)
        for line in (sentence, *weights.facts.lines(config.data)):
            say(line)
        if model.head == "regression" and (not head_fits or config.trainer.max_epochs == 0):  # of which it is all
            callbacks.append(_regression_head(config, plan.precision.value, module, heads, begin_s, say))
            start = "regression on frozen features"
        elif head_fits:
            start = f"the weights of {weights.origin}"
    if config.budget_min is not None:
        averaged_from = None if config.averaging.name == "none" else config.averaging.first_epoch
        again = config.ends_with_features
        callbacks.append(TimeBudget(config.budget_min, begin_s, say, averaged_from, reads_again=again))
    module.teacher, sentence = make_teacher(
        config.teacher, model.name, config.data, classes, plan.mean.value, plan.std.value
    )
    if sentence:
        say(sentence)
    if model.freeze:
        say(_freeze(module.net, heads, len(classes), model.unfreeze_epoch))
    keeps_statistics = model.batch_norm == "frozen" and any(map(has_statistics, module.net.modules()))
    if keeps_statistics:
        note("Batch norm uses and keeps its stored statistics throughout.")
    _require_batch(plan, module)
    if model.freeze or keeps_statistics:
        frozen = heads if model.freeze else None
        callbacks.append(FrozenLayers(frozen, model.unfreeze_epoch, batch_norm=keeps_statistics))
    averaging = config.averaging
    if averaging.name != "none":
        decay = averaging.decay if averaging.name == "ema" else None
        callbacks.append(WeightAverage(decay, averaging.every_n_steps, plan.averaging_start_epoch, averaging.warmup))
    return callbacks, start


def _regression_head(
    config: RunConfig,
    precision: str,
    module: ImageClassifier,
    heads: tuple[str, ...],
    begin_s: float,
    say: Callable[[str], None],
) -> RegressionHead:
    """Return the callback of model.head=regression. Raises ConfigError for a net without a suitable last layer."""
    require_features(module.net, config.model.name, heads, config.data.image_size)
    minutes = math.inf if config.budget_min is None else config.budget_min
    return RegressionHead(
        heads[0],
        config.seed,
        say,
        until_s=begin_s + 60 * MOST_ON_FEATURES * minutes,
        stored=FOLDER / pass_name(config) / FILE,
        precision=precision,
        estimates=config.trainer.max_epochs == 0,
    )


def _freeze(net: nn.Module, heads: tuple[str, ...], num_classes: int, unfreeze_epoch: int | None) -> str:
    """Freeze the layers that are never trained. Return a sentence about it. Raises ConfigError if there is no last
    layer."""
    if not heads:
        what = f"model.freeze=backbone requires a last layer with {num_classes} outputs, but this net has none"
        raise ConfigError(Mistake(what, ("model.freeze",), (setting("model.freeze=null"),)))
    if unfreeze_epoch is None:  # else the optimizer and DistributedDataParallel need all parameters
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(is_in_head(name, heads))
    until = f"until epoch {unfreeze_epoch + 1}" if unfreeze_epoch else "throughout"
    return f"All layers except {' and '.join(heads)} are frozen {until}."


def _require_batch(plan: Plan, module: ImageClassifier) -> None:
    """Raise ConfigError if a device would get too few images for batch norm from a full batch."""
    config, strategy, num_devices = plan.config, plan.config.strategy, plan.num_own_devices
    if config.trainer.sync_batchnorm and plan.place.world_size > 1:
        return  # its values come from all ranks

    def fewest(batch_size: int) -> int:  # the first device may get fewer, for balanced_dp
        return min(batch_split.first_device_images(strategy, batch_size, num_devices) or batch_size, batch_size)

    data = config.data
    size = data.progressive_start or last_train_size(data)
    smallest = next((each for each in (2, 3, 4) if fewest(each) > 1), 2)
    require_batch(config.model, module.net, fewest(data.batch_size), size, smallest)
