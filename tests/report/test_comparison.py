"""Two nets are compared on images that both were evaluated on and neither was trained on."""

import json
import re
import shutil
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
    done = run("report", "old", "new", "out=both", code=1)  # photos has no zebra, more has other images
    assert "Written to both: report.md" in done.stdout and not (tmp_path / "both/comparison.html").exists()
    assert "but there are none (left out: " in " ".join(done.stderr.split())
    for name in ("old", "new"):
        run(
            "evaluate", f"checkpoint={name}", "data.root=photos", "data.val_fraction=null",
            f"hydra.run.dir={name}_test", code=0,
        )  # fmt: skip
    done = run("report", "old_test", "new_test", "out=both", code=0)
    num_held_out = json.loads((tmp_path / "old/summary.json").read_text())["num_val_images"]
    lines = done.stdout.splitlines()
    assert re.match(r"(For now, k|K)eep (old|new)_test", lines[0]) and f" of {num_held_out} images (" in lines[0]
    assert lines[1] == "Only new_test knows zebra: keep it for images of that class."
    left_out = f"(left out: {35 - num_held_out} images that one of them was trained on)"
    counts = re.fullmatch(
        rf"Of the {num_held_out} images that both were evaluated on and neither was trained on {re.escape(left_out)}, "
        r"only old_test is right for (\w+), only new_test for (\w+), and both are wrong for (\w+)\.", lines[2]
    )  # fmt: skip
    assert counts and lines[-2:] == ["", "Written to both: comparison.html"]
    facts = {line.partition("  ")[0]: line.split()[-2:] for line in lines}
    assert facts["Classes"] == ["2", "3"] and facts["Images"] == ["photos", "more"]
    assert facts["Training images"][0] == f"{35 - num_held_out}"
    html = (tmp_path / "both/comparison.html").read_text()
    assert html.count("data:image/jpeg") == sum(int(each) for each in counts.groups() if each != "none")
    assert "No images are shown" not in html


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
    done = run("report", "old", "new", "out=both", code=0)  # whose predictions are made by a report of each
    assert "Both have the same weights." in done.stdout and "Evaluating" not in done.stderr
    shutil.rmtree(tmp_path / "old/evaluation")
    done = run("report", "old", "new", "out=again", code=0)
    number = json.loads((tmp_path / "old/summary.json").read_text())["num_val_images"]
    asked = f"Evaluating {Path('old/checkpoints/best.ckpt')}, which has no predictions yet, on {number} images"
    assert done.stderr.count("Evaluating") == 1 and asked in done.stderr
    shutil.rmtree(tmp_path / "new/evaluation")
    shutil.rmtree(tmp_path / "new/checkpoints")
    done = run("report", "old", "new", "out=none", code=1)
    assert "new: There is no checkpoints/best.ckpt to evaluate" in " ".join(done.stderr.split())
    assert done.stdout.startswith("2 runs: 2 finished") and not (tmp_path / "none/comparison.html").exists()


@pytest.mark.slow
def test_validation_images_in_a_folder_of_their_own_are_held_out(run: Run, tree: Path):
    for name in "ab":
        run("train", *SMALL, f"data.root={tree}", "trainer.max_epochs=1", f"hydra.run.dir={name}", code=0)
    said = run("report", "a", "b", "out=both", code=0).stdout
    assert "Of the 11 images that both were evaluated on and neither was trained on, " in said, said


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
    high = 100 * paired_interval(3, 2, 2, 1)[1]
    assert done.stdout.splitlines()[:3] == [
        "For now, keep either net. one and two are each right for 5 of 8 images (62.5 %). Which is better is open: for "
        f"new images like these, the accuracy of one is between {high:.1f} points lower and {high:.1f} points higher "
        "(95 % interval). The loss does not tell them apart either.",
        "Of the 8 images that both were evaluated on, only one is right for 2, only two for 2, and both are wrong for "
        "1.",
        "one and two may have been trained on them, and would then look better than on new images: their checkpoints "
        "do not say.",
    ]  # fmt: skip
    text = unescape((tmp_path / "both/comparison.html").read_text())
    for place, shown in (
        ("first", {"b/7.jpg", "b/0.jpg"}),
        ("second", {"b/4.jpg", "b/3.jpg"}),
        ("neither", {"b/2.jpg"}),
    ):
        section = text.partition(f'<section id="{place}">')[2].partition("</section>")[0]
        assert {*re.findall(r'title="(b/\d\.jpg)"', section)} == shown
    assert re.findall(r"<tr><td>(\w+)</td>.*?([+-][\d.]+)</td>", text) == [("dog", "-50.0"), ("cat", "+16.7")]


