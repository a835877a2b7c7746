"""summary.json says that a run is finished: it must not outlive what it summarises."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from imagenet_ddp.callbacks import History
from imagenet_ddp.runs import summary


def test_results_are_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[int] = set()
    monkeypatch.setattr(os, "fsync", lambda number: synced.add(os.fstat(number).st_ino))
    summary.write_json(tmp_path / "summary.json", {"val/top1": float("nan")})
    assert (tmp_path / "summary.json").read_text() == '{\n  "val/top1": null\n}\n'
    history, trainer = History(tmp_path), SimpleNamespace(is_global_zero=True)
    trainer_of: Any = trainer
    history.rows = [{"epoch": 1}]
    history._write(trainer_of)
    expected = [tmp_path, tmp_path / "summary.json", tmp_path / "metrics.csv"]
    assert synced == {path.stat().st_ino for path in expected}
