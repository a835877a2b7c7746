import os
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("optuna", reason="the extra `tune` is not installed")

from imagenet_ddp.tune import loop


def test_the_epochs_of_a_trial_are_its_own_if_they_are_searched():
    study: Any = SimpleNamespace(plan=SimpleNamespace(max_epochs=30))
    assert loop.Loop._max_epochs(study, ["optim.lr=0.1"]) == 30
    assert loop.Loop._max_epochs(study, ["optim.lr=0.1", "trainer.max_epochs=2"]) == 2


def test_a_study_goes_on_without_a_reader(monkeypatch: pytest.MonkeyPatch):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        loop.say("trial 0 starts")
        loop.say("  python -m imagenet_ddp.train", whole=True)
