"""Exceptions with which a user's own code would end a loop of Lightning or torch, or the process, without being a
failure."""

import json
from pathlib import Path

import pytest
from conftest import PROBES, Run

OPTIONS = (
    "allow_targets=[ends.source,ends.Net,ends.Callback,ends.Logger]",
    "data._target_=ends.source", "model._target_=ends.Net", "data.image_size=32",
    "data.batch_size=4", "trainer.accelerator=cpu", "trainer.max_epochs=2", "optim.lr=1e-3", "hydra.run.dir=r",
)  # fmt: skip
HOOKS = ("on_train_batch_end", "on_validation_batch_end", "on_train_epoch_end")


def options(who: str, kind: str, workers: int = 0) -> list[str]:
    """The options of a run in which `who` raises an exception: a hook, logger, net or source."""
    own = {each: kind if each == who else "''" for each in ("net", "source")}
    more = []
    if who in HOOKS:
        more = ["+callbacks.mine._target_=ends.Callback", f"+callbacks.mine.kind={kind}", f"+callbacks.mine.hook={who}"]
    if who == "logger":
        more = ["+logger.mine._target_=ends.Logger", f"+logger.mine.kind={kind}", "trainer.log_every_n_steps=2"]
    given = [f"+data.args.kind={own['source']}", f"+model.args.kind={own['net']}", f"data.num_workers={workers}"]
    return [*OPTIONS, *given, *more]


@pytest.mark.parametrize(
    ("who", "kind", "workers"),
    [
        ("on_train_batch_end", "OwnEnd", 0),
        ("source", "SystemExit", 1),
        *(
            pytest.param(*case, marks=pytest.mark.slow(2))
            for case in (
                ("on_validation_batch_end", "StopIteration", 0), ("on_train_epoch_end", "SystemExit", 0),
                ("logger", "CancelledError", 0), ("net", "StopIteration", 0), ("source", "StopIteration", 0),
                ("source", "KeyboardInterrupt", 1),
            )
        ),
    ],
)  # fmt: skip
def test_the_place_is_named(run: Run, tmp_path: Path, who: str, kind: str, workers: int) -> None:
    failed = run("train", *options(who, kind, workers), PYTHONPATH=PROBES, code=1)
    assert f"raised {kind} ({PROBES}/ends.py, line " in failed.stderr
    assert "Traceback" not in failed.stderr
    assert not (tmp_path / "r" / "summary.json").exists()


@pytest.mark.parametrize(
    "who", ["on_train_batch_end", *(pytest.param(who, marks=pytest.mark.slow(3)) for who in (HOOKS[1], "logger"))]
)
def test_keyboard_interrupt_is_a_stop(run: Run, tmp_path: Path, who: str) -> None:
    stopped = run("train", *options(who, "KeyboardInterrupt"), PYTHONPATH=PROBES, code=130)
    assert "raised KeyboardInterrupt" in stopped.stdout + stopped.stderr
    assert "Stopped and saved after step" in stopped.stdout
    free = options(who, "''")[-3:]  # the callback or logger, which no longer raises anything
    run(
        "train",
        "resume=r",
        "allow_targets=[ends.source,ends.Net,ends.Callback,ends.Logger]",
        *free,
        PYTHONPATH=PROBES,
        code=0,
    )
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert (summary["epochs"], summary["steps"]) == (2, 12)
