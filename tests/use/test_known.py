"""known.npz beside a checkpoint: the columns of predict, `load` and the exported file; the images to label next."""

import csv
import io
import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL, Run, clean_environ
from helpers import forked_commands
from PIL import Image

import imagenet_ddp
from imagenet_ddp.cli import parse
from imagenet_ddp.config.schema.export import ExportConfig
from imagenet_ddp.curation.interval import interval_words
from imagenet_ddp.curation.unknown import read, write
from imagenet_ddp.export.write_and_compare import export
from imagenet_ddp.launch.stored_config import from_checkpoint
from imagenet_ddp.report import page
from imagenet_ddp.system.text import count_noun
from imagenet_ddp.use.exported_predictor import open_exported


@pytest.fixture(scope="module")
def known(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with known.npz, which the command features has written."""
    folder = tmp_path_factory.mktemp("known")
    (folder / "r/checkpoints").mkdir(parents=True)
    shutil.copy(trained, folder / "r/checkpoints/best.ckpt")
    result = forked_commands.run(
        "imagenet_ddp.features", "checkpoint=r", "data.num_workers=0", folder=folder, environment=clean_environ()
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "by which predict tells images unlike the training images. Of new images of the classes, " in result.stdout
    return folder / "r"


def changed(known: Path, folder: Path, threshold: float) -> Path:
    """Copy the run, with another threshold."""
    run = Path(shutil.copytree(known, folder / "other"))
    write(run / "known.npz", replace(read(run / "known.npz"), threshold=threshold))
    return run


def test_predict_says_which_images_are_known(known: Path, run: Run, tree: Path, tmp_path: Path) -> None:
    options = [f"checkpoint={known}", f"images={tree / 'val'}"]
    result = run("predict", *options, "top_k=1", code=0)
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert list(rows[0]) == ["path", "class_1", "probability_1", "known", "familiarity", "error"]
    scores = np.array([float(row["familiarity"]) for row in rows])
    threshold = read(known / "known.npz").threshold
    assert [row["known"] == "yes" for row in rows] == (scores >= threshold).tolist()
    assert "0 unreadable, " in result.stderr and "Hint" not in result.stderr

    ordered = np.sort(scores)
    gap = int(np.diff(ordered).argmax())
    middle = float(ordered[gap : gap + 2].mean())
    other = changed(known, tmp_path, middle)
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    model = imagenet_ddp.load(other)
    found = model.predict([*(row["path"] for row in rows), str(tmp_path / "broken.jpg")])
    assert [each.known for each in found] == [*(scores >= middle).tolist(), None]
    assert [each.familiarity for each in found[:-1]] == pytest.approx(scores.tolist(), abs=1e-4)
    result = run("predict", f"checkpoint={other}", f"images={tree / 'val'}", "format=jsonl", code=0)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["known"] for line in lines] == [each.known for each in found[:-1]]
    assert f"{sum(not line['known'] for line in lines)} unlike the training images" in result.stderr


@pytest.mark.slow(4)
def test_evaluate_counts_the_unknown_images(known: Path, run: Run, tree: Path, tmp_path: Path) -> None:
    """On two ranks, with the same numbers as predict; the report says them."""
    asked = run("predict", f"checkpoint={known}", f"images={tree / 'val'}", code=0)
    rows = list(csv.DictReader(io.StringIO(asked.stdout)))
    wanted = {row["path"]: float(row["familiarity"]) for row in rows}
    ordered = np.sort([*wanted.values()])
    gap = int(np.diff(ordered).argmax())
    other = changed(known, tmp_path, float(ordered[gap : gap + 2].mean()))
    options = ["trainer.devices=2", "cluster.num_threads=1", "data.num_workers=0", "hydra.run.dir=e"]
    said = run("evaluate", f"checkpoint={other}", f"data.root={tree}", *options, code=0).stdout
    found = list(csv.DictReader((tmp_path / "e/predictions.csv").read_text(encoding="utf-8-sig").splitlines()))
    assert [float(row["familiarity"]) for row in found] == pytest.approx(
        [wanted[row["path"]] for row in found], abs=1e-4
    )
    is_known = np.array([row["known"] == "yes" for row in found])
    is_right = np.array([row["prediction"] == row["label"] for row in found])
    assert 0 < is_known.sum() < len(found) and (~is_known).sum() == gap + 1
    figures = json.loads((tmp_path / "e/evaluation.json").read_text())["known"]
    assert figures == {
        "num_unknown": gap + 1, "num_images": len(found), "top1": pytest.approx(is_right.mean()),
        "top1_without_unknown": pytest.approx(is_right[is_known].mean()),
    }  # fmt: skip
    sentence = f"unlike the training images: top-1 {100 * is_right[is_known].mean():.2f} % without them"
    assert f"{gap + 1} of {len(found)} image" in said and sentence in said
    read_page = page.make_page(tmp_path / "e", tmp_path / "e", maps=False)
    new = f"training images ({interval_words(gap + 1, len(found))} of new images like these)"
    assert read_page is not None
    assert sentence.replace("training images", new) in read_page.files["report.html"].decode()


@pytest.mark.slow(3)
def test_without_a_reference_nothing_changes(known: Path, run: Run, tree: Path, tmp_path: Path) -> None:
    other = changed(known, tmp_path, 0.5)
    reference = read(other / "known.npz")
    for what, words in (("missing", "there is no"), ("broken", "but is not"), ("other", "is of other weights")):
        if what == "missing":
            (other / "known.npz").unlink()
        elif what == "broken":
            (other / "known.npz").write_bytes(b"no zip")
        else:
            write(other / "known.npz", replace(reference, digest="0"))
        result = run("predict", f"checkpoint={other}", f"images={tree / 'val'}", "top_k=1", code=0)
        assert result.stdout.startswith("path,class_1,probability_1,error\n")
        said = " ".join(result.stderr.split())
        assert words in said and "Traceback" not in said
        assert f"run `python -m imagenet_ddp.features checkpoint={other}` once" in said


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["onnx", "torch_export"])
def test_exported_files_give_the_familiarity(kind: str, known: Path, tree: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    file, checkpoint = tmp_path / f"m.{'onnx' if kind == 'onnx' else 'pt2'}", known / "checkpoints/best.ckpt"
    options = [f"checkpoint={checkpoint}", f"format={kind}", f"out={file}", f"images={tree / 'val'}"]
    config = from_checkpoint(parse.command_line("export", options, {}), checkpoint, {}, ExportConfig)
    said = " ".join(export(config, is_data_typed=False))
    assert "the familiarity differs by at most" in said
    paths = sorted(str(path) for path in (tree / "val").rglob("*.jpg"))
    predictor = open_exported(file, "auto")
    found = predictor.predict([predictor.read(path) for path in paths], 1)
    wanted = imagenet_ddp.load(known).predict(paths)
    assert [each.is_known for each in found] == [each.known for each in wanted]
    assert [each.familiarity for each in found] == pytest.approx([each.familiarity for each in wanted], abs=2e-2)
    assert "familiarity of the image" in (tmp_path / "README.md").read_text()


def test_the_images_to_label_next(known: Path, run: Run, tree: Path, tmp_path: Path) -> None:
    shutil.copytree(tree / "val", tmp_path / "new")
    first = sorted((tmp_path / "new").rglob("*.jpg"))[0]
    shutil.copy(first, first.with_name("copy.jpg"))
    (tmp_path / "new/broken.jpg").write_bytes(b"no image")
    said = run("predict", f"checkpoint={known}", "images=new", "label_next=2", "out=next.csv", code=0).stderr
    assert re.search(r"^2 to next\.csv, of \d+ images, 1 unreadable, \d+ unlike the training", said, re.MULTILINE)
    rows = list(csv.DictReader((tmp_path / "next.csv").read_text(encoding="utf-8-sig").splitlines()))
    assert list(rows[0]) == ["rank", "path", "suggested", "probability", "why", "decision"]
    assert [row["rank"] for row in rows] == ["1", "2"] and all(row["why"] for row in rows)
    with Image.open(tmp_path / "next_sheet.png") as sheet:
        assert sheet.width > 2 * 90
    run("predict", f"checkpoint={known}", "images=new", "label_next=2", "out=next.html", code=0)
    page = (tmp_path / "next.html").read_text()
    assert ("To see all, leave label_next out." in page) == (" 0 unlike the training" not in said)
    assert re.findall('<li title="([^"]*)">', page) == [row["path"] for row in rows], "the same, in the same order"
    result = run("predict", f"checkpoint={known}", "images=new", "label_next=100", "format=jsonl", code=0)
    listed = [json.loads(line)["path"] for line in result.stdout.splitlines()]
    assert 2 <= len(listed) < 12
    left = f"near-copies are left out ({count_noun(12 - len(listed), 'image')})"
    assert f"There are fewer than label_next=100, because {left}.\n" in result.stderr
    assert len({f"new/{first.parent.name}/{name}" for name in ("copy.jpg", first.name)} & {*listed}) <= 1
    last = result.stderr.splitlines()[-1]
    assert last == "Hint: set out=next.html for a page on which to choose the classes, out=next.csv for a list."


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow(3)
@pytest.mark.parametrize("is_split", [False, True])
def test_the_list_is_carried_out(is_split: bool, known: Path, run: Run, tree: Path, tmp_path: Path) -> None:
    """By the command of the last line: training sees the images that got a class, and undo gives back every byte."""
    shutil.copytree(tree if is_split else tree / "train", tmp_path / "my pets")
    shutil.copytree(tree / "val", tmp_path / "in box")
    before = contents(tmp_path / "my pets"), contents(tmp_path / "in box")
    options = [f"checkpoint={known}", "images=in box/**/*.jpg", "label_next=2", "out=next.csv", "data.root=my pets"]
    last = run("predict", *options, code=0).stderr.splitlines()[-1]
    _, *words = shlex.split(last.rstrip("`").partition(" -m ")[2])
    rows = list(csv.DictReader((tmp_path / "next.csv").read_text(encoding="utf-8-sig").splitlines()))
    rows[0]["decision"], rows[1]["decision"] = "move", "owl"
    with (tmp_path / "next.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    for typed in (options, [word for word in options if not word.startswith("label_next")]):
        said = " ".join(run("predict", *typed, code=2).stderr.split())
        assert "out must not be a list to be carried out, but next.csv has 2 decisions" in said
    assert run("prepare", *words, code=0).stdout.startswith("2 images moved into the class folders: ")
    after = contents(tmp_path / "my pets"), contents(tmp_path / "in box")
    assert [len(each) for each in after] == [len(before[0]) + 2, len(before[1]) - 2]
    for row, label in zip(rows, (rows[0]["suggested"], "owl"), strict=True):
        name = row["path"].partition("/")[2]
        new = [path for path, content in after[0].items() if content == before[1][name] and path not in before[0]]
        assert name not in after[1] and [Path(path).parts[is_split] for path in new] == [label]
    folders = ["data=imagefolder", "data.root=my pets"]
    run("train", *SMALL, *folders, "trainer.max_epochs=1", "hydra.run.dir=run", code=0)
    seen = json.loads((tmp_path / "run/summary.json").read_text())
    assert seen["num_train_images"] + seen["num_val_images"] == len(before[0]) + 2
    run("predict", *options, code=0)  # what the list decided is done, so another may take its place
    run("prepare", *words, "undo=true", code=0)
    assert (contents(tmp_path / "my pets"), contents(tmp_path / "in box")) == before


def test_an_exported_file_has_no_features(run: Run, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").touch()
    (tmp_path / "a.jpg").touch()
    result = run("predict", "checkpoint=m.onnx", "images=a.jpg", "label_next=3", code=2)
    assert "label_next needs a checkpoint" in " ".join(result.stderr.split())
