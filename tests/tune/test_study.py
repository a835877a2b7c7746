"""The study beyond the life of its command: interrupted trials."""

from pathlib import Path
from typing import Any

import pytest

optuna = pytest.importorskip("optuna", reason="the extra `tune` is not installed")
from optuna.trial import TrialState  # noqa: E402

from imagenet_ddp.tune.space import read  # noqa: E402
from imagenet_ddp.tune.study import Study  # noqa: E402

OPTIONS = {"sampler": "tpe", "num_random_trials": 10, "pruner": "none", "pruner_num_epochs": 1}
SPACE: dict[str, Any] = {
    "optim.lr": {"low": 0.01, "high": 1.0},
    "data.crop_scale": {"choices": [[0.1, 1.0], [0.2, 1.0]]},
}


def study(folder: Path) -> Study:
    """As a new command opens it."""
    parameters, found = read(SPACE, ())
    assert found == []
    return Study(folder, OPTIONS, 0, parameters)


def run(of: Study, top1: float = 0.5) -> tuple[int, tuple[str, ...]]:
    number, options = of.next_trial()
    of.end(number, TrialState.COMPLETE, top1, 3)
    return number, options


def test_an_interrupted_trial_keeps_its_number_and_its_values(tmp_path: Path):
    """Also one that is interrupted twice; those after it draw what they would have drawn without."""
    straight = study(tmp_path)
    expected = [run(straight) for _ in range(4)]
    other = tmp_path / "other"
    other.mkdir()
    first = study(other)
    assert run(first) == expected[0]
    begun = [first.next_trial() for _ in range(2)]
    assert first.report(1, {1: 0.3, 2: 0.4}) is None
    resumed = first
    for _ in range(2):
        resumed = study(other)
        assert resumed.requeue() == 2
        assert resumed.counts() == "3 trials: 1 finished, 2 stopped."
        assert [resumed.next_trial(), resumed.next_trial()] == begun == expected[1:3]
        assert resumed.counts() == "3 trials: 1 finished, 2 running."
    assert resumed.report(1, {1: 0.3, 2: 0.4}) is None
    for number, top1 in ((1, 0.9), (2, 0.6)):
        resumed.end(number, TrialState.COMPLETE, top1, 3)
    assert run(resumed) == expected[3]
    assert resumed.counts() == "4 trials: 4 finished."
    assert (resumed.best().values, resumed.best().user_attrs["run"]) == ([0.9], 1)
    assert study(other).requeue() == 0


def test_a_command_that_is_killed_while_it_resumes_loses_no_trial_and_doubles_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    begun = study(tmp_path).next_trial()
    with monkeypatch.context() as patch:
        patch.setattr(optuna.Study, "tell", lambda *_, **__: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            study(tmp_path).requeue()
    resumed = study(tmp_path)
    assert resumed.requeue() == 1
    assert resumed.next_trial() == begun
    assert resumed.counts() == "1 trial: 1 running."
