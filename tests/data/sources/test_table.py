import csv
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SMALL, Run, write_images
from helpers.image_table import write_table

from imagenet_ddp.config.schema.data import DataConfig, TableData
from imagenet_ddp.config.schema.purpose import Purpose
from imagenet_ddp.data.sources.base import Images, Source
from imagenet_ddp.data.sources.cells import Cells, read_cells
from imagenet_ddp.data.sources.image_files import FileImages
from imagenet_ddp.data.sources.registry import scan
from imagenet_ddp.data.sources.table import find_missing
from imagenet_ddp.data.sources.table_rows import read_table
from imagenet_ddp.errors import ConfigError

GOOD = "path,label,split,weight\na.jpg,cat,train,1\nb.jpg,dog,train,0.5\nc.jpg,cat,Val,2\n"


def keys(root: Path | str | None, **typed: Any) -> TableData:
    return TableData(root=None if root is None else str(root), **typed)


def found(folder: Path, content: str, verb: str = "train", **typed: Any) -> list[str]:
    for name in "abcde":
        (folder / f"{name}.jpg").touch()
    (folder / "t.csv").write_text(content)
    return list(map(str, scan(keys(folder / "t.csv", **typed), 0, Purpose(verb)).mistakes))


def test_a_good_table(tmp_path: Path):
    assert found(tmp_path, GOOD) == found(tmp_path, GOOD, "evaluate") == []
    table = read_table(keys(tmp_path / "t.csv"))
    assert table.folder == tmp_path
    assert table.of_split("train") == [(2, "a.jpg", "cat", "train", "1", ""), (3, "b.jpg", "dog", "train", "0.5", "")]
    assert table.of_split("val") == [(4, "c.jpg", "cat", "val", "2", "")]
    assert table.note == f"{tmp_path}/t.csv: 3 rows. Columns read: path, label, split, weight."


@pytest.mark.parametrize("word", ["nan", " None ", "", "#REF!"])
def test_a_cell_that_says_no_value_is_no_class(tmp_path: Path, word: str):
    (mistake,) = found(tmp_path, f"path,label\na.jpg,0.0\nb.jpg,{word}\nc.jpg,1.0\nd.jpg,{word}\n", val_fraction=0.5)
    assert f"in 2 rows: row 3 ({word.strip() or 'empty'}), row 5 (" in mistake and "Hint: correct those rows" in mistake


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["0.0", "1.0", "0", "10.00"], ["0", "1", "0", "10"]),
        (["1.0", "1.5"], ["1.0", "1.5"]),
        (["1.0", "b"], ["1.0", "b"]),
        (["007", "1"], ["007", "1"]),
        (["Caf\u00e9", "Cafe\u0301", "b"], ["Caf\u00e9", "Caf\u00e9", "b"]),
    ],
)
def test_labels_become_class_names(tmp_path: Path, labels: list[str], names: list[str]):
    rows = "".join(f"{name}.jpg,{label}\n" for name, label in zip("abcd", labels, strict=False))
    assert found(tmp_path, f"path,label\n{rows}", val_fraction=0.5) == []
    assert [row.label for row in read_table(keys(tmp_path / "t.csv", val_fraction=0.5)).rows] == names


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("path,label\na.jpg,cat,x\nb.jpg\n", "must be that of the header (2), but is not in 2 rows: row 2 (3 cells)"),
        (GOOD + 'd.jpg,"cat,val,1\ne.jpg,cat,val,1\n', "must be a CSV file, but cannot be read as one: unexpected end"),
        (GOOD + 'd.jpg,"cat,val,1\ne.jpg,cat",val,1\n', "must be a single line without control characters"),
        (GOOD + "d.jpg,cat,\x1b[31mtest,1\n", "must be train or val, but is not in 1 row: row 5 (\\x1b[31mtest)."),
        ("path,label,split\n,cat,train\n", "path must not be empty, but is in 1 row: row 2 (empty)."),
        (GOOD + "d.jpg,cat,other,1\ne.jpg,cat,,1\n", "not in 2 rows: row 5 (other), row 6 (empty). Hint: "),
        (GOOD + 'd.jpg,cat,val,"1,5"\ne.jpg,cat,val,inf\n', "but is not in 2 rows: row 5 (1,5), row 6 (inf)."),
        (GOOD + "./x/../a.jpg,cat,val,1\n", "only one row, but is repeated in 1 row: row 5 (./x/../a.jpg, as row 2)"),
        (GOOD + "x.jpg,cat,val,1\n", "existing file, relative to {} or absolute, but does not in 1 row: row 5 (x.jpg)"),
        (GOOD + "d.jpg,owl,val,1\n", "each label of val must also be a label of train, but 1 of 2 is not: owl. Hint"),
        ("path,label,split\na.jpg,cat,train\n", "must have rows whose split is val, but has none."),
        ("path,label\na.jpg,cat\n", "must have rows whose split is val, but has none. Hint: "),
        ("path,label,split\n", "must have rows whose split is train, but has none."),
        ("path,species\na.jpg,cat\n", "no label: its columns are path, species. Hint: for other names"),
        ("a.jpg,cat\n", "a row of column names, but begins with a.jpg, cat. Hint: remove comments"),
    ],
)  # fmt: skip
def test_one_mistake(content: str, said: str, tmp_path: Path):
    texts = found(tmp_path, content)
    assert [said.format(tmp_path) in text for text in texts].count(True) == 1, texts
    assert all("Hint: " in text for text in texts)
    assert len(texts) <= 3


