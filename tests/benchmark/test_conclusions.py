"""Each mode's last sentence: what the bottleneck is, and what would relieve it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from imagenet_ddp.benchmark import start, step, strategies, train
from imagenet_ddp.errors import ConfigError


@pytest.mark.parametrize(
    ("ratio", "device", "said"),
    [
        (1.3, "cpu", "the host is part of the bottleneck. A larger data.batch_size would relieve it"),
        (
            1.01,
            "cpu",
            "the bottleneck is the computation itself, which a smaller data.image_size, a smaller net or a GPU",
        ),
        (1.01, "NVIDIA H200", "which a smaller net or image would relieve"),
    ],
)
def test_of_a_step(ratio: float, device: str, said: str):
    assert said in step._conclusion(ratio, {"device": device})


@pytest.mark.parametrize(
    ("rates", "wait", "workers", "said"),
    [
        ({"loader": 900.0, "step": 30.0, "ours": 29.0}, 0.03, 0, "the bottleneck is the training step, which"),
        (
            {"loader": 100.0, "step": 900.0, "ours": 90.0},
            0.9,
            2,
            "the bottleneck is the loader. This would help: data.num",
        ),
        ({"loader": 100.0, "step": 110.0, "ours": 60.0}, 0.02, 2, "the bottleneck is the cores, which they share"),
        ({"loader": 300.0, "step": 100.0, "ours": 75.0}, 0.25, 0, "part of the bottleneck is the loader"),
    ],
)
def test_of_a_training(rates: dict[str, float], wait: float, workers: int, said: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(train, "num_cores", lambda: 16)
    assert said in train._conclusion(rates, wait, workers, "cpu")


@pytest.mark.parametrize(
    ("ours", "bytecode", "said"),
    [(11.0, False, "--compile-bytecode"), (15.0, True, "this project's own start"), (11.0, True, "these imports")],
)
def test_of_a_start(ours: float, bytecode: bool, said: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(start, "torch_bytecode", lambda: Path(__file__ if bytecode else "missing"))
    text = start._conclusion([ours], [10.0], ours / 10)
    assert said in text and text.startswith(f"A bare script takes {100 * 10 / ours:.0f} % of")


@pytest.mark.parametrize(
    ("device", "efficiency", "said"),
    [
        ("cpu", 0.5, "the bottleneck is the cores"),
        ("NVIDIA H200", 0.95, "the bottleneck is the devices' computation"),
        ("NVIDIA H200", 0.6, "the bottleneck is communication"),
    ],
)
def test_of_strategies(device: str, efficiency: float, said: str):
    assert said in strategies._conclusion("ddp, 4 devices", 4, efficiency, {"device": device})


@pytest.mark.parametrize(("cores", "devices", "counts"), [(1, "auto", None), (6, "auto", [2, 4, 6]), (2, 4, [2, 4])])
def test_numbers_of_devices(cores: int, devices: Any, counts: list[int] | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(strategies, "num_cores", lambda: cores)
    plan: Any = SimpleNamespace(config={"trainer": {"accelerator": "cpu", "devices": devices}}, folder=Path())
    if counts is None:
        with pytest.raises(ConfigError, match="must have at least two devices or two cores, got one"):
            strategies.counts(plan)
    else:
        assert strategies.counts(plan) == counts