@pytest.mark.parametrize(
    ("mended", "spoiled", "surer", "title"),
    [(30, 2, 0.0, "Keep new"), (2, 30, 0.0, "Keep old"), (3, 2, 0.1, "For now, keep new"),
     (2, 3, -0.1, "For now, keep old"), (3, 2, 0.0, "For now, keep either net"),
     (2, 2, 0.0, "For now, keep either net"), (0, 0, 0.0, "For now, keep either net")],
)  # fmt: skip
def test_the_accuracy_decides_which_net_to_keep_else_the_classes_or_the_loss(
    mended: int, spoiled: int, surer: float, title: str
):
    new, old = np.ones(100, bool), np.ones(100, bool)
    old[:mended] = new[-spoiled or 100 :] = False
    noise = np.random.default_rng(0).normal(0, 0.05, (2, 100))
    losses = 0.5 + noise - np.array([[0], [surer]])
    sure = np.full(100, 0.9)

    def judge(*only: list[str], is_same: bool = False) -> Verdict:
        return Verdict(("old", "new"), (old, new), list(losses), (sure, sure), only, is_same)

    verdict, is_open = judge([], []), title.startswith("For now")
    assert verdict.title == title and ("Which is better is open" in verdict.reason) == is_open
    assert not re.search(r"[+-]\d", verdict.reason)
    if is_open and mended != spoiled:
        number = images_to_decide(100 - mended - spoiled, spoiled, mended, 0)
        assert number and f"About {number:,} images" in verdict.reason
        share = number / 100
        for more, decides in ((1.1, True), (0.9, False)):  # so many decide, fewer do not
            low, high = paired_interval(*(each * share * more for each in (95, spoiled, mended, 0)))
            assert (not low <= 0 <= high) == decides
    assert judge([], [], is_same=True).title == "Keep either net"
    names = [name for name in ("old", "new") if name in title] or ["old", "new"]
    assert verdict.names[verdict.used] in names, "the lines that follow use the net to keep"
    if len(names) == 2 and mended != spoiled:
        assert verdict.used == int(mended > spoiled), "of two that may be kept, the one that is right more often"
    known = " for the classes that both know"
    if is_open:
        titles = judge(["pig"], []).title, judge([], ["pig"]).title, judge(["pig"], ["cow"]).title
        assert titles == ("For now, keep old", "For now, keep new", f"For now, keep either net{known}")
        assert "loss" not in judge(["pig"], []).reason, "that of more classes is higher"
    else:
        assert judge(["pig"], []).title == (title if title == "Keep old" else title + known)


@pytest.mark.parametrize(
    ("right", "title", "said"),
    [((300, 260), "Keep old", "old is right for 94.3 % (91 to 96 %), new for 81.8 % (77 to 86 %), more than chance"),
     ((260, 300), "Keep new", "new is right for 94.3 % (91 to 96 %), old for 81.8 % (77 to 86 %), more than chance"),
     ((300, 296), "For now, keep either net", "old is right for 94.3 % (91 to 96 %), new for 93.1 % (90 to 95 %). ")],
)  # fmt: skip
def test_folds_of_the_same_training_images_decide_what_few_validation_images_leave_open(
    right: tuple[int, int], title: str, said: str
):
    num_right, sure, losses = np.arange(79) > 2, np.full(79, 0.9), np.random.default_rng(0).normal(0.5, 0.1, 79)
    nets = (num_right, num_right[::-1])
    folds = [(each, 318) for each in right]
    verdict = Verdict(("old", "new"), nets, [losses, losses], (sure, sure), ([], []), is_same=False, folds=folds)
    assert verdict.title == title and verdict.is_open == title.startswith("For now")
    assert f"By five folds over all 318 training images, {said}" in verdict.reason
    clear = (np.ones(79, bool), np.arange(79) > 40)
    verdict = Verdict(("old", "new"), clear, [losses, losses], (sure, sure), ([], []), is_same=False, folds=folds)
    assert verdict.title == "Keep old", "folds do not overrule what the images tell"


