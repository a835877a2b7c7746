"""What is written, and what is left as it is."""

import errno
import io
from pathlib import Path
from typing import Any

import pytest

from imagenet_ddp.report import files
from imagenet_ddp.report.files import CSV_HEAD, MARKER, write

OURS = {"report.md": f"<!-- {MARKER} -->\n".encode(), "report.csv": CSV_HEAD + b"x\n"}


def test_own_files_are_replaced_and_others_kept(tmp_path: Path):
    folder = tmp_path / "new/folder"
    assert write(folder, OURS) == files.Outcome(["report.md", "report.csv"])
    assert write(folder, {**OURS, "report.md": OURS["report.md"] + b"more"}).written == ["report.md", "report.csv"]
    assert (folder / "report.md").read_bytes().endswith(b"more")
    (folder / "report.md").write_text("my own notes")
    (folder / "report.csv").unlink()
    (folder / "report.csv").mkdir()
    assert write(folder, OURS) == files.Outcome([], ["report.md", "report.csv"])
    assert (folder / "report.md").read_text() == "my own notes"
    assert sorted(path.name for path in folder.iterdir()) == ["report.csv", "report.md"]


def test_links_are_not_written_through(tmp_path: Path):
    (tmp_path / "elsewhere").write_bytes(OURS["report.md"])
    (tmp_path / "report.md").symlink_to(tmp_path / "elsewhere")
    assert write(tmp_path, {"report.md": OURS["report.md"] + b"new"}).foreign == ["report.md"]
    assert (tmp_path / "elsewhere").read_bytes() == OURS["report.md"]


def test_what_no_longer_holds_is_removed_where_it_is_ours(tmp_path: Path):
    write(tmp_path, OURS)
    (tmp_path / "mine.png").write_bytes(b"mine")
    assert write(tmp_path, {"report.md": None, "mine.png": None, "never.png": None}) == files.Outcome()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.png", "report.csv"]


def test_a_folder_that_cannot_be_written_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    assert write(tmp_path / "file" / "below", OURS).error == "Not a directory"

    class Full(io.BytesIO):
        def write(self, content: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    def full(self: Path, mode: str) -> Full:
        self.touch()
        return Full()

    monkeypatch.setattr(Path, "open", full)
    assert write(tmp_path, OURS) == files.Outcome(error="No space left on device")
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nothing half-written stays"
