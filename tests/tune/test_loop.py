import os

import pytest

pytest.importorskip("optuna", reason="the extra `tune` is not installed")

from imagenet_ddp.tune import loop


def test_a_study_goes_on_without_a_reader(monkeypatch: pytest.MonkeyPatch):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        loop.say("trial 0 starts")
        loop.say("  python -m imagenet_ddp.train", whole=True)
