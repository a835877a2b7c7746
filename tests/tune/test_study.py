"""A study folder of a stranger: its database chooses the values of a trial, and nothing else."""

import json
from pathlib import Path

import pytest
import yaml

from imagenet_ddp.config.schema.tune import TuneOptions
from imagenet_ddp.runs.signals import Signals
from imagenet_ddp.tune.search_space import read
from imagenet_ddp.tune.study_plan import StudyPlan


def test_the_options_of_a_trial_are_those_of_its_values(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    from imagenet_ddp.tune.study import NUMBER, OPTIONS, Study

    (parameter, *_), mistakes = read({"optim": {"momentum": {"low": 0.1, "high": 0.9}}}, [])
    assert not mistakes
    plan = StudyPlan((), (), TuneOptions(), 0, False, (parameter,), (), tmp_path)
    attributes = {NUMBER: 0, OPTIONS: ["model._target_=os.system"]}
    Study(plan, Signals())._study.enqueue_trial({"optim.momentum": 0.5}, user_attrs=attributes)
    assert Study(plan, Signals()).next_trial() == (0, ("optim.momentum=0.5",))


@pytest.mark.parametrize("value", [0.5, "0.1\x1b[2J", None])
def test_the_best_trial_tells_nobody_to_type_stored_options(
    value: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    optuna = pytest.importorskip("optuna")
    from imagenet_ddp.tune.study import NUMBER, OPTIONS, Study

    (parameter, *_), _ = read({"optim": {"momentum": {"low": 0.1, "high": 0.9}}}, [])
    study = Study(StudyPlan((), (), TuneOptions(), 0, False, (parameter,), (), tmp_path), Signals())
    key, attributes = "optim.momentum", {NUMBER: 0, OPTIONS: ["model._target_=os.system", "name=\x1b[2J"]}
    known = {key: parameter.distribution if value == 0.5 else optuna.distributions.CategoricalDistribution([value])}
    trial = optuna.trial.create_trial(params={key: value}, distributions=known, value=0.9, user_attrs=attributes)
    study._study.add_trial(trial)
    assert study._end() == 0
    printed, best = capsys.readouterr().out, yaml.safe_load((tmp_path / "best.yaml").read_text())
    assert "os.system" not in printed + json.dumps(best) and "\x1b" not in printed
    assert best["options"] == (["optim.momentum=0.5"] if value == 0.5 else [])
