"""Declare the figures that trainings measure, with their words, for the log and for reports. Does not import torch."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from imagenet_ddp.system.text import format_loss, percent


class Figure(NamedTuple):
    """A measure as people read it. name: in train/NAME and val/NAME. title, heading: in the log, and of a diagram.
    form: (value, digits) -> text. digits: their number in a line of the log, and in the progress bar. mode: max or min,
    whichever is better. is_share: whether it is a fraction, which is shown in percent. is_mean: whether it is a mean
    over images, and so measured in training, too."""

    name: str
    title: str
    heading: str
    form: Callable[[float, int], str] = percent
    digits: tuple[int, int] = (2, 1)
    mode: str = "max"
    is_share: bool = True
    is_mean: bool = True

    def text(self, value: float, *, short: bool = False) -> str:
        return self.form(value, self.digits[short])


LOSS = Figure("loss", "loss", "Loss", format_loss, (4, 3), "min", is_share=False)
TOP1 = Figure("top1", "top-1", "Top-1 accuracy")
TOP5 = Figure("top5", "top-5", "Top-5 accuracy")
MAP = Figure("map", "mAP", "Mean average precision", is_mean=False)
F1 = Figure("f1", "F1", "F1 score")
EXACT = Figure("exact", "exact", "Images with all labels right")
NO_TEMPERATURE = "too few mistakes, or too few right predictions, to fit a temperature"
UNLIKE = "unlike the training images"  # what people are told of an image that is not known by known.npz
UNSURE = "not sure between classes"  # of one that is known, of which no class has SURE
SURE = 0.5  # least probability of a class that people are told without a second one
START = "before the first step"  # what the weights of epoch 0 are, unless something has made their last layer
# value of data.labels -> the loss, the score, which selects the best weights, and further figures
FIGURES_OF = {"one": (LOSS, TOP1, TOP5), "several": (LOSS, MAP, F1, EXACT)}
FIGURES = {figure.name: figure for figures in FIGURES_OF.values() for figure in figures}


def figure_of(metric: str) -> Figure:
    """Return the figure of a metric such as val/top1 or train/loss_epoch. One that no task of this package measures is
    a plain number."""
    name = metric.rpartition("/")[2].removesuffix("_epoch")
    return FIGURES.get(name) or Figure(name, name, name, _number, (4, 3), is_share=False)


def best_metric(names: Iterable[str]) -> str:
    """Return the metric of which a run keeps the best value, such as val/top1, from the names of its results."""
    bests = (name.removeprefix("best/") for name in names if name.startswith("best/"))
    return next(bests, f"val/{TOP1.name}")


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}g}"


def as_words(figures: Iterable[Figure], values: Mapping[str, float], *, short: bool = False) -> str:
    """Format the values that are there, as in "loss 2.3026 top-1 12.00 % top-5 50.00 %"."""
    return " ".join(
        f"{each.title} {each.text(values[each.name], short=short)}" for each in figures if each.name in values
    )
