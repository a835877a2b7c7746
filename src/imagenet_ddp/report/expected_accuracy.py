"""Find the accuracy that a check, or the run itself, expects on new images from regressions to all of the images, and
say how it belongs with that of the net on the validation images."""

from typing import Any

from imagenet_ddp.config.validators import integer, is_mapping, number
from imagenet_ddp.curation.cross_validation import FILE, Accuracy
from imagenet_ddp.curation.features import find_pass
from imagenet_ddp.curation.interval import interval, interval_words
from imagenet_ddp.report.predictions import Predictions
from imagenet_ddp.report.run_folders import Run
from imagenet_ddp.system.files import read_mapping

_COUNT, _SHARE = integer(1, 2**63 - 1), number(0, 1)


def beside_check(found: Predictions, run: Run) -> tuple[str, bool]:
    """Return (a sentence about the expected accuracy, "" if it is not known; whether a check has found it)."""
    expected, is_of_check = _accuracy(run.summary.get("expected")), False
    if (folder := find_pass(found.paths, found.started_in, beside=FILE)) and (
        listed := _accuracy(read_mapping(folder / FILE))
    ):
        expected, is_of_check = listed, True
    if expected is None:
        return "", False
    right, total = (int(found.is_right.sum()), expected.num_right), (len(found), expected.num_images)
    (low, high), (least, most) = (interval(*each) for each in zip(right, total, strict=True))
    if low > most:
        how = "This net is right more often"
    elif high < least:
        how = "This net is right less often: train it longer, or by experiment=own_photos"
    else:
        wider = f": the interval of this net is wider, because it is that of {total[0]:,} images"
        how = f"The two agree{wider if high - low > most - least else ''}"
    said = (
        f"{'A check' if is_of_check else 'The training itself'} expects {interval_words(right[1], total[1])}, from all "
        f"{total[1]:,} images, each predicted by a "
        f"regression that had not learned it. {how}."
    )
    return said, is_of_check


def _accuracy(plain: Any) -> Accuracy | None:
    """Return the accuracy that a file says, which may come from a stranger; None if it says none."""
    if not is_mapping(plain) or not (_SHARE.accepts(plain.get("top1")) and _COUNT.accepts(plain.get("num_images"))):
        return None
    return Accuracy(round(plain["top1"] * plain["num_images"]), plain["num_images"])
