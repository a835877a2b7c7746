"""Get the features of the images that prepare=check looks at, by python -m imagenet_ddp.features."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from imagenet_ddp.cli.other_command import run_other
from imagenet_ddp.cli.overrides import quoted, shell_line
from imagenet_ddp.cli.photograph_lines import RECIPE, train_line
from imagenet_ddp.config.section import leaves, to_plain
from imagenet_ddp.curation.cross_validation import (
    Accuracy,
    fold_of_each,
    learning_curve,
    out_of_fold,
    why_no_estimate,
)
from imagenet_ddp.curation.features import CHECK, OF_NET, Features, find_pass, read_features
from imagenet_ddp.curation.near_copies import COLUMNS, find_near_copies
from imagenet_ddp.curation.near_copies import FILE as NEAR_COPIES
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.groups import groups_of
from imagenet_ddp.data.sources.image_files import FileImages
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.regression import PrincipalAxes
from imagenet_ddp.prepare.options import Plan
from imagenet_ddp.runs.disk_errors import disk_errors_as_run_error
from imagenet_ddp.sections.section import Checked, Copy
from imagenet_ddp.system.files import atomic_write
from imagenet_ddp.system.table_files import table_bytes

FILE = "features.npz"
_OWN = ("prepare=", "prepare.", "out=", "hydra.", "csv_delimiter=")  # options of prepare, not of features


def with_features(checked: Checked, plan: Plan, out: Path) -> Checked:
    """Return what is known with the features of a pass through model.weights, or with the reason why there are none.
    out: existing folder for the file of the pass."""
    if not plan.config.model.weights:
        words = [word for word in plan.argv if not word.startswith(("experiment=", "model.weights="))]
        return replace(checked, command=shell_line("prepare", [*words, RECIPE]))
    file = (out / FILE).absolute()
    argv = [*(word for word in plan.argv if not word.startswith(_OWN)), quoted(f"out={file}")]
    if reason := run_other("features", argv):
        return replace(checked, why_unseen=reason)
    try:
        features = read_features(file)
        _require_same(features, checked.images)
    except ConfigError as error:
        return replace(checked, why_unseen=str(error))
    exact = _exact_copies(features, checked.copies)
    near = find_near_copies(features, checked.images, exact)
    _leave(NEAR_COPIES, table_bytes(COLUMNS, near.rows(features)), features)
    options = leaves(to_plain(plan.config))
    typed = str(Path(file).absolute()) if (file := options.get("data.groups")) else None
    kept = [str((out / NEAR_COPIES).absolute()), *([typed] if typed else [])]  # files of images kept together
    left = {"folder": str(out.absolute()), "net": {key: options.get(key) for key in OF_NET}, "groups": kept}
    _leave(CHECK, json.dumps(left).encode(), features)
    # the groups that were typed, such as patients, stay those of the line to train
    has_groups = groups_of(*checked.images.values()) is not None
    is_split = not has_groups and plan.config.data.share is not None and len(near.leaked(features)) > 0
    groups = quoted(f"data.groups={out / NEAR_COPIES}") if is_split else ""
    checked = replace(checked, features=features, near_copies=near, train=_train_line(plan, groups), groups=groups)
    num_classes = len(features.classes)
    groups = near.group_of_each(len(features), np.concatenate([exact, _given_groups(features, checked.images)]))
    if reason := why_no_estimate(features.targets, num_classes, groups):
        return replace(checked, why_unseen=reason)
    targets, folds = features.targets, fold_of_each(features.targets, groups=groups)
    axes = PrincipalAxes(torch.from_numpy(features.vectors))
    probabilities = out_of_fold(features.vectors, targets, num_classes, folds, axes=axes)
    whole = Accuracy(int((probabilities.argmax(1) == targets).sum()), len(targets))
    _leave(CHECK, json.dumps({**left, **whole.plain}).encode(), features)
    curve = learning_curve(axes, targets, num_classes, folds, whole, groups=groups)
    return replace(checked, probabilities=probabilities, curve=curve)


def _given_groups(features: Features, images: Mapping[str, Images]) -> np.ndarray:
    """Return the pairs of rows of images that data.groups or a table puts together, int64 (P, 2)."""
    pairs, first = list[tuple[int, int]](), dict[int, int]()
    for row in range(len(features)):
        split, index = features.place(row)
        each = images[split]
        if isinstance(each, FileImages) and each.groups is not None:
            pairs.append((row, first.setdefault(int(each.groups[index]), row)))
    return np.array(pairs, np.int64).reshape(-1, 2)


def _leave(name: str, content: bytes, features: Features) -> None:
    """Write a file to the folder of the pass, where report looks for it."""
    if folder := find_pass(features.paths, Path.cwd()):
        with disk_errors_as_run_error(folder):
            atomic_write(folder / name, content)


def _train_line(plan: Plan, groups: str) -> str:
    """Return the line that trains the whole net of the check on its images. groups: as in Checked."""
    others = (*_OWN, "experiment=", *(["data.groups="] if groups else []))
    words = [word for word in plan.argv if not word.startswith(others)]
    return train_line(*words, *([groups] if groups else []))


def _require_same(features: Features, images: Mapping[str, Images]) -> None:
    """Raise ConfigError if the pass has seen other images, because some have changed meanwhile."""
    for row, path in enumerate(features.paths):
        split, index = features.place(row)
        own = images.get(split)
        if own is None or index >= len(own) or own.path(index) != path:
            raise ConfigError(
                f"the images have changed during the check, {path} among them. Hint: run the check again."
            )


def _exact_copies(features: Features, copies: Sequence[Copy]) -> np.ndarray:
    """Return the pairs of rows of images with the same content, int64 (P, 2)."""
    row_of = {features.place(row): row for row in range(len(features))}
    pairs = [(row_of[each.first], row_of[each.second]) for each in copies if {each.first, each.second} <= row_of.keys()]
    return np.array(pairs, np.int64).reshape(-1, 2)
