"""Two nets are compared on images that both were evaluated on and neither was trained on."""

import json
import re
from html import unescape
from itertools import product
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import SMALL, Run, write_images
from helpers.fake_predictions import write_evaluation

from imagenet_ddp.curation.interval import images_to_decide, interval, paired_interval
from imagenet_ddp.report.predictions import net_options, read
from imagenet_ddp.report.verdict import Verdict

CLASSES = ["cat", "dog"]


def probabilities(predicted: list[int]) -> np.ndarray:
    return np.where(np.eye(2)[predicted] > 0, 0.9, 0.1)


@pytest.mark.slow(10)
def test_next_week_with_a_new_class(run: Run, tmp_path: Path):
    write_images(tmp_path / "photos", {"cat": 20, "dog": 15})
    write_images(tmp_path / "more", {"cat": 10, "dog": 10, "zebra": 10}, seed=1)
    start = ("train", *SMALL, "data.val_fraction=0.4")
    run(*start, "data.root=photos", "hydra.run.dir=old", code=0)
    trained = run(*start, "data.root=more", "model.weights=old", "hydra.run.dir=new", code=0)
    assert "classifier.1 keeps the rows of cat, dog, and is new for zebra" in trained.stdout + trained.stderr
    for name in ("old", "new"):
        run(
            "evaluate", f"checkpoint={name}", "data.root=photos", "data.val_fraction=null",
            f"hydra.run.dir={name}_test", code=0,
        )  # fmt: skip
    done = run("report", "old_test", "new_test", "out=both", code=0)
    num_held_out = json.loads((tmp_path / "old/summary.json").read_text())["num_val_images"]
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"On {num_held_out} images that both were evaluated on and neither was trained on: old ")
    assert f"(left out: {35 - num_held_out} images that one of them was trained on)" in lines[0]
    assert re.match(r"Difference [+-]\d+\.\d points \([+-]\d+\.\d to [+-]\d+\.\d\): ", lines[1])
    assert lines[2].startswith("Of the classes that both know: ") and lines[3] == "Only the new net knows zebra."
    assert lines[-2:] == ["", "Written to both: comparison.html"]
    html = (tmp_path / "both/comparison.html").read_text()
    num_changed = sum(map(int, re.findall(r"Newly (?:right|wrong|right: \d+, newly wrong): (\d+)", lines[1])))
    assert html.count("data:image/jpeg") >= min(num_changed, 1) and "No images are shown" not in html


@pytest.mark.slow(10)
def test_a_training_that_changed_nothing_is_named_where_it_ends_and_where_it_is_compared(run: Run, tmp_path: Path):
    write_images(tmp_path / "photos", {"cat": 20, "dog": 15})
    start = ("train", *SMALL, "data.val_fraction=0.4", "data.root=photos")
    run(*start, "hydra.run.dir=old", code=0)
    idle = ("model.weights=old", "model.batch_norm=frozen", "optim.lr=1e-30", "trainer.num_sanity_val_steps=-1")
    words = f"(the weights of {Path('old/checkpoints/best.ckpt')}"
    trained = run(*start, *idle, "hydra.run.dir=new", code=0).stdout
    assert f"so the best net is that of epoch 0 {words}" in " ".join(trained.split()), trained
    assert f"the start: {words[1:]}" in run("report", "new", code=0).stdout
    said = run("report", "old", code=0).stdout
    for command, words in re.findall(r"`python -m imagenet_ddp\.(\w+) ([^`]*)`", said):
        if command in ("features", "predict", "export"):
            done = run(command, *words.replace("FOLDER", "photos/cat").split())
            assert done.returncode == 0 or "extra" in done.stderr, (words, done.stderr)
    assert all((tmp_path / name).is_file() for name in ("old/known.npz", "classes.html", "next.html"))
    assert ": both nets have the same weights. " in run("report", "old", "new", "out=both", code=0).stdout


def test_images_are_recognised_by_their_content(run: Run, tmp_path: Path):
    write_images(tmp_path / "a", {"cat": 6, "dog": 2})
    paths = [f"a/cat/{number:03}.jpg" for number in range(6)] + ["a/dog/000.jpg", "a/dog/001.jpg"]
    target = np.array([0] * 6 + [1] * 2)
    old = probabilities([0, 0, 0, 1, 1, 1, 1, 1])
    write_evaluation(tmp_path / "one", old, target, CLASSES, paths=paths)
    (tmp_path / "b").mkdir()
    renamed = [f"b/{number}.jpg" for number in range(8)]
    for before, after in zip(paths, reversed(renamed), strict=True):
        (tmp_path / after).write_bytes((tmp_path / before).read_bytes())
    new = [1, 0, 0, 0, 0, 1, 1, 0]  # in the order of `paths`
    write_evaluation(tmp_path / "two", probabilities(new[::-1]), target[::-1], CLASSES, paths=renamed)  # fmt: skip
    done = run("report", "one", "two", "out=both", code=0)
    first, second = done.stdout.splitlines()[:2]
    assert "one and two may have been trained on them" in first
    assert "old 62.5 %" in first and "new 62.5 %" in first
    low, high = paired_interval(3, 2, 2, 1)
    assert second == (
        f"Difference +0.0 points ({100 * low:+.1f} to {100 * high:+.1f}): the difference may be chance. "
        "Newly right: 2, newly wrong: 2. Mean loss 0.9293, was 0.9293; calibration error 27.50 %, was 27.50 %."
    )
    text = unescape((tmp_path / "both/comparison.html").read_text())
    wrong = text[text.index('id="wrong"') : text.index('id="right"')]
    assert {*re.findall(r'title="(b/\d\.jpg)"', wrong)} == {"b/7.jpg", "b/0.jpg"}
    assert re.findall(r"<tr><td>(\w+)</td><td[^>]*>([+-][\d.]+)</td>", text) == [("dog", "-50.0"), ("cat", "+16.7")]


