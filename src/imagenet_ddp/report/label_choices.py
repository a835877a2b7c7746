"""Offer what a person may decide about the labels below the pictures of a report."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.config.section import leaves
from imagenet_ddp.curation.right_labels import decided_labels
from imagenet_ddp.curation.wrong_labels import is_keep
from imagenet_ddp.report.predictions import Predictions
from imagenet_ddp.runs.result_files import read_config
from imagenet_ddp.sections.section import Checked

Decided = Mapping[tuple[str, str, str], str]


def decided_before(found: Predictions, file: Path, check: Mapping[str, Any]) -> tuple[Decided, np.ndarray]:
    """Return (what a person has decided about the labels of the evaluated images, which labels are right by that, bool
    (N,)). file: the list of this report. check: what the last check of the images has left."""
    images = [*zip(found.paths, (found.classes[target] for target in found.target.tolist()), strict=True)]
    root, folder = leaves(read_config(found.folder)).get("data.root"), check.get("folder")
    also = [Path(str(folder))] if folder else []
    decided = decided_labels(file, images, found.started_in, str(root or ""), also)
    kept = {(path, label) for (path, label, _), text in decided.items() if is_keep(text, label)}
    return decided, np.array([each in kept for each in images], bool)


def choices(found: Predictions, file: Path, relabel: str, decided: Decided) -> Checked:
    """Return what the macro `choose` needs of the evaluated images. file: the list. relabel: the line that carries it
    out; "": nothing can."""
    lines = {file.name: relabel} if relabel else {}
    return Checked("", found.labels, {}, relabel=lines, can_remove=True, classes=found.classes,
                   decisions={file.name: decided})  # fmt: skip
