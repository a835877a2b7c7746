"""The formula against published anchors, its own limits, and its inverses."""

import math

import pytest

from imagenet_ddp.distributed import scaling
from imagenet_ddp.distributed.scaling import Link, Step

MIB = 2**20


def resnet18(images_per_s: float, batch_size: int = 256, share: float = 1.0) -> Step:
    compute_s = batch_size / images_per_s
    return Step(compute_s, 0.65 * compute_s, 46.8e6, MIB).compressed(share)


@pytest.mark.parametrize(
    ("gbit_per_s", "images_per_s", "share", "percent"),
    [
        (1, 5_000, 1, 7),
        (1, 5_000, 0.5, 13),
        (10, 5_000, 1, 52),
        (10, 5_000, 0.5, 86),
        (25, 5_000, 1, 98),
        (10, 20_000, 1, 16),
        (10, 20_000, 0.5, 29),
        (100, 20_000, 1, 97),
    ],
)
def test_resnet18_on_eight_nodes(gbit_per_s: float, images_per_s: float, share: float, percent: int):
    found = scaling.efficiency(resnet18(images_per_s, share=share), 8, Link.ethernet(gbit_per_s))
    assert round(100 * found) == percent


def test_the_formula_by_hand():
    # 4 ranks, 100 MB at 100 MB/s: 2 × 3/4 × 1 s, and 6 messages of 10 ms; half a second of backward hides 0.45 s
    step, link = Step(2.0, 0.5, 100e6, 10e6), Link(100e6, 0.01)
    assert scaling.all_reduce_s(100e6, 4, link) == pytest.approx(1.56)
    assert scaling.exposed_s(step, 4, link) == pytest.approx(1.11)
    assert scaling.efficiency(step, 4, link) == pytest.approx(2 / 3.11)


def test_the_last_bucket_is_never_hidden():
    step, link = Step(100.0, 60.0, 100e6, 10e6), Link(100e6, 0.0)
    assert scaling.exposed_s(step, 2, link) == pytest.approx(0.1)


def test_one_rank_waits_for_nobody():
    assert scaling.efficiency(Step(1.0, 0.6, 1e9, 1e9), 1, Link(1.0, 1.0)) == 1.0


def test_more_ranks_never_help_a_slow_link():
    step, link = resnet18(5_000), Link.ethernet(1)
    found = [scaling.efficiency(step, ranks, link) for ranks in (1, 2, 4, 8, 16, 64)]
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_a_measured_link_gives_the_measurement_back(num_ranks: int):
    latency_s = scaling.latency(0.003, num_ranks)
    link = scaling.measured_link(46.8e6, 1.7, num_ranks, latency_s)
    assert scaling.all_reduce_s(46.8e6, num_ranks, link) == pytest.approx(1.7)
    assert scaling.all_reduce_s(0, num_ranks, link) == pytest.approx(0.003)


def test_a_latency_above_the_measurement_is_noise():
    assert math.isfinite(scaling.measured_link(4_000, 0.001, 2, 0.002).bandwidth)


@pytest.mark.parametrize("wanted", [0.5, 0.9, 0.97])
def test_the_needed_bandwidth_gives_what_was_wanted(wanted: float):
    step = resnet18(5_000)
    bandwidth = scaling.needed_bandwidth(step, 4, wanted)
    assert scaling.efficiency(step, 4, Link(bandwidth)) == pytest.approx(wanted)


def test_no_bandwidth_makes_up_for_latency():
    assert scaling.needed_bandwidth(resnet18(5_000), 4, 0.9, latency_s=1.0) == math.inf


def test_needed_accumulation():
    step, link = resnet18(5_000), Link.ethernet(1)
    times = scaling.needed_accumulation(step, 2, link, 0.6)
    assert times is not None
    assert scaling.efficiency(step.accumulated(times), 2, link) >= 0.6
    assert scaling.efficiency(step.accumulated(times - 1), 2, link) < 0.6
    assert scaling.needed_accumulation(step, 2, Link(1e3), 0.9) is None


def test_powersgd_share():
    # (64, 576) at rank 2: (64 + 576) × 2 of 36,864; the vector and the small matrix stay whole
    shapes = [(64, 64, 3, 3), (64,), (3, 2)]
    assert scaling.powersgd_share(shapes, 2) == (1_280 + 64 + 6) / (36_864 + 64 + 6)
    assert scaling.powersgd_share([], 1) == 1.0