@pytest.mark.parametrize(
    ("mended", "spoiled", "surer", "kept", "is_open"),
    [(30, 2, 0.0, "new", False), (2, 30, 0.0, "old", False), (3, 2, 0.1, "new", True), (2, 3, -0.1, "old", True),
     (3, 2, 0.0, "", True), (2, 2, 0.0, "", True), (0, 0, 0.0, "", True)],
)  # fmt: skip
def test_the_accuracy_decides_which_net_to_keep_else_the_loss(
    mended: int, spoiled: int, surer: float, kept: str, is_open: bool
):
    new, old = np.ones(100, bool), np.ones(100, bool)
    old[:mended] = new[-spoiled or 100 :] = False
    noise = np.random.default_rng(0).normal(0, 0.05, (2, 100))
    losses = 0.5 + noise - np.array([[0], [surer]])
    sure = np.full(100, 0.9)
    verdict = Verdict((old, new), list(losses), (sure, sure), is_same=False)
    assert (verdict.kept, verdict.is_open) == (kept, is_open)
    assert f"eep the {kept} net" in verdict.advice if kept else "eep either" in verdict.advice
    if is_open and mended != spoiled:
        number = images_to_decide(100 - mended - spoiled, spoiled, mended, 0)
        assert number and f"about {number:,} images" in verdict.advice
        share = number / 100
        for more, decides in ((1.1, True), (0.9, False)):  # so many decide, fewer do not
            low, high = paired_interval(*(each * share * more for each in (95, spoiled, mended, 0)))
            assert (not low <= 0 <= high) == decides
    assert Verdict((old, new), list(losses), (sure, sure), is_same=True).advice == "Keep either."


def test_the_losses_of_few_images_decide_nothing():
    for number in (1, 2, 5, 19):
        right, sure = np.ones(number, bool), np.full(number, 0.9)
        losses = np.full(number, 0.5), np.full(number, 0.4) + 1e-9 * np.arange(number)
        assert not Verdict((right, right), losses, (sure, sure), is_same=False).kept


def test_a_corrected_label_counts_for_both_nets_and_a_class_that_the_old_net_does_not_know_for_none(
    run: Run, tmp_path: Path
):
    write_images(tmp_path / "a", {"cat": 30, "dog": 30, "pig": 10})
    paths = [f"a/{name}/{number:03}.jpg" for name, most in (("cat", 30), ("dog", 30), ("pig", 10))
             for number in range(most)]  # fmt: skip
    before = np.array([0] * 25 + [1] * 45)  # five cats, and all pigs, were called dogs
    new = np.array([0] * 30 + [1] * 30 + [2] * 10)
    guess = np.array([0] * 30 + [1] * 40)
    write_evaluation(tmp_path / "one", probabilities(list(guess)), before, CLASSES, paths=paths)
    write_evaluation(tmp_path / "two", np.eye(3)[guess] * 0.85 + 0.05, new, [*CLASSES, "pig"], paths=paths)
    lines = run("report", "one", "two", "out=both", code=0).stdout.splitlines()
    assert lines[0].startswith("On 60 images ")
    assert lines[0].endswith("(left out: 10 images of classes that the old net does not know).")
    assert "Mean loss of the 55 whose label has not changed 0.1054, was 0.1054; " in lines[1], "0.9 for the true class"
    assert "keep either" in lines[2]
    assert "5 images had another label" in (tmp_path / "both/comparison.html").read_text()


