"""prepare=check with features: near-copies in the list, on the page, and in the line that keeps them on one side."""

import csv
import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.made_photographs import photograph
from PIL import Image

from imagenet_ddp.cli import parse
from imagenet_ddp.curation.features import Features, write_features
from imagenet_ddp.data.sources.base import Source
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.prepare import check
from imagenet_ddp.prepare import options as prepare_options
from imagenet_ddp.system.text import percent

PASS = Path("runs/features/photos_0")


def sides(source: Source) -> dict[str, set[bool]]:
    """Return for each photograph whether it is in train (False), in val (True), or in both."""
    found: dict[str, set[bool]] = {}
    for is_val, images in enumerate((source.train, source.val)):
        assert images is not None
        for index in range(len(images)):
            found.setdefault(Path(images.path(index)).stem.rstrip("x"), set()).add(bool(is_val))
    return found


def fake_pass(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Write features by which the copies of an image, and all images of a class, are alike."""
    plan = prepare_options.read(["prepare=check", *command[3:-1]], os.environ)
    source = open_source(plan.config.data, plan.config.seed, found=plan.scan)
    assert source.train is not None and source.val is not None
    splits = (source.train, source.val)
    paths = [each.path(number) for each in splits for number in range(len(each))]
    targets = np.concatenate([each.targets for each in splits])
    own = np.eye(32)[[int(Path(path).stem.rstrip("x")) for path in paths]]
    vectors = np.concatenate([np.eye(2)[targets], 0.5 * own], 1).astype(np.float32)
    index = np.concatenate([np.arange(len(each)) for each in splits])
    is_val = np.arange(len(paths)) >= len(source.train)
    stamps = index.astype(np.uint64)
    found = Features(vectors, targets, is_val, index, stamps, paths, source.classes, source.labels, [], "a net", "0")
    for file in (Path(command[-1].removeprefix("out=")), PASS / "features.npz"):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_features(file, found)
    return subprocess.CompletedProcess(command, 0)


def test_near_copies_across_the_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The line that is printed, typed as it is, keeps each photograph on one side; exact copies are named once."""
    for number in range(10):
        path = tmp_path / "my photos" / ("älg", "bear")[number // 5] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = photograph(number)
        image.save(path)
        if number % 5 < 3:
            image.transpose(Image.Transpose.FLIP_LEFT_RIGHT).resize((200, 150)).save(path.with_stem(f"{number:02}x"))
        elif number % 5 < 4:
            path.with_stem(f"{number:02}x").write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", fake_pass)
    words = ["data=imagefolder", "data.root=my photos", "model.weights=DEFAULT"]
    plan = prepare_options.read(["prepare=check", "out=checked", "prepare.num_workers=1", *words], os.environ)
    assert check.run(plan) == 1
    printed = capsys.readouterr().out
    before = open_source(plan.config.data, plan.config.seed)
    leaked = sum(len(side) > 1 for side in sides(before).values())
    is_or_are = "is" if leaked == 1 else "are"
    said = f" 1. 6 photographs are there in more than one form: {leaked} {is_or_are} in training and in validation, so"
    assert leaked and said in printed
    with Path("checked/near_copies.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12 and {Path(row["path"]).stem[:2] for row in rows} == {
        f"{n:02}" for n in range(10) if n % 5 < 3
    }
    assert {(Path(row["path"]).stem.endswith("x"), row["decision"]) for row in rows} == {
        (False, "keep"),
        (True, "remove"),
    }
    typed = shlex.split(printed.partition("each group of near-copies together: ")[2].splitlines()[0].strip("`"))[3:]
    request = parse.command_line("train", typed, {})
    assert request.scan is not None and request.scan.open is not None
    assert all(len(side) == 1 for side in sides(request.scan.open()).values())
    page = Path("checked/check.html").read_text(encoding="utf-8")
    for_report = json.loads((PASS / "check.json").read_text())
    assert for_report["folder"] == str(tmp_path / "checked") and for_report["net"]["model.weights"] == "DEFAULT"
    assert f"recognised: {percent(for_report['top1'], 1)} of {for_report['num_images']} images, with" in page
    with (PASS / "near_copies.csv").open(newline="", encoding="utf-8-sig") as file:
        assert len(list(csv.DictReader(file))) == 12
    assert page.count('<ul class="gallery small">') == 6 + 2 and 'id="near-copies"' in page
    section = page.partition('id="near-copies"')[2].partition("</section>")[0]
    proposed = re.findall(r'<li title="[^"]*?(x?)\.jpg">.*?data-proposed>.*?" selected>(\w+)<', section, re.DOTALL)
    assert proposed == [("", "keep"), ("x", "remove")] * 6, "the better one stands first"
    assert (section.count(" · 240 × 180<br>"), section.count(" · 200 × 150<br>")) == (6, 6), "which is the better one"
    assert section.count("of what both show is the same") == 6, "one of them may be cropped"
