"""Wrong labels of all images: swapped ones are in front, and the list is what the page says and relabel reads."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.made_features import blobs

from imagenet_ddp.curation.cross_validation import fold_of_each, out_of_fold
from imagenet_ddp.curation.decision_lists import read_decisions
from imagenet_ddp.curation.features import Features
from imagenet_ddp.curation.wrong_labels import COLUMNS, FILE, of_probabilities
from imagenet_ddp.data.sources.base import Names
from imagenet_ddp.data.sources.image_files import FileImages
from imagenet_ddp.prepare.check_page import check_page
from imagenet_ddp.sections.section import Checked
from imagenet_ddp.sections.wrong_labels import NUM_PICTURES, wrong_labels


def swapped(seed: int) -> tuple[Features, np.ndarray, np.ndarray]:
    """Return (features, 5 % of whose labels are another class's; the right labels; rows of the wrong ones)."""
    features = blobs(400, num_classes=8, size=24, spread=0.8, seed=seed)
    generator = np.random.default_rng(seed)
    rows = generator.choice(len(features), len(features) // 20, replace=False)
    given = features.targets.copy()
    given[rows] = (given[rows] + generator.integers(1, 8, len(rows))) % 8
    return replace(features, targets=given), features.targets, rows


def probabilities_of(features: Features) -> np.ndarray:
    folds = fold_of_each(features.targets, 5, 0)
    return out_of_fold(features.vectors, features.targets, len(features.classes), folds)


def checked_of(features: Features, probabilities: np.ndarray) -> Checked:
    """Return the same, whose image files do not exist."""
    images = {}
    for name, rows in (("train", np.flatnonzero(~features.is_val)), ("val", np.flatnonzero(features.is_val))):
        names = Names.of(features.paths[row] for row in rows.tolist())
        images[name] = FileImages(Path("photos"), names, features.targets[rows])
    return Checked("photos", features.labels, images, features=features, probabilities=probabilities)


@pytest.mark.parametrize("seed", [0, 1])
def test_swapped_labels_are_in_front(seed: int):
    features, right, rows = swapped(seed)
    found = of_probabilities(features.targets, probabilities_of(features))
    first = found.rows[: 2 * len(rows)]
    assert len({*first.tolist()} & {*rows.tolist()}) >= 0.95 * len(rows)
    assert (features.targets[found.rows] != found.suggested).all() and (np.diff(found.score) >= 0).all()
    is_swapped = np.isin(found.rows, rows)
    assert (found.suggested[is_swapped] == right[found.rows[is_swapped]]).mean() > 0.9


def test_the_finding_counts_what_the_list_holds(tmp_path: Path):
    features, _, _ = swapped(0)
    probabilities = probabilities_of(features)
    found = of_probabilities(features.targets, probabilities)
    checked = checked_of(features, probabilities)
    section = wrong_labels(replace(checked, relabel={FILE: "python relabel"}))
    assert section is not None
    html = check_page(checked, [section], [], [], Path("checked")).decode()
    assert html.count("looks like <b>class") == min(len(found.rows), NUM_PICTURES) and "python relabel" in html
    [finding] = section.findings
    assert f"Of 400 images, {len(found.rows)} look more like another class" in finding.text
    content = section.files[FILE]
    lines = content.decode("utf-8-sig").splitlines()
    assert lines[0] == ",".join((*COLUMNS, "split", "decision")) and len(lines) == 1 + len(found.rows)
    first = found.rows[0]
    names = features.classes[features.targets[first]], features.classes[found.suggested[0]]
    split = "val" if features.is_val[first] else "train"
    assert lines[1] == f"{features.paths[first]},{','.join(names)},{found.score[0]:.6f},{split},"
    (tmp_path / FILE).write_text("\n".join([lines[0], f"{lines[1]}move"]), encoding="utf-8")
    [decision] = read_decisions(tmp_path / FILE)
    assert decision.meaning(names[0], features.classes) == names[1]


def test_labels_that_all_fit():
    features = blobs(60, num_classes=3, spread=0.01)
    checked = checked_of(features, probabilities_of(features))
    section = wrong_labels(checked)
    assert section is not None and not section.title
    (list_of_none,) = section.files.values()  # in place of that of an earlier check
    assert len(list_of_none.splitlines()) == 1
    assert section.findings[0].text == "Each of 60 images looks like the class of its label."
