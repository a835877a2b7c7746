import os
from pathlib import Path

import pytest

from imagenet_ddp.system.files import nearest_existing, not_writable_reason


def test_what_is_in_the_way_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for path in (Path("a/b/c"), tmp_path / "a" / "b", tmp_path):
        assert (not_writable_reason(path), nearest_existing(path)) == ("", tmp_path)
    assert not_writable_reason(Path("file/a")) == f"{tmp_path}/file is a file"
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    assert not_writable_reason(Path("a/b")) == f"{tmp_path} is not writable"
