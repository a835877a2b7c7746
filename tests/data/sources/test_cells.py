import sys
from pathlib import Path

import pytest

from imagenet_ddp.data.sources.cells import Cells, read_cells
from imagenet_ddp.errors import ConfigError

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
            r"must be a CSV file, .*utf-8.*position 11.* Hint: save the table as",
        ),
        ("a.csv", 'path,label\na.jpg,"cat\n' + "b.jpg,dog\n" * 20_000, "field larger than field limit.*all quotes"),
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
    assert (list(found.numbers), found.ignored) == ([1, 2, 3], ["split"])


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pyarrow.parquet", raising=False)
    with pytest.raises(ConfigError, match=r"needs pyarrow, .*install .*'imagenet_ddp\[parquet\]'`, or save the"):
        read(tmp_path, b"PAR1", "a.parquet")