def test_all_kinds_are_found_at_once_and_ten_rows_of_each_are_named(tmp_path: Path):
    wrong = "".join(f"{number}.jpg,,other,zero\n" for number in range(1200))
    texts = found(tmp_path, GOOD + wrong)
    assert len(texts) == 3
    for text in texts:
        assert " in 1,200 rows: row 5" in text
        assert ", row 14" in text and "row 15" not in text
        assert "and 1,190 more. Hint:" in text


@pytest.mark.parametrize(
    ("splits", "used"),
    [
        (["Training", "train", "Valid"], ["train", "train", "val"]),
        (["train", "train", "DEV"], ["train", "train", "val"]),
        (["train", "train", "Test"], ["train", "train", "val"]),
        (["train", "train", "validation", "test"], ["train", "train", "val"]),
    ],
)
def test_splits_have_the_names_that_folders_may_have(splits: list[str], used: list[str], tmp_path: Path):
    rows = zip("abcd", ("cat", "dog", "cat", "dog"), splits, strict=False)
    assert (
        found(tmp_path, "path,label,split\n" + "".join(f"{name}.jpg,{label},{split}\n" for name, label, split in rows))
        == []
    )
    table = read_table(keys(tmp_path / "t.csv"))
    assert [row.split for row in table.rows] == used
    assert ("Left out: 1 row of split test" in table.note) == (len(splits) > len(used))


@pytest.mark.parametrize("first", ["a.jpg,cat", "# made by hand"])
def test_a_table_without_a_row_of_column_names(first: str, tmp_path: Path):
    (text,) = found(tmp_path, f"{first}\npath,label\nb.jpg,dog\n")
    assert "must begin with a row of column names, but begins with " + first.replace(",", ", ") in text
    assert text.endswith("or write it: path,label.")


def test_files_are_looked_for_once_the_rows_are_right(tmp_path: Path):
    gone = "".join(f"{number}.jpg,cat,train,1\n" for number in range(12))
    (text,) = found(tmp_path, GOOD + gone)
    assert "row 5 (0.jpg), " in text and "row 14 (9.jpg) and 2 more" in text
    assert found(tmp_path, GOOD + gone, "evaluate") == []  # of the training images alone
    (text,) = found(tmp_path, "path,label,split\na.jpg,cat,train\ngone.jpg,cat,val\n", "evaluate")
    assert "row 3 (gone.jpg)" in text


