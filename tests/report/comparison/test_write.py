"""Write the report's files, and leave others as they are."""

from pathlib import Path

from imagenet_ddp.report.comparison.write import CSV_HEADERS, MARKER, write_files

OURS = {"report.md": f"<!-- {MARKER} -->\n".encode(), "report.csv": CSV_HEADERS[0] + b"x\n"}


def test_own_files_are_replaced_and_others_left(tmp_path: Path):
    folder = tmp_path / "new/folder"
    assert write_files(folder, OURS) == (["report.md", "report.csv"], [])
    write_files(folder, {**OURS, "report.md": OURS["report.md"] + b"more"})
    assert (folder / "report.md").read_bytes().endswith(b"more")
    (folder / "report.md").write_text("my own notes")
    (folder / "report.csv").unlink()
    (folder / "report.csv").mkdir()
    assert write_files(folder, OURS) == ([], ["report.md", "report.csv"])
    assert (folder / "report.md").read_text() == "my own notes"


def test_links_are_not_followed(tmp_path: Path):
    (tmp_path / "elsewhere").write_bytes(OURS["report.md"])
    (tmp_path / "report.md").symlink_to(tmp_path / "elsewhere")
    assert write_files(tmp_path, {"report.md": b"new"}) == ([], ["report.md"])
    assert (tmp_path / "elsewhere").read_bytes() == OURS["report.md"]
