"""A run that a signal stops has given its loggers all that it trained."""

import signal
from pathlib import Path

import pytest
import torch
from conftest import PROBES, SMALL, clean_environ
from helpers import logged
from helpers.forked_commands import run

from imagenet_ddp.callbacks import graceful_stop

STEPS_OF_EPOCH, EPOCHS = 4, 3


@pytest.mark.parametrize(
    ("step", "validations"), [(5, EPOCHS), (6, EPOCHS), (8, EPOCHS), (8, 0)], ids=["unlogged", "logged", "in", "end"]
)
def test_no_logged_step_is_missing_after_a_resume(tree: Path, tmp_path: Path, step: int, validations: int) -> None:
    environment = clean_environ(PYTHONPATH=PROBES)
    first = run(
        "imagenet_ddp.train", *SMALL, f"data.root={tree}", "data.batch_size=8", "hydra.run.dir=r", "logger=csv",
        f"trainer.max_epochs={EPOCHS}", "trainer.log_every_n_steps=2",
        f"trainer.limit_val_batches={validations / EPOCHS}", "callbacks=gradient_norm",
        "allow_targets=[probe]", "+callbacks.probe._target_=probe.Probe", "+callbacks.probe.folder=p",
        "+callbacks.probe.what=signal", f"+callbacks.probe.step={step}", folder=tmp_path, environment=environment,
    )  # fmt: skip
    assert first.returncode == 128 + signal.SIGTERM, first.stdout + first.stderr
    second = run("imagenet_ddp.train", "resume=r", "++callbacks.probe=null", folder=tmp_path, environment=environment)
    assert second.returncode == 0, second.stdout + second.stderr
    curves = logged.of_csv(tmp_path / "r")
    every_second = list(range(1, EPOCHS * STEPS_OF_EPOCH, 2))
    for name in ("train/loss", "lr", "grad_norm"):
        assert [at for at, _ in curves[name]] == every_second, name
    ends = list(range(STEPS_OF_EPOCH - 1, EPOCHS * STEPS_OF_EPOCH, STEPS_OF_EPOCH))
    assert [at for at, _ in curves["train/loss_epoch"]] == ends
    assert [at for at, _ in curves.get("val/top1", [])] == ends[:validations]
    assert [epoch for at, epoch in curves["epoch"]] == sorted(epoch for _, epoch in curves["epoch"])


@pytest.mark.parametrize(("batch_s", "counts"), [(0.25, [1, 4, 4]), (5, [1, 1, 1]), (0.001, [1, 1000, 1000])])
def test_signals_are_exchanged_once_per_second(
    monkeypatch: pytest.MonkeyPatch, batch_s: float, counts: list[int]
) -> None:
    """Not in each step, which would wait for the device and the other ranks."""
    now = 0.0
    monkeypatch.setattr(graceful_stop.time, "monotonic", lambda: now)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda values, op: values)
    exchange, found = graceful_stop._Exchange(), []
    for _ in counts:
        found.append(1)
        now += batch_s
        while not exchange.is_due():
            found[-1] += 1
            now += batch_s
        assert exchange.highest(15, torch.device("cpu")) == 15
    assert found == counts