def test_evaluation_takes_all_rows_of_a_table_without_split(tmp_path: Path):
    assert found(tmp_path, "path,label\na.jpg,cat\nb.jpg,dog\n", "evaluate") == []
    assert len(read_table(keys(tmp_path / "t.csv"), Purpose.EVALUATE).of_split("val")) == 2
    assert found(tmp_path, "path,label,split\na.jpg,cat,val\n", "evaluate") == []
    assert len(found(tmp_path, "path,label,split\na.jpg,cat,train\n", "evaluate")) == 1


def test_training_needs_two_labels(tmp_path: Path):
    content = "path,label,split\na.jpg,cat,train\nb.jpg,cat,val\n"
    assert "must have at least two labels, but all have cat" in found(tmp_path, content)[0]
    assert found(tmp_path, content, "evaluate") == []


def test_columns_of_other_names(tmp_path: Path):
    content = "file,breed,fold\na.jpg,pug,train\nc.jpg,husky,train\nb.jpg,pug,val\n"
    args = {"path": "file", "label": "breed", "split": "fold"}
    assert found(tmp_path, content, args=args) == []
    (text,) = found(tmp_path, content, args={"path": "file", "label": "bread"})
    assert "must have the columns file and bread, but has no bread" in text
    (text,) = found(tmp_path, content, args={**args, "weight": "importance"})
    assert "but has no importance" in text  # a name that is typed is meant
    (text,) = found(tmp_path, content, args={"labels": "breed"})
    assert text.startswith("data.args of data=table must be among path, label, split, weight, group, got labels.")


@pytest.mark.parametrize(
    ("header", "name"),
    [("path,label,label", "label"), ("Path,label,path", "path"), ("path,label,split,Split", "split")],
)
def test_two_columns_of_one_name_are_refused(tmp_path: Path, header: str, name: str):
    row = ",".join(["a.jpg", "cat", "dog", "train"][: header.count(",") + 1])
    (text,) = found(tmp_path, f"{header}\n{row}\n")
    assert f"must have one column of each name, but has 2 columns {name}. Hint: give the right one" in text
    assert text.endswith(f"set +data.args.{name}={name}_used.")
    assert found(tmp_path, "path,label,note,note\na.jpg,cat,1,2\nb.jpg,dog,1,2\n", val_fraction=0.5) == []


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["cat;cute", "dog"], "1 label of 2 joins several names (cat;cute): each"),
        (["cat|cute", "dog | wet", "dog"], "2 labels of 3 join several names (cat|cute, dog | wet): each"),
        (["cat, cute", "cat"], "1 label of 2 joins several names (cat, cute): each"),
        (["tench, Tinca tinca", "crane, bird", "crane"], "1 label of 3 joins several names (crane, bird): each"),
        (["tench, Tinca tinca", "goldfish, Carassius auratus", "a; "], ""),
    ],
)
def test_joined_labels_are_said_to_be_one_class_each(tmp_path: Path, labels: list[str], said: str):
    rows = "".join(f'{number}.jpg,"{label}",{split}\n' for number, (label, split) in enumerate(
        (label, split) for label in labels for split in ("train", "val")
    ))  # fmt: skip
    (tmp_path / "t.csv").write_text(f"path,label,split\n{rows}")
    found = scan(keys(tmp_path / "t.csv"), 0)
    assert found.open is not None
    notes = found.open().notes
    assert said in " ".join(notes) and len(notes) == 1 + bool(said)


def test_the_root(tmp_path: Path):
    for root, said in ((tmp_path / "gone.csv", "is not a file"), (tmp_path, f"data.root={tmp_path}")):
        (text,) = map(str, scan(keys(root), 0).mistakes)
        assert text.startswith("data.root must be the table of the images") and said in text


