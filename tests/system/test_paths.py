import os
from pathlib import Path

import pytest

from imagenet_ddp.system.paths import nearest_folder, obstacle, shown_path


def test_what_is_in_the_way_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for path in (Path("a/b/c"), tmp_path / "a" / "b", tmp_path):
        assert (obstacle(path), nearest_folder(path)) == ("", tmp_path)
    assert obstacle(Path("file/a")) == f"{tmp_path}/file is a file"
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    assert obstacle(Path("a/b")) == f"{tmp_path} cannot be written in"


def test_a_relative_path_says_where_it_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert [shown_path(Path("a")), shown_path(Path("/a"))] == [f"a ({tmp_path}/a)", "/a"]
