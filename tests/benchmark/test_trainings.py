from pathlib import Path

import pytest

from imagenet_ddp.benchmark.trainings import Trainings
from imagenet_ddp.errors import RunError


@pytest.mark.parametrize(
    ("printed", "hint"),
    [
        ("print('no memory'); ", "read its last log lines:\nno memory"),
        ("", "check whether the disk of {} is full, because the log of that run is empty."),
    ],
)
def test_a_failed_run(printed: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "measured.py").write_text(f"{printed}raise SystemExit(3)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RunError) as caught:
        Trainings([], tmp_path)._run(["-m", "measured"], tmp_path / "0")
    assert str(caught.value) == f"a measured run ended with exit code 3. Hint: {hint.format(tmp_path.parent)}"