def test_missing_files_are_found_among_links_pipes_and_folders(tmp_path: Path):
    (tmp_path / "a").mkdir()
    for number in range(3000):
        (tmp_path / "a" / f"{number}.jpg").touch()
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "link.jpg").symlink_to("a/0.jpg")
    (tmp_path / "dead.jpg").symlink_to("gone")
    good = ["link.jpg", *(f"a/{number}.jpg" for number in range(3000))]
    wrong = ["pipe.jpg", "a", "dead.jpg", "/dev/null", "a/gone.jpg", "a/0.jpg/x", "a\0b"]
    assert find_missing(tmp_path, [*wrong, *good]) == list(range(7))
    assert find_missing(tmp_path, wrong, budget_s=0) == []  # a disk that is too slow is not waited for


NAMES = {name: name for name in ("path", "label", "split", "weight")}


def read(folder: Path, content: str | bytes, name: str = "a.csv") -> Cells:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_cells(path, NAMES)


@pytest.mark.parametrize(
    "content",
    [
        "path,label\na/1.jpg,cat\nb.jpg,7\n",
        "\ufeffpath,label\r\na/1.jpg,cat\r\nb.jpg,7\r\n",
        "Path;Label\na/1.jpg;cat\nb.jpg;7",
        "path\tlabel\na/1.jpg\tcat\nb.jpg\t7\n",
        'path, label\n"a/1.jpg", "cat"\nb.jpg, 7\n',
        "id,label,path\n0,cat,a/1.jpg\n1,7,b.jpg\n",
    ],
)
def test_the_forms_in_which_csv_is_written(content: str, tmp_path: Path):
    found = read(tmp_path, content)
    assert found.columns == {"path": ["a/1.jpg", "b.jpg"], "label": ["cat", "7"]}
    assert (list(found.numbers), found.ragged) == ([2, 3], [])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "a.csv",
            b"path,label\n\xff\xd8.jpg,cat\n",
            r"must be a CSV file, .*utf-8.*position 11.* Hint: save the table as .*In Excel: .*in LibreOffice: ",
        ),
        ("a.parquet", b"path,label\n", "a.parquet must be a Parquet file, but cannot be read as one: .* Hint: save"),
    ],
)
def test_what_is_no_table(name: str, content: str | bytes, said: str, tmp_path: Path):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, content, name)


