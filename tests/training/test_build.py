from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import write_images
from helpers.plans import plan_of

from imagenet_ddp.distributed.compare_members import differences
from imagenet_ddp.launch.world import World
from imagenet_ddp.training.build import make_data, make_module


def test_double_precision_begins_before_a_checkpoint_is_loaded(tmp_path: Path):
    """Lightning converts the net only after that, so its weights would be rounded to float32."""
    plan = plan_of("trainer.precision=64-true", "model.name=mobilenet_v3_small", environ={"HOME": str(tmp_path)})
    module = make_module(plan, list("abc"), 10)
    assert {value.dtype for value in module.net.state_dict().values()} == {torch.float64, torch.int64}
    assert module.dtype == torch.float64


def test_ranks_that_list_other_images_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each rank walks the folders itself: as many images under other names would be another order."""
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "train", {"cat": 2, "dog": 2})
    write_images(tmp_path / "val", {"cat": 1, "dog": 1})
    plan = plan_of("data=imagefolder", f"data.root={tmp_path}")
    found = []
    group: Any = SimpleNamespace(require_equal=lambda key, facts, timeout_s: found.append(facts))

    def facts():
        make_data(plan, World(plan.place, plan.device, meeting=group), print)
        return found[-1]

    first = facts()
    assert differences(dict(enumerate([first, facts()])), "rank") == []
    next((tmp_path / "train" / "cat").iterdir()).rename(tmp_path / "train" / "cat" / "renamed.png")
    (mistake,) = differences(dict(enumerate([first, facts()])), "rank")
    assert mistake.startswith("the ranks disagree on the names of the images: ")
