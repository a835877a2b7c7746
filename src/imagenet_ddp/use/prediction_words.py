"""Say what was predicted for an image as people say it, with the doubtful ones apart."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from imagenet_ddp.config.figures import SURE, UNLIKE
from imagenet_ddp.system.text import percent

if TYPE_CHECKING:
    from imagenet_ddp.use.predictor import Result


def sure_classes(result: "Result", *, has_several: bool) -> list[int]:
    """Return the classes that are not in doubt: at most one, unless images have several labels."""
    if result.is_known is False:
        return []
    sure = [index for index, share in result.top if share >= SURE]
    return sure if has_several else sure[:1]


def in_words(result: "Result", labels: Sequence[str], *, has_several: bool) -> str:
    """Return a line about an image. labels: of the classes. has_several: images have several labels."""
    if result.reason:
        return f"no class: {result.reason}"
    first, *others = (f"{labels[index]} {percent(share, 0)}" for index, share in result.top)
    num_sure = len(sure_classes(result, has_several=has_several))
    if has_several:
        return ", ".join([first, *others][:num_sure]) or f"none of the labels; the likeliest is {first}"
    if result.is_known is False:
        return f"{UNLIKE}; the likeliest is {first}"
    return first if num_sure else f"not sure: {' or '.join([first, *others[:1]])}"
