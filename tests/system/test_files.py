import os
import stat
from pathlib import Path
from urllib.parse import quote

import pytest

from imagenet_ddp.system.files import atomic_path, atomic_write, beside, nearest_existing, not_writable_reason


def test_text_and_bytes_replace_what_was_there(tmp_path: Path):
    path = tmp_path / "summary.json"
    for content in ("grün\n", b"\xff\x00"):
        atomic_write(path, content, sync=True)
        assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]


def test_what_breaks_off_leaves_the_file_before_and_no_draft(tmp_path: Path):
    path = tmp_path / "metrics.csv"
    atomic_write(path, "whole")
    with pytest.raises(UnicodeEncodeError):
        atomic_write(path, "\udcff")
    with pytest.raises(OSError, match="full"), atomic_path(path) as draft:  # noqa: PT012
        draft.write_text("ha")
        assert path.read_text() == "whole" and draft.parent == tmp_path
        raise OSError("full")
    assert path.read_text() == "whole"
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.csv"]


def test_rights(tmp_path: Path):
    os.umask(0o027)
    atomic_write(tmp_path / "text", "")
    assert stat.S_IMODE((tmp_path / "text").stat().st_mode) == 0o640


def test_what_is_in_the_way_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for path in (Path("a/b/c"), tmp_path / "a" / "b", tmp_path):
        assert (not_writable_reason(path), nearest_existing(path)) == ("", tmp_path)
    assert not_writable_reason(Path("file/a")) == f"{tmp_path}/file is a file"
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    assert not_writable_reason(Path("a/b")) == f"{tmp_path} is not writable"


def test_a_missing_path_is_likely_one_of_a_similar_name_or_one_that_was_cut_at_a_space(tmp_path: Path):
    for name in ("photos of June", "photo", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "other/2026").mkdir()
    assert beside(tmp_path / "2026", Path.is_dir) == tmp_path / "other/2026"
    (tmp_path / "photo/2026").mkdir()  # which of both?
    assert beside(tmp_path / "2026", Path.is_dir) is None
    near = {name: beside(tmp_path / name, Path.is_dir) for name in ("fotos", "photos", "photos of", "o", "x", "ther")}
    found = {name: path.name for name, path in near.items() if path}
    assert found == {"fotos": "photo", "photos": "photo", "photos of": "photos of June", "ther": "other"}
    assert beside(Path("/"), Path.is_dir) is None
    (tmp_path / "run2.csv").touch()
    assert [beside(tmp_path / name, Path.is_file) for name in ("run3.csv", "x.csv")] == [None, None]
    assert beside(tmp_path / "run2.cvs", Path.is_file) == beside(tmp_path / "rum2.csv", Path.is_file) is not None


@pytest.mark.parametrize("form", ["\u201c{}\u201d", "{}/*", "{}/*.*", "'{}'", "file://{url}", "{escaped}", "{}\\"])
def test_a_path_in_the_form_of_another_program_is_that_path(form: str, tmp_path: Path):
    folder = tmp_path / "my photos"
    folder.mkdir()
    typed = form.format(folder, url=quote(str(folder)), escaped=str(folder).replace(" ", "\\ "))
    assert beside(Path(typed), Path.is_dir) == folder
    assert beside(Path(typed), Path.is_file) is None


def test_a_path_of_windows_is_looked_for_where_wsl_has_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == "/mnt/c/Users/ann/my photos")
    assert str(beside(Path("C:\\Users\\ann\\my photos"), lambda path: True)) == "/mnt/c/Users/ann/my photos"