def test_parquet_gives_the_same_cells(tmp_path: Path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table(
        {
            "label": pyarrow.array(["cat", None, "dog"]).dictionary_encode(),
            "Path": ["a.jpg", "b.jpg", "c.jpg"],
            "fold": [0, 1, 2],
            "weight": [1, 2.5, None],
            "split": [True, False, True],
        }
    )
    parquet.write_table(table, tmp_path / "a.PARQUET")
    found = read_cells(tmp_path / "a.PARQUET", {**NAMES, "split": "fold"})
    assert found.columns == {
        "path": ["a.jpg", "b.jpg", "c.jpg"],
        "label": ["cat", "", "dog"],
        "split": ["0", "1", "2"],
        "weight": ["1.0", "2.5", ""],
    }
    assert list(found.numbers) == [1, 2, 3]


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pyarrow.parquet", raising=False)
    with pytest.raises(ConfigError, match=r"needs the package pyarrow, .*install .*'pyarrow\S*'`, or save the"):
        read(tmp_path, b"PAR1", "a.parquet")


# ---- the images of a table


def opened(root: Path, name: str = "table", **more: Any) -> Source:
    """The source, whose images need not exist."""
    found = scan(DataConfig.of(name=name, root=str(root), **more), 3)
    assert found.open is not None
    return found.open()


def paths(images: Images | None) -> list[str]:
    assert isinstance(images, FileImages)
    return [str(Path(images.path(index)).resolve()) for index in range(len(images))]


def assert_same(one: Images | None, other: Images | None) -> None:
    assert one is not None and other is not None
    assert paths(one) == paths(other)
    assert one.targets.tolist() == other.targets.tolist() and one.targets.dtype == np.int64
    assert one.weights is None


@pytest.mark.parametrize("absolute", [False, True])
def test_the_same_images_as_of_folders(absolute: bool, tmp_path: Path):
    write_images(tmp_path / "train", {"cat": 3, "dog": 4, "owl": 2})
    write_images(tmp_path / "val", {"cat": 1, "dog": 2, "owl": 1})
    source = opened(write_table(tmp_path / "t.csv", tmp_path, absolute=absolute))
    expected = opened(tmp_path, "imagefolder")
    assert source.classes == source.labels == expected.classes == ["cat", "dog", "owl"]
    assert_same(source.train, expected.train)
    assert_same(source.val, expected.val)
    assert source.train is not None and expected.train is not None
    assert torch.equal(source.train.read(5), expected.train.read(5))
    assert source.train.encoded(5) == expected.train.encoded(5)
    assert paths(pickle.loads(pickle.dumps(source.train))) == paths(expected.train)


def test_weights_are_of_the_training_images(tmp_path: Path):
    rows = [f"{number}.jpg,{'ab'[number % 2]},{number + 1}" for number in range(8)]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,weight", *rows]))
    source = opened(tmp_path / "t.csv", val_fraction=0.5)
    train, val = source.train, source.val
    assert train is not None and train.weights is not None and val is not None
    assert train.weights.dtype == np.float32
    assert train.weights.tolist() == [int(Path(path).stem) + 1 for path in paths(train)]
    assert (len(train), len(val), val.weights) == (4, 4, None)
    low, high, mean = train.weights.min(), train.weights.max(), train.weights.mean()
    assert source.notes[1] == (
        f"The loss of each training image is multiplied by its weight, {low:g} to {high:g}, {mean:.4g} on average."
    )


def test_the_digest_tells_tables_apart(tmp_path: Path):
    head, rows = "path,label,split,weight\n", ["a.jpg,x,train,1\n", "b.jpg,y,train,1\n", "c.jpg,x,val,1\n"]
    others = [
        rows, rows[::-1], [rows[0], rows[1].replace("1", "2"), rows[2]], [rows[0], rows[1].replace("b", "d"), rows[2]],
        [rows[0], rows[1].replace("y", "x"), rows[2], "e.jpg,y,train,1\n"],
    ]  # fmt: skip
    digests = []
    for content in others:
        (tmp_path / "t.csv").write_text(head + "".join(content))
        digests.append(opened(tmp_path / "t.csv").digest)
    assert len(set(digests)) == len(others)
    assert opened(tmp_path / "t.csv").digest == digests[-1]


@pytest.mark.slow
def test_two_ranks_train_by_a_table_with_weights(tree: Path, run: Run, tmp_path: Path):
    table = write_table(tmp_path / "t.csv", tree, absolute=True, weight=lambda path: 3 if "owl" in path.parts else 1)
    options = ["data=table", f"data.root={table}", "data.sampling=balanced", "trainer.devices=2"]
    done = run("train", *SMALL[1:], *options, "hydra.run.dir=weighted")
    assert done.returncode == 0, done.stdout + done.stderr
    log = next((tmp_path / "weighted" / "logs").glob("*0*")).read_text()
    assert "Each class is equally frequent in training." in log
    assert "multiplied by its weight, 1 to 3, 1.621 on average." in log
    with (tmp_path / "weighted" / "metrics.csv").open(newline="") as file:
        val_loss = float(list(csv.DictReader(file))[-1]["val/loss"])
    options = ["data=imagefolder", f"data.root={tree}", "hydra.run.dir=folders"]
    done = run("evaluate", "checkpoint=weighted/checkpoints/last.ckpt", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    evaluation = json.loads((tmp_path / "folders/evaluation.json").read_text())
    assert evaluation["num_val_images"] == 11
    assert evaluation["val/loss"] == pytest.approx(val_loss, abs=1e-5)  # a validation has no weights