def test_the_losses_of_few_images_decide_nothing():
    for number in (1, 2, 5, 19):
        right, sure = np.ones(number, bool), np.full(number, 0.9)
        losses = np.full(number, 0.5), np.full(number, 0.4) + 1e-9 * np.arange(number)
        verdict = Verdict(("old", "new"), (right, right), losses, (sure, sure), ([], []), is_same=False)
        assert verdict.kept is None


def test_a_corrected_label_counts_for_both_nets_and_a_class_that_the_old_net_does_not_know_for_none(
    run: Run, tmp_path: Path
):
    write_images(tmp_path / "a", {"cat": 30, "dog": 30, "pig": 10})
    paths = [f"a/{name}/{number:03}.jpg" for name, most in (("cat", 30), ("dog", 30), ("pig", 10))
             for number in range(most)]  # fmt: skip
    shutil.copy(tmp_path / paths[0], tmp_path / "a/copy.jpg")
    paths += ["a/copy.jpg", "a/gone.jpg"]
    before = np.array([0] * 25 + [1] * 45 + [0, 0])  # five cats, and all pigs, were called dogs
    new = np.array([0] * 30 + [1] * 30 + [2] * 10 + [0, 0])
    guess = np.array([0] * 30 + [1] * 40 + [0, 0])
    write_evaluation(tmp_path / "one", probabilities(list(guess)), before, CLASSES, paths=paths)
    write_evaluation(tmp_path / "two", np.eye(3)[guess] * 0.85 + 0.05, new, [*CLASSES, "pig"], paths=paths)
    lines = run("report", "one", "two", "out=both", code=0).stdout.splitlines()
    assert lines[0].startswith("For now, keep two. one and two are each right for 60 of 60 images (100.0 %). ")
    assert lines[1] == "Only two knows pig: keep it for images of that class."
    copies = "1 image with the content of another one, as each content counts once"
    gone = "1 image whose file was moved or removed since"
    assert (
        f"(left out: 10 images of classes that one does not know and {gone} and {copies}), only one is right"
        in lines[2]
    )
    loss = next(line for line in lines if line.startswith("Mean loss of the 55 whose label has not changed "))
    assert loss.split()[-2:] == ["0.1054", "0.1054"], "0.9 for the true class"
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
        f"evaluate checkpoint=/w/lite0.pth {named} data=imagefolder data.root=TEST hydra.run.dir=runs/one0_test" in text
    )
    assert "evaluate both on them" in " ".join(run("report", "one5", "other", code=2).stderr.split())
    done = run("report", "one1", "one2", "out=both", code=0).stdout
    assert f"predict model.weights=/w/x.pth {named} images=FOLDER" in done
    assert f"evaluate model.weights=DEFAULT {named} data=imagefolder data.root=TEST" in done


def test_a_net_that_may_know_the_images_by_heart_is_named(run: Run, tmp_path: Path):
    write_images(tmp_path / "a", {"cat": 60})
    paths = [f"a/cat/{number:03}.jpg" for number in range(60)]
    for name, wrong in (("one", 30), ("two", 0)):
        guess = [1] * wrong + [0] * (60 - wrong)
        write_evaluation(tmp_path / name, probabilities(guess), np.zeros(60, int), CLASSES, paths=paths)
    lines = run("report", "one", "two", "out=both", code=0).stdout.splitlines()
    assert lines[0].startswith(
        "Keep two. It is right for 60 of 60 images (100.0 %), one for 30 (50.0 %). That is more "
    )
    assert lines[2].startswith("one and two may have been trained on them, and would then look better")


def test_no_comparison_is_a_sentence_with_what_to_type(run: Run, tmp_path: Path):
    write_images(tmp_path / "a", {"cat": 2, "dog": 2})
    for name, folder in (("one", "cat"), ("two", "dog")):
        write_evaluation(tmp_path / name, probabilities([0, 1]), np.array([0, 1]), CLASSES,
                         paths=[f"a/{folder}/{number:03}.jpg" for number in range(2)])  # fmt: skip
    done = run("report", "one", "two", code=2)
    text = " ".join(done.stderr.split())
    assert "but there are none (left out: 4 images that only one was evaluated on). Hint: put" in text
    assert "data.root=TEST hydra.run.dir=runs/one_test" in text


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
