"""The formula against published anchors, its limits, and the advice that follows from it."""

import pytest

from imagenet_ddp.doctor import scaling
from imagenet_ddp.doctor.scaling import Step

GOODPUT = 0.86  # of an Ethernet link's rate, without headers, acknowledgements and the ring's waiting


def resnet18(images_per_s: float, share: float = 1.0) -> Step:
    """256 images per step; gradients of 46.8 MB, of which a share is sent."""
    compute_s = 256 / images_per_s
    return Step(compute_s, 0.65 * compute_s, 46.8e6 * share)


def ethernet_s(step: Step, gbit_per_s: float, num_ranks: int) -> float:
    """The ring all-reduce over an Ethernet link of this rate."""
    return 2 * (num_ranks - 1) / num_ranks * step.gradient_bytes / (GOODPUT * gbit_per_s * 1e9 / 8)


@pytest.mark.parametrize(
    ("gbit_per_s", "images_per_s", "share", "percent"),
    [
        (1, 5_000, 1, 7),
        (10, 5_000, 0.5, 86),
        (100, 20_000, 1, 99),
    ],
)
def test_resnet18_on_eight_nodes(gbit_per_s: float, images_per_s: float, share: float, percent: int):
    step = resnet18(images_per_s, share)
    assert 100 * scaling.efficiency(step, ethernet_s(step, gbit_per_s, 8)) == pytest.approx(percent, abs=1.0)


def test_an_all_reduce_over_more_ranks_takes_at_most_twice_as_long():
    assert scaling.all_reduce_s(1.0, 2, 2) == scaling.all_reduce_s(1.0, 7, 7) == 1.0
    assert scaling.all_reduce_s(1.0, 2, 4) == pytest.approx(1.5)
    assert scaling.all_reduce_s(1.0, 2, 1000) < 2
    assert scaling.all_reduce_s(1.5, 4, 2) == pytest.approx(1.0)


def test_advice_where_nodes_pay_and_where_they_do_not():
    step = resnet18(5_000)
    assert scaling.advise(4, 0.99, step, 0.01, 80.0, can_halve=True) == (
        True, "4 nodes are 3.96 times as fast as one: nothing to change", ""
    )  # fmt: skip
    all_reduce_s = ethernet_s(step, 8, 2)
    ok, text, hint = scaling.advise(2, scaling.efficiency(step, all_reduce_s), step, all_reduce_s, 6.9, can_halve=True)
    assert ok and hint == ""
    assert text.startswith("over this link of 6.9 Gbit/s, 2 nodes are 1.35 times as fast as one: better with ")
    assert "strategy.comm_hook=bf16 (100 %), or 4 times trainer.accumulate_grad_batches (" in text
    all_reduce_s = ethernet_s(step, 0.5, 2)
    ok, text, hint = scaling.advise(2, scaling.efficiency(step, all_reduce_s), step, all_reduce_s, 0.43, can_halve=True)
    assert not ok and text == "over this link of 0.43 Gbit/s, 2 nodes are slower than one (0.11 times as fast)"
    assert hint == "use one"
