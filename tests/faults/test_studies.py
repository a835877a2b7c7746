"""Two searches at once."""

from pathlib import Path

import pytest
from conftest import SMALL, clean_environ
from faults.trainings import end, told, wait_for
from helpers.forked_commands import Command

pytest.importorskip("optuna", reason="the extra `tune` is not installed")


@pytest.mark.slow
def test_two_tunes(tree: Path, tmp_path: Path) -> None:
    """A second tune is started on a running study: the second tune is refused, and the first one runs each
    trial once."""
    small = [option for option in SMALL if not option.startswith("optim.lr")]
    options = [*small, f"data.root={tree}", "trainer.max_epochs=1", "search=none", "search.optim.lr=[0.01,0.02]",
               "tune.num_trials=2", "hydra.run.dir=s"]  # fmt: skip

    def tune(*words: str) -> Command:
        return Command("imagenet_ddp.tune", *words, folder=tmp_path, environment=clean_environ())

    first = tune(*options)
    wait_for((tmp_path / "s/trials/0").exists, first)
    refused = end(tune(*options))
    assert refused.code == 2
    told(refused, "s must be free, but another process trains in it. Hint: wait until it ends, or stop it first.")
    assert first.wait(240) == 0, first.err
    assert "2 trials: 2 finished." in first.out
