"""The command prepare: what it refuses, all at once and without torch, and its exit codes."""

from pathlib import Path

import pytest
from conftest import Run
from test_startup import HEAVY

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.prepare import options


def said(stderr: str) -> str:
    return " ".join(stderr.split())


def test_every_mistake_at_once(run: Run, tmp_path: Path):
    (tmp_path / "a_file").touch()
    done = run("prepare", "prepare=imagenet", "archive_dir=gone", "out=a_file/x",
               "data.batch_size=0", PYTHONPROFILEIMPORTTIME="1")  # fmt: skip
    assert done.returncode == 2
    text = said("\n".join(line for line in done.stderr.splitlines() if not line.startswith("import time")))
    for part in (
        "3 mistakes",
        "data.batch_size must be an integer ≥ 1, got 0",
        f"archive_dir must be a folder, but gone ({tmp_path / 'gone'}) is not one",
        f"out must be a folder that can be created ({tmp_path / 'a_file' / 'x'}), but {tmp_path / 'a_file'} is",
    ):
        assert part in text
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert not imported & HEAVY
    assert [path.name for path in tmp_path.iterdir()] == ["a_file"]


def test_a_pack_is_made_outside_of_its_images(run: Run, tmp_path: Path):
    """It would be one of the classes."""
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        (tmp_path / "pets" / name / "1.jpg").touch()
    done = run("prepare", "prepare=pack", "data=imagefolder", "data.root=pets", "out=pets/packed")
    assert (done.returncode, "out must be outside data.root (pets), got pets/packed" in said(done.stderr)) == (2, True)


@pytest.mark.parametrize(
    ("line", "layout"), [("prepare=check", "experiment=own_photos"), ("prepare=pack out=packed", "data=imagefolder")]
)
def test_images_are_not_generated_unless_that_is_typed(
    line: str, layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"{line.split()[0]} needs your images") as caught:
        options.read(line.split(), {})
    assert caught.value.mistakes[0].fixes[0].options[:1] == (layout,)
    assert options.read([*line.split(), "data=shapes"], {}).config.data.name == "shapes"
