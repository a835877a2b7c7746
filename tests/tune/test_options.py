"""imagenet_ddp.tune.options: the search space of a study."""

from pathlib import Path

import pytest

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.tune.options import read

pytest.importorskip("optuna", reason="the extra `tune` is not installed")


@pytest.mark.parametrize(
    ("typed", "low", "high"),
    [
        (["data=shapes"], 0.0001, 0.01),  # its recipe has AdamW
        (["optim=sgd"], 0.005, 0.5),
        (["optim=sgd", "search=auto", "++search.optim.lr.high=0.1"], 0.005, 0.1),
        (["data=shapes", "search=sgd"], 0.005, 0.5),
    ],
)
def test_the_space_is_that_of_the_optimizer(
    typed: list[str], low: float, high: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    plan = read([*typed, "trainer.accelerator=cpu"], {})
    assert plan.space["optim.lr"] == {"low": low, "high": high, "log": True}
    plan.store()
    resumed = read([f"tune.resume={plan.folder}"], {})
    assert resumed.space == plan.space


def test_another_optimizer_needs_a_space_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^search=auto needs optim\.name=sgd or optim\.name=adamw, got lion\."):
        read(["optim=lion"], {})
    plan = read(["optim=lion", "search=none", "++search.optim.lr={low:0.01,high:1,log:true}"], {})
    assert list(plan.space) == ["optim.lr"]
