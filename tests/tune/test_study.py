"""A study folder of a stranger: its database chooses the values of a trial, and nothing else."""

from pathlib import Path

import pytest

from imagenet_ddp.config.schema.commands import TuneOptions
from imagenet_ddp.runs.signals import Signals
from imagenet_ddp.tune.options import Plan
from imagenet_ddp.tune.search_space import read


def test_the_options_of_a_trial_are_those_of_its_values(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    from imagenet_ddp.tune.study import NUMBER, OPTIONS, Study

    (parameter, *_), mistakes = read({"optim": {"momentum": {"low": 0.1, "high": 0.9}}}, [])
    assert not mistakes
    plan = Plan((), (), TuneOptions(), 0, False, (parameter,), (), tmp_path)
    attributes = {NUMBER: 0, OPTIONS: ["model._target_=os.system"]}
    Study(plan, Signals())._study.enqueue_trial({"optim.momentum": 0.5}, user_attrs=attributes)
    assert Study(plan, Signals()).next_trial() == (0, ("optim.momentum=0.5",))
