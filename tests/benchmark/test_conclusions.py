"""The last sentence of a mode: what the bottleneck is, and what would relieve it."""

from typing import Any

import pytest

from imagenet_ddp.benchmark import loader, steps


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
    ],
)
def test_of_a_training(rates: dict[str, float], wait: float, workers: int, said: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(steps, "num_cores", lambda: 16)
    assert said in steps.bottleneck(rates, wait, workers, "cpu")


def figures(own: int, gives: float, takes: float | None) -> dict[str, Any]:
    rates = {"files": 800, "packed_256_jpeg": 2000, "packed_raw": 7000}
    return {
        "num_workers": own,
        "why_num_workers": "as set",
        "workers_images_per_s": {str(own): {"median": gives}},
        "images_per_s": {name: {"median": rate} for name, rate in rates.items()},
        "titles": dict.fromkeys(rates, ""),
        "model": None if takes is None else {"images_per_s": takes},
    }


@pytest.mark.parametrize(
    ("own", "gives", "takes", "cores", "advice"),
    [
        (0, 800, 35, 2, "loading takes 4 % of its time. The bottleneck is the training step"),
        (
            4,
            3200,
            2000,
            8,
            "4 loader processes (as set), and the model consumes 2,000 images/s. The bottleneck is the training step",
        ),
        (4, 3200, 20_000, 8, "prepare=pack prepare.form=raw` and data.num_workers=4 (about 28,000 images/s)"),
        (8, 55_000, 90_000, 8, "is the loader. Nothing else that was measured is faster."),
        (1, 800, None, 2, "The model was not measured (benchmark.model=false)"),
    ],
)
def test_the_cheapest_change_that_is_enough(own: int, gives: float, takes: float | None, cores: int, advice: str):
    assert advice in loader.conclusion(figures(own, gives, takes), cores)
