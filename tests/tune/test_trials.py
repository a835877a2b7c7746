"""Divide GPUs and cores among trials that run at the same time."""

from typing import Any

import pytest

from imagenet_ddp.config.schema.trainer import TrainerConfig
from imagenet_ddp.config.section import to_config
from imagenet_ddp.tune import trials
from imagenet_ddp.tune.trials import Slot, make_slots


def slots_for(num: int, environ: dict[str, str] | None = None, **trainer: Any) -> list[Slot]:
    return make_slots(to_config(trainer, TrainerConfig), num, environ or {})


def test_visible_gpus_are_dealt_round_robin(monkeypatch: pytest.MonkeyPatch):
    four = [(f"GPU-{number}", "A100") for number in range(4)]
    monkeypatch.setattr(trials.nvidia_gpus, "query_gpus", lambda: four)
    monkeypatch.setattr(trials, "no_gpu_reason", lambda accelerator: "cpu" if accelerator == "cpu" else None)

    def seen(num: int, environ: dict[str, str] | None = None, **trainer: Any) -> list[str]:
        return [slot.environ["CUDA_VISIBLE_DEVICES"] for slot in slots_for(num, environ, **trainer)]

    assert seen(2) == ["GPU-0,GPU-1", "GPU-2,GPU-3"]
    assert seen(2, devices=-1) == ["GPU-0,GPU-1", "GPU-2,GPU-3"]
    assert seen(3, devices=1) == ["GPU-0", "GPU-1", "GPU-2"]
    assert seen(6) == ["GPU-0", "GPU-1", "GPU-2", "GPU-3", "GPU-0", "GPU-1"]
    assert seen(2, devices=8) == ["GPU-0,GPU-1,GPU-2,GPU-3"] * 2, "train itself refuses the eight"
    assert seen(2, {"CUDA_VISIBLE_DEVICES": "3, 1"}) == ["3", "1"]
    assert slots_for(1) == [Slot()]
    for trainer, environ in (({"accelerator": "cpu"}, {}), ({}, {"CUDA_VISIBLE_DEVICES": ""})):
        assert [slot.environ for slot in slots_for(2, environ, **trainer)] == [{}, {}]


def test_cpu_trials_share_the_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trials.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert [slot.cores for slot in slots_for(3, accelerator="cpu")] == [(0, 1), (2, 3), (4, 5)]
    monkeypatch.setattr(trials.os, "sched_getaffinity", lambda _: {5, 7})
    assert [slot.cores for slot in slots_for(3, accelerator="cpu")] == [(5,), (7,), (5,)]
