"""Compare the accuracy of a net on its validation images with what a check, or the run itself, expects on new images
from regressions to all of the images."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from imagenet_ddp.config.figures import START
from imagenet_ddp.config.section import leaves
from imagenet_ddp.config.validators import integer, is_mapping, number
from imagenet_ddp.curation.accuracies import Measured, in_order, of_folds, of_net
from imagenet_ddp.curation.features import CHECK, OF_NET, find_pass
from imagenet_ddp.report.predictions import Predictions
from imagenet_ddp.report.run_folders import Run
from imagenet_ddp.report.what_differs import run_of
from imagenet_ddp.runs.result_files import read_config
from imagenet_ddp.system.files import read_mapping

_COUNT, _SHARE = integer(1, 2**63 - 1), number(0, 1)
_SIZE = "data.image_size"


def last_check(found: Predictions) -> dict[str, Any]:
    """Return what the last check of the evaluated images has left, which may come from a stranger; {} if there is
    none."""
    folder = find_pass(found.paths, found.started_in, beside=CHECK)
    return {} if folder is None else read_mapping(folder / CHECK)


def accuracies_of(found: Predictions, run: Run, check: Mapping[str, Any]) -> tuple[list[Measured], str]:
    """Return (what accuracy to expect on new images, the most reliable first; what their difference means, or ""). Of
    one accuracy, there is no order: ([], ""). check: result of last_check."""
    own = of_net(int(found.is_right.sum()), len(found), is_chosen=run.is_chosen)
    distance, folds = 0 if _is_regression(run) else 1, list[Measured]()
    if counted := _counted(check):
        but = _difference(check.get("net"), {**run.options, **leaves(read_config(found.folder))})
        but += _without_groups(check, run.options.get("data.groups"), found.started_in)
        by = f"a check, on all {counted[1]:,} images"
        folds.append(of_folds(*counted, by, distance=2 if but else distance, but=but))
    if counted := _counted(run.summary.get("expected")):
        folds.append(of_folds(*counted, f"this training, on its {counted[1]:,} training images", distance=distance))
    if not folds:
        return [], ""
    return in_order([own, *folds]), _meaning(own, in_order(folds)[0])


def folds_of_both(nets: Sequence[Predictions]) -> list[tuple[int, int]]:
    """Return (right images, all images) of each of two nets, as the folds of its own training estimate it; [] unless
    both are the regression that was estimated, at the size of their images, and from as many images."""
    found = list[tuple[int, int]]()
    for net in nets:
        run, size = run_of(net), leaves(read_config(net.folder)).get(_SIZE)
        counted = _counted(run.summary.get("expected")) if run is not None and _is_regression(run) else None
        if run is not None and counted is not None and run.options.get(_SIZE) == size:
            found.append(counted)
    return found if len(found) == len(nets) and len({number for _, number in found}) == 1 else []


def _is_regression(run: Run) -> bool:
    return run.best_epoch == 0 and run.summary.get("start", START) != START


def _difference(net: Any, options: Mapping[str, Any]) -> str:
    """Return how the net of a check differs from that of a run; "" if it does not."""
    net = net if is_mapping(net) else {}
    if any(net.get(key) != options.get(key) for key in OF_NET if key != _SIZE):
        return ", of another net"
    if net.get(_SIZE) != options.get(_SIZE):
        return f", at {net.get(_SIZE)} pixels, whereas this net was evaluated at {options.get(_SIZE)}"
    return ""


def _without_groups(check: Mapping[str, Any], file: Any, started_in: Path) -> str:
    """Return that a check has split groups which a run kept together, "" if it has not. file: data.groups of the run.
    started_in: the folder of its path."""
    kept = check.get("groups")
    if not file or (isinstance(kept, list) and str(started_in / str(file)) in kept):
        return ""
    return ", with images of one group (data.groups) on both sides"


def _meaning(own: Measured, folds: Measured) -> str:
    """Return what it means that two intervals have nothing in common."""
    if folds.distance == 2 or (own.interval[1] >= folds.interval[0] and own.interval[0] <= folds.interval[1]):
        return ""
    is_lower = own.interval[1] < folds.interval[0]
    if folds.distance == 0:
        return f"The validation images are {'harder' if is_lower else 'easier'} than the others."
    if is_lower:
        return "This net is right less often than before its training: train it longer, or by experiment=own_photos."
    return "This net is right more often than before its training."


def _counted(plain: Any) -> tuple[int, int] | None:
    """Return the right and all images of an accuracy that a file says; None if it says none."""
    if not is_mapping(plain) or not (_SHARE.accepts(plain.get("top1")) and _COUNT.accepts(plain.get("num_images"))):
        return None
    return round(plain["top1"] * plain["num_images"]), plain["num_images"]
