"""python -m imagenet_ddp.predict and evaluate on a checkpoint that was trained here."""

import csv
import io
import json
import math
import re
import shutil
import zipfile
from collections import Counter
from html import unescape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Run, write_images
from PIL import Image

from imagenet_ddp import predict
from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.config.schema.predict import PredictConfig
from imagenet_ddp.data.decoding.decode import Reading
from imagenet_ddp.data.sources.walk import find_images
from imagenet_ddp.runs.result_files import NOT_FINITE
from imagenet_ddp.runs.signals import SignalExit
from imagenet_ddp.system import table_files
from imagenet_ddp.system.text import printable
from imagenet_ddp.use.predictor import FileReader, Outputs, Predictor


def test_images_in_their_own_size_are_few_at_a_time(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A net with the preprocessing inside."""
    sizes, taken = [], []

    def prepare(image: torch.Tensor) -> torch.Tensor:
        taken.append(1)
        return image

    def compute(images: list[torch.Tensor]) -> Outputs:
        assert len(taken) - sum(sizes) <= 12
        sizes.append(len(images))
        return Outputs(torch.ones(len(images), 2) / 2)

    reader = FileReader(Reading(), prepare)
    predictor = Predictor(["a", "b"], ["a", "b"], reader, compute, torch.device("cpu"), reads_whole=True)
    monkeypatch.setattr(predict, "open_predictor", lambda config, keep_features: predictor)
    paths = find_images(str(tree / "train"))
    config = PredictConfig(data=DataConfig(batch_size=32), out=str(tmp_path / "p.csv"), top_k=1)
    assert predict._predict(config, paths) == predict.Counts(of_label=Counter(a=29))
    assert sizes == [4] * 7 + [1]


def test_a_stop_leaves_the_table_before(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):

    def compute(images: list[torch.Tensor]) -> Outputs:
        if len(images) == 1:
            raise SignalExit(2)
        return Outputs(torch.ones(len(images), 2) / 2)

    reader = FileReader(Reading(), lambda image: image)
    predictor = Predictor(["a", "b"], ["a", "b"], reader, compute, torch.device("cpu"), reads_whole=True)
    monkeypatch.setattr(predict, "open_predictor", lambda config, keep_features: predictor)
    (tmp_path / "p.csv").write_text("before")
    config = PredictConfig(data=DataConfig(batch_size=4, num_workers=0), out=str(tmp_path / "p.csv"), top_k=1)
    paths = find_images(str(tree / "train"))
    with pytest.raises(SignalExit):
        predict._predict(config, paths)
    assert (tmp_path / "p.csv").read_text() == "before"
    assert predict._predict(config, paths[:4]) == predict.Counts(of_label=Counter(a=4))
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("typed", "is_table"),
    [({}, False), ({"format": "csv"}, True), ({"format": "jsonl"}, True), ({"out": "p"}, True),
     ({"out": "p.html"}, True)],
)  # fmt: skip
def test_a_person_at_a_terminal_reads_a_line_of_words(
    typed: dict[str, Any], is_table: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    """A program gets the table: what is typed, written to a file or piped. The page has the same words, those first
    that are in doubt; each picture is there once."""
    rows = {"sure.jpg": [0.96, 0.03, 0.01], "so so.jpg": [0.4, 0.35, 0.25], "other.jpg": [0.9, 0.1, 0.0],
            "odd\x1b.jpg": [math.nan] * 3, "dog.jpg": [0.0, 0.2, 0.8]}  # fmt: skip

    def compute(images: list[torch.Tensor]) -> Outputs:
        found = torch.tensor(list(rows.values()))
        return Outputs(found, torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0]))

    def predictor(config: PredictConfig, keep_features: bool) -> Predictor:
        reader = FileReader(Reading(), lambda image: image)
        labels = ["tench", "horn", "<b>dog"]
        return Predictor(labels, labels, reader, compute, torch.device("cpu"), threshold=0.5)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(predict, "open_predictor", predictor)
    monkeypatch.setattr(FileReader, "__call__", lambda self, path: torch.zeros(3, 4, 4, dtype=torch.uint8))
    config = PredictConfig(data=DataConfig(num_workers=0), **typed)
    Image.new("RGB", (40, 30)).save("dog.jpg")
    unread = "odd\x1b.jpg cannot be read: the output of the net is NaN or inf."
    counts = predict.Counts(1, 1, 1, of_label=Counter({"tench": 1, "<b>dog": 1}), first_unreadable=unread)
    assert predict._predict(config, [*rows]) == counts, "what is in doubt is not counted as a class"
    piped = capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert predict._predict(config, [*rows]) == counts
    printed = capsys.readouterr().out
    assert (printed == piped.replace("\x1b", "\\x1b")) == is_table
    words = {
        "so so.jpg": "not sure: tench 40 % or horn 35 %",
        "other.jpg": "unlike the training images; the likeliest is tench 90 %",
        "odd\x1b.jpg": f"no class: {NOT_FINITE}",
        "dog.jpg": "<b>dog 80 %",
        "sure.jpg": "tench 96 %",
    }
    if not is_table:
        assert printed.splitlines() == [f"{printable(path):11}  {words[path]}" for path in rows]
    if typed.get("out") == "p.html":
        html = Path("p.html").read_text(encoding="utf-8")
        shown = re.findall(r'<li title="([^"]*)">.*?</(?:div|button)>\s*(.*?)<br>', html, re.DOTALL)
        assert [(path, unescape(said)) for path, said in shown] == [*words.items()]
        parts = ["Not sure between classes", "Unlike the training images", "Without a class", "&lt;b&gt;dog", "tench"]
        assert re.findall("<h2>(.*?) <span", html) == parts and html.count("data:image/jpeg;base64,") == 1


def test_images_are_listed_before_the_checkpoint_is_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "no.ckpt").touch()
    (tmp_path / "empty").mkdir()
    result = run("predict", "checkpoint=no.ckpt", "images=empty")
    assert result.returncode == 2
    assert f"but empty ({tmp_path}/empty) matches none." in " ".join(result.stderr.split())
    write_images(tmp_path, {"cat": 2})
    result = run("predict", "checkpoint=no.ckpt", "images=cat", "out=cat/001.jpg", code=2)
    assert "got cat/001.jpg, a model or an image" in " ".join(result.stderr.split())


@pytest.mark.slow
def test_predictions_agree_with_the_evaluation(run: Run, tree: Path, trained: Path, tmp_path: Path) -> None:
    result = run("predict", f"checkpoint={trained}", f"images={tree / 'val'}", "format=jsonl", "out=p.jsonl")
    assert result.returncode == 0, result.stderr
    assert "11 images to p.jsonl, 0 unreadable" in result.stderr
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    of_class = Counter(row["classes"][0]["class"] for row in rows).most_common()
    assert f"Predicted: {', '.join(f'{name} {number}' for name, number in of_class)}\n" in result.stderr
    hits = sum(row["classes"][0]["class"] == Path(row["path"]).parent.name for row in rows)
    for row in rows:
        assert len(row["classes"]) == 3  # of three classes, not five
        assert sum(found["probability"] for found in row["classes"]) == pytest.approx(1, abs=1e-4)

    result = run("evaluate", f"checkpoint={trained}", "hydra.run.dir=e")
    assert result.returncode == 0, result.stderr
    evaluation = json.loads((tmp_path / "e/evaluation.json").read_text())
    assert evaluation["val/top1"] == pytest.approx(hits / 11, abs=1e-6)
    assert hits >= 8, "the classes are easy: the test means nothing where nothing was learned"


@pytest.mark.slow
def test_classes_are_matched_by_name(run: Run, tree: Path, trained: Path, tmp_path: Path) -> None:
    """A folder without the first class: positions differ, names do not."""
    shutil.copytree(tree / "val", tmp_path / "less/val", ignore=shutil.ignore_patterns("cat"))
    result = run("evaluate", f"checkpoint={trained}", "data=imagefolder", "data.root=less", "hydra.run.dir=e")
    assert result.returncode == 0, result.stderr
    less = json.loads((tmp_path / "e/evaluation.json").read_text())
    result = run("predict", f"checkpoint={trained}", "images=less/val", "format=jsonl")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    hits = sum(row["classes"][0]["class"] == Path(row["path"]).parent.name for row in rows)
    assert less["num_val_images"] == len(rows) == 7
    assert less["val/top1"] == pytest.approx(hits / 7, abs=1e-6)

    write_images(tmp_path / "foreign/val", {"cat": 2, "zebra": 2})
    result = run("evaluate", f"checkpoint={trained}", "data=imagefolder", "data.root=foreign")
    assert result.returncode == 2
    assert "zebra" in result.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_the_weights_must_be_complete(run: Run, trained: Path, tmp_path: Path) -> None:
    checkpoint = torch.load(trained, weights_only=True)
    checkpoint["state_dict"].popitem()
    torch.save(checkpoint, tmp_path / "less.ckpt")
    result = run("predict", "checkpoint=less.ckpt", f"images={trained.parent.parent / 'curves.png'}")
    assert result.returncode == 2, result.stdout + result.stderr
    assert "must hold the weights of this net" in result.stderr


@pytest.mark.slow
def test_unreadable_files_have_a_line_of_their_own(run: Run, tree: Path, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(tree / "val/cat", tmp_path / "some")
    (tmp_path / "some/empty.jpg").touch()
    (tmp_path / "some/text.png").write_text("no image")
    with (tmp_path / "some/huge.jpg").open("wb") as file:
        file.truncate(3 * 2**30)  # takes no room on the disk
    (tmp_path / "some/notes.txt").write_text("left out by its extension")
    result = run("predict", f"checkpoint={trained}", "images=some", "top_k=2", "data.batch_size=2")
    assert result.returncode == 0, result.stderr
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert list(rows[0]) == ["path", "class_1", "probability_1", "class_2", "probability_2", "error"]
    errors = {Path(row["path"]).name: row["error"] for row in rows}
    assert errors.pop("empty.jpg") == "the file is empty"
    assert errors.pop("huge.jpg") == "the file is too large (3.0 GiB)"
    assert errors.pop("text.png") == "it is not an image in a known format"
    assert len(errors) == 4
    assert set(errors.values()) == {""}
    assert "7 images, 3 unreadable" in result.stderr
    assert re.search(r"\w+\.(jpg|png) cannot be read: \S.*\. Nor can 2 others\.$", result.stderr, re.MULTILINE)
    none = run("predict", f"checkpoint={trained}", "images=some/empty.jpg", "out=p.html", code=1)
    assert "some/empty.jpg cannot be read: the file is empty.\n" in none.stderr
    assert "In some, 1 file was left out: 1 of another type (.txt)." in result.stderr
    result = run("predict", f"checkpoint={trained}", "images=some", "out=/dev/full")
    assert (result.returncode, "Traceback" in result.stderr) == (1, False)
    assert "/dev/full cannot be written: no space left on device. Hint: make room there" in result.stderr


# ---- tables for people


@pytest.mark.slow(6)
def test_tables_that_spreadsheets_open(run: Run, tree: Path, trained: Path, tmp_path: Path) -> None:
    """One delimiter for the CSV of every command, a mark of UTF-8 in files and none in a pipe, and Excel by suffix."""
    options = [f"checkpoint={trained}", f"images={tree / 'val'}", "top_k=1"]
    run("predict", *options, "csv_delimiter=semicolon", "out=p.csv", code=0)
    assert (tmp_path / "p.csv").read_bytes().startswith(b"\xef\xbb\xbfpath;class_1;probability_1;error\n")
    assert run("predict", *options, code=0).stdout.startswith("path,class_1,")
    run("evaluate", f"checkpoint={trained}", "csv_delimiter=semicolon", "hydra.run.dir=e", code=0)
    assert (tmp_path / "e/predictions.csv").read_bytes().startswith(b"\xef\xbb\xbfindex;path;")
    run("report", "e", "maps=false", "csv_delimiter=tab", code=0)
    assert (tmp_path / "e/likely_wrong_labels.csv").read_bytes().startswith(b"\xef\xbb\xbfpath\tlabel\t")
    run("report", "e", "maps=false", code=0)  # over its own file
    run("predict", *options[:1], f"images={tree / 'val'}", "out=list.jsonl", code=0)
    assert json.loads((tmp_path / "list.jsonl").read_text().splitlines()[0])["error"] is None


@pytest.mark.skipif(find_spec("xlsxwriter") is None, reason="needs the extra excel")
def test_an_excel_file(run: Run, tree: Path, trained: Path, tmp_path: Path) -> None:
    run("predict", f"checkpoint={trained}", f"images={tree / 'val'}", "top_k=1", "out=p.xlsx", code=0)
    with zipfile.ZipFile(tmp_path / "p.xlsx") as file:
        sheet = file.read("xl/worksheets/sheet1.xml").decode()
    paths = [str(path) for path in sorted((tree / "val").rglob("*.jpg"))]
    assert all(f"<t>{path}</t>" in sheet for path in paths)
    assert sheet.count("<row ") == len(paths) + 1
    assert sheet.count("<v>") >= len(paths), "probabilities are numbers"


@pytest.mark.parametrize(
    ("option", "out", "said"),
    [
        ("auto", "p.ods", "set out=p.csv."),
        ("auto", "p.pdf", "set out=p.html."),
        ("html", "p.pdf", "set out=p.html."),
        ("csv", "p.xlsx", "format must be that of out=p.xlsx, got csv. Hint: set format=auto."),
        ("xlsx", "p.csv", "format must be that of out=p.csv"),
        ("xlsx", None, "set out=FILE.xlsx."),
        ("jsonl", "p.csv", "format must be that of out=p.csv"),
        ("auto", "p.json", "set out=p.jsonl."),
        ("xlsx", "p.txt", "set out=p.xlsx."),
        ("html", None, "set out=FILE.html."),
        ("html", "p.txt", "set out=p.html."),
        ("auto", "p.htm", "set out=p.html."),
        ("auto", "p.html", ""),
        ("auto", "p.txt", ""),
        ("jsonl", "p.txt", ""),
    ],
)
def test_formats_and_suffixes(option: str, out: str | None, said: str) -> None:
    assert said in "".join(map(str, table_files.validate(option, out)))
    assert bool(said) == bool(table_files.validate(option, out))