def test_a_line_names_a_net_by_all_that_its_weights_need(run: Run, tmp_path: Path):
    """Also where there are no common images."""
    write_images(tmp_path / "a", {"cat": 3, "dog": 3})
    of_timm = {"name": "tf_efficientnet_lite0", "library": "timm"}
    named = "model.library=timm model.name=tf_efficientnet_lite0"
    nets: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"checkpoint": "/w/lite0.pth", "epochs": None}, of_timm, f"checkpoint=/w/lite0.pth {named}"),
        ({"checkpoint": None}, {**of_timm, "weights": "DEFAULT"}, f"model.weights=DEFAULT {named}"),
        ({"checkpoint": None}, {**of_timm, "weights": "/w/x.pth"}, f"model.weights=/w/x.pth {named}"),
        ({"checkpoint": "/w/best.ckpt", "epochs": 3}, of_timm, "checkpoint=/w/best.ckpt"),
        ({"checkpoint": "/w/run/checkpoints/best.ckpt"}, {}, "checkpoint=/w/run"),
        ({"checkpoint": None}, {**of_timm, "_target_": "mine.Net", "weights": "x.pth"}, ""),
        ({"checkpoint": None}, {}, ""),
    ]
    for number, (fields, model, expected) in enumerate(nets):
        for name, folder in (("one", "cat"), ("two", "dog")):
            path = write_evaluation(tmp_path / f"{name}{number}", probabilities([0, 0, 1]), np.zeros(3, int), CLASSES,
                                    paths=[f"a/{folder}/{each:03}.jpg" for each in range(3)], **fields)  # fmt: skip
            (path / "config.yaml").write_text(yaml.safe_dump({"model": model}))
        assert " ".join(net_options(read(tmp_path / f"one{number}"))) == expected
    (tmp_path / "two0").rename(tmp_path / "other")
    text = " ".join(run("report", "one0", "other", code=2).stderr.split())
    assert (
        f"evaluate checkpoint=/w/lite0.pth {named} data=imagefolder data.root=TEST hydra.run.dir=runs/old_test" in text
    )
    assert "evaluate both nets on them" in " ".join(run("report", "one5", "other", code=2).stderr.split())
    done = run("report", "one1", "one2", "out=both", code=0).stdout
    assert f"predict model.weights=/w/x.pth {named} images=FOLDER" in done
    assert f"evaluate model.weights=DEFAULT {named} data=imagefolder data.root=TEST" in done


def test_a_net_that_may_know_the_images_by_heart_is_kept_only_if_it_does_not(run: Run, tmp_path: Path):
    write_images(tmp_path / "a", {"cat": 60})
    paths = [f"a/cat/{number:03}.jpg" for number in range(60)]
    for name, wrong in (("one", 30), ("two", 0)):
        guess = [1] * wrong + [0] * (60 - wrong)
        write_evaluation(tmp_path / name, probabilities(guess), np.zeros(60, int), CLASSES, paths=paths)
    advice = run("report", "one", "two", "out=both", code=0).stdout.splitlines()[2]
    assert "Keep the new net" in advice and advice.endswith("This holds if that net was not trained on these images.")


def test_no_comparison_is_a_sentence_with_what_to_type(run: Run, tmp_path: Path):
    write_images(tmp_path / "a", {"cat": 2, "dog": 2})
    for name, folder in (("one", "cat"), ("two", "dog")):
        write_evaluation(tmp_path / name, probabilities([0, 1]), np.array([0, 1]), CLASSES,
                         paths=[f"a/{folder}/{number:03}.jpg" for number in range(2)])  # fmt: skip
    done = run("report", "one", "two", code=2)
    text = " ".join(done.stderr.split())
    assert "but there are none (left out: 4 images that only one was evaluated on). Hint: put" in text
    assert "data.root=TEST hydra.run.dir=runs/old_test" in text


def test_what_has_no_predictions_is_not_sent_back_to_an_evaluation_that_writes_none(run: Run, tmp_path: Path):
    for name in ("one", "two"):
        folder = write_evaluation(tmp_path / name, probabilities([0, 1]), np.array([0, 1]), CLASSES)
        content = json.loads((folder / "evaluation.json").read_text())
        (folder / "evaluation.json").write_text(json.dumps({**content, "predictions": None}))
    text = " ".join(run("report", "one", "two", code=2).stderr.split())
    assert "written with predictions=none. Hint: type its command again" in text and "FILE" not in text
    (tmp_path / "two/config.yaml").write_text(yaml.safe_dump({"data": {"labels": "several"}}))
    for argv in (["one", "two"], ["two"]):
        text = " ".join(run("report", *argv, code=2).stderr.split())
        assert "two" in text and "must have one label per image" in text and "evaluate checkpoint=" not in text


def test_the_paired_interval():
    for right in (0, 7, 20):  # of nets that err independently, about Newcombe's method 5: no correlation
        assert paired_interval(right, 0, 0, 20 - right)[0] <= 0 <= paired_interval(right, 0, 0, 20 - right)[1]
    low, high = paired_interval(10, 2, 6, 7)
    assert paired_interval(10, 6, 2, 7) == pytest.approx((-high, -low)), "antisymmetric"
    assert high - low < 2 * (interval(16, 25)[1] - interval(16, 25)[0])
    total, shares = 20, (0.6, 0.05, 0.2, 0.15)  # the exact coverage, over all outcomes
    coverage = 0.0
    for both, first, second in product(range(total + 1), repeat=3):
        if (neither := total - both - first - second) < 0:
            continue
        ends = paired_interval(both, first, second, neither)
        if ends[0] <= shares[2] - shares[1] <= ends[1]:
            ways = comb(total, both) * comb(total - both, first) * comb(total - both - first, second)
            coverage += ways * np.prod(np.power(shares, (both, first, second, neither)))
    assert 0.93 < coverage < 0.99
