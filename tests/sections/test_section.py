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


@pytest.mark.parametrize(("case", "proposed"), [
    ("two sizes", ["remove", "keep"]),
    ("decided otherwise", ["", ""]),
    ("two classes", ["", ""]),
    ("a split that is not by chance", ["", ""]),
    ("a table", None),
    ("an exact copy, too", ["", "", ""]),
])  # fmt: skip
def test_the_better_of_two_near_copies_is_proposed_to_be_kept(case: str, proposed: list[str] | None):
    number = 3 if "exact" in case else 2
    targets = np.arange(number) if "classes" in case else np.zeros(number, int)
    is_val = np.arange(number) > 0 if "split" in case else np.zeros(number, bool)
    paths = [f"{row}.jpg" for row in range(number)]
    features = Features(np.zeros((number, 2), np.float32), targets, is_val, np.where(is_val, 0, np.arange(number)),
                        np.zeros(number, np.uint64), paths, ["a", "b"], ["a", "b"], [], "", "")  # fmt: skip
    rows = np.zeros(number, ROW)
    rows["width"], rows["height"] = np.arange(number) * 74 + 150, 200
    images = {
        "train": FileImages(Path(), Names.of(paths), targets),
        "val": FileImages(Path(), Names.of(paths[1:]), targets[1:]),
    }
    pairs = [Pair(0, row, 1.0, 1.0, False) for row in range(1, number)]
    section = near_copies(Checked(
        "", ["a", "b"], images, quality={"train": rows, "val": rows[1:]}, features=features,
        copies=[Copy("train, one class", ("train", 1), ("train", 2))] if number == 3 else [],
        near_copies=NearCopies([Group([*range(number)], pairs, bool(is_val.any()), "classes" in case)]),
        relabel={} if case == "a table" else {NEAR_COPIES: "line"}, can_remove=True,
        decisions={NEAR_COPIES: {("0.jpg", "a", ""): "keep"} if "decided" in case else {}},
    ))  # fmt: skip
    assert section is not None
    shown = {item["path"]: item["choice"] for item in section.context["groups"][0]}
    if proposed is None:
        assert {*shown.values()} == {None}
    else:
        assert [shown[path]["chosen"] * shown[path]["is_proposed"] for path in paths] == proposed
    words = [line.split(",")[-1] for line in section.files[NEAR_COPIES].decode().splitlines()[1:]]
    assert words == (["keep", ""] if "decided" in case else proposed or ["", ""])
