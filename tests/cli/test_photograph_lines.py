"""The lines for photographs that commands print are those of README, so that its next steps can be typed after them."""

from pathlib import Path

import pytest

from imagenet_ddp.cli.photograph_lines import RUN, check_line, train_line

README = Path(__file__).parents[2] / "README.md"


def test_they_are_those_of_readme_until_its_run_folder_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    readme, steps = README.read_text(encoding="utf-8"), (f"report {RUN}\n", f"predict checkpoint={RUN} images=")
    monkeypatch.chdir(tmp_path)
    readme = readme.replace(" \\\n        ", " ")  # the shell joins such lines
    assert all(f" {line('data.root=FOLDER')}\n" in readme for line in (check_line, train_line))
    assert all(f"python -m imagenet_ddp.{step}" in readme for step in steps)
    (RUN / "checkpoints").mkdir(parents=True)
    (RUN / "summary.json").touch()
    assert train_line().endswith(f" hydra.run.dir={RUN}2")
