"""What the sections show of images, whichever they are."""

import csv
from pathlib import Path

import numpy as np
import pytest

from imagenet_ddp.curation.features import Features
from imagenet_ddp.curation.near_copies import FILE as NEAR_COPIES
from imagenet_ddp.curation.near_copies import Group, NearCopies, Pair
from imagenet_ddp.curation.quality import ROW
from imagenet_ddp.data.sources.base import Names
from imagenet_ddp.data.sources.image_files import FileImages
from imagenet_ddp.sections.exact_copies import FILE as DUPLICATES
from imagenet_ddp.sections.exact_copies import exact_copies
from imagenet_ddp.sections.near_copies import near_copies
from imagenet_ddp.sections.quality import quality
from imagenet_ddp.sections.section import Checked, Copy


@pytest.mark.parametrize("number", [2, 7, 12, 13, 50])
@pytest.mark.parametrize("make", [near_copies, exact_copies])
def test_all_that_is_shown_of_a_group_may_be_removed_only_if_others_stay(make, number: int):
    """A row of decisions.csv names its group only if all of the group have one, else prepare=relabel would not know
    of the others, and would refuse."""
    paths, zeros = [f"{row}.jpg" for row in range(number)], np.zeros(number, int)
    features = Features(np.zeros((number, 2), np.float32), zeros, zeros > 0, np.arange(number),
                        zeros.astype(np.uint64), paths, ["a"], ["a"], [], "", "")  # fmt: skip
    pairs = [Pair(0, row, 1.0, 1.0, False) for row in range(1, number)]
    section = make(Checked(
        "", ["a"], {"train": FileImages(Path(), Names.of(paths), zeros)},
        copies=[Copy("train, one class", ("train", 0), ("train", row)) for row in range(1, number)], features=features,
        near_copies=NearCopies([Group([*range(number)], pairs, False, False)]),
        relabel={NEAR_COPIES: "", DUPLICATES: ""}, can_remove=True,
    ))  # fmt: skip
    rows = [next(csv.reader([item["choice"]["row"]])) for group in section.context["groups"] for item in group]
    assert len({path for path, *_ in rows}) >= min(number, 12)
    is_whole = {path for path, *_ in rows} == {*paths}
    assert {group != "" for _, _, group, _ in rows} == {is_whole}


def test_an_image_that_is_poor_in_several_ways_is_shown_once():
    rows = np.zeros(8, ROW)
    rows["width"], rows["height"], rows["information_bits"] = 400, 300, 20
    rows["brightest"], rows["contrast"] = 0.9, 0.8
    rows["brightest"][:2], rows["contrast"][1:3] = 0.1, 0.1
    images = FileImages(Path(), Names.of([f"{row}.jpg" for row in range(8)]), np.zeros(8, int))
    section = quality(Checked("", ["a"], {"train": images}, quality={"train": rows}))
    assert section is not None
    dark, low = section.context["kinds"]
    assert [(item["path"], item["also"]) for item in dark["worst"]] == [("0.jpg", ""), ("1.jpg", "low in contrast")]
    assert [item["path"] for item in low["worst"]] == ["2.jpg"]
    assert (dark["number"], dark["num_above"], low["number"], low["num_above"]) == (2, 0, 2, 1)
