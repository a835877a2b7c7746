"""The formula against published anchors, its own limits, and its inverses."""

import math

import pytest

from imagenet_ddp.performance import scaling_model
from imagenet_ddp.performance.scaling_model import Cluster, Link, Step

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
    found = scaling_model.efficiency(resnet18(images_per_s, share=share), 8, Link.ethernet(gbit_per_s))
    assert round(100 * found) == percent


def test_the_formula_by_hand():
    # 4 ranks, 100 MB at 100 MB/s: 2 × 3/4 × 1 s, and 6 messages of 10 ms; half a second of backward hides 0.45 s
    step, link = Step(2.0, 0.5, 100e6, 10e6), Link(100e6, 0.01)
    assert scaling_model.all_reduce_s(100e6, 4, link) == pytest.approx(1.56)
    assert scaling_model.exposed_s(step, 4, link) == pytest.approx(1.11)
    assert scaling_model.efficiency(step, 4, link) == pytest.approx(2 / 3.11)


def test_the_last_bucket_is_never_hidden():
    step, link = Step(100.0, 60.0, 100e6, 10e6), Link(100e6, 0.0)
    assert scaling_model.exposed_s(step, 2, link) == pytest.approx(0.1)


def test_one_rank_waits_for_nobody():
    assert scaling_model.efficiency(Step(1.0, 0.6, 1e9, 1e9), 1, Link(1.0, 1.0)) == 1.0


def test_more_ranks_never_help_a_slow_link():
    step, link = resnet18(5_000), Link.ethernet(1)
    found = [scaling_model.efficiency(step, ranks, link) for ranks in (1, 2, 4, 8, 16, 64)]
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_a_measured_link_gives_the_measurement_back(num_ranks: int):
    latency_s = scaling_model.latency(0.003, num_ranks)
    link = scaling_model.measured_link(46.8e6, 1.7, num_ranks, latency_s)
    assert scaling_model.all_reduce_s(46.8e6, num_ranks, link) == pytest.approx(1.7)
    assert scaling_model.all_reduce_s(0, num_ranks, link) == pytest.approx(0.003)


def test_a_latency_above_the_measurement_is_noise():
    assert math.isfinite(scaling_model.measured_link(4_000, 0.001, 2, 0.002).bandwidth)


@pytest.mark.parametrize("wanted", [0.5, 0.9, 0.97])
def test_the_needed_bandwidth_gives_what_was_wanted(wanted: float):
    step = resnet18(5_000)
    bandwidth = scaling_model.needed_bandwidth(step, 4, wanted)
    assert scaling_model.efficiency(step, 4, Link(bandwidth)) == pytest.approx(wanted)


def test_no_bandwidth_makes_up_for_latency():
    assert scaling_model.needed_bandwidth(resnet18(5_000), 4, 0.9, latency_s=1.0) == math.inf


def test_needed_accumulation():
    step, link = resnet18(5_000), Link.ethernet(1)
    times = scaling_model.needed_accumulation(step, 2, link, 0.6)
    assert times is not None
    assert scaling_model.efficiency(step.accumulated(times), 2, link) >= 0.6
    assert scaling_model.efficiency(step.accumulated(times - 1), 2, link) < 0.6
    assert scaling_model.needed_accumulation(step, 2, Link(1e3), 0.9) is None


def test_powersgd_share():
    # (64, 576) at rank 2: (64 + 576) × 2 of 36,864; the vector and the small matrix stay whole
    shapes = [(64, 64, 3, 3), (64,), (3, 2)]
    assert scaling_model.powersgd_share(shapes, 2) == (1_280 + 64 + 6) / (36_864 + 64 + 6)
    assert scaling_model.powersgd_share([], 1) == 1.0


# ---- several ranks on each node --------------------------------------------------------------------------------------

OTHERS = {"strategy.comm_hook=bf16": resnet18(5_000, share=0.5)}


def test_slower_than_one():
    cluster = Cluster(1, Link.ethernet(0.5), None)
    well, advice = scaling_model.advice(cluster, resnet18(5_000), 2, OTHERS)
    assert not well
    assert advice == (
        "over this link of 0.43 Gbit/s two nodes are slower than one (0.11 times as fast): use one, or "
        "strategy.comm_hook=bf16 (11 %)"
    )


def test_faster_than_one_but_not_by_much():
    well, advice = scaling_model.advice(Cluster(1, Link.ethernet(8), None), resnet18(5_000), 2, OTHERS)
    assert well and advice.startswith(
        "over this link of 6.9 Gbit/s two nodes are 1.35 times as fast as one: better with "
    )
    assert "strategy.comm_hook=bf16 (99 %), or trainer.accumulate_grad_batches=" in advice


def test_what_was_measured_counts_more_than_what_was_foretold():
    fast = Cluster(1, Link.ethernet(100), None)
    assert scaling_model.advice(fast, resnet18(5_000), 4, OTHERS) == (
        True, "4 nodes are 3.98 times as fast as one: nothing to change"
    )  # fmt: skip
    well, advice = scaling_model.advice(fast, resnet18(5_000), 4, OTHERS, measured=0.2)
    assert not well and "0.80 times as fast" in advice
    assert "accumulate_grad_batches" not in advice  # by the formula 1 is enough, which it is already


def test_accumulation_counts_from_what_there_is():
    cluster = Cluster(1, Link.ethernet(8), None)
    once, thrice = (scaling_model.advice(cluster, resnet18(5_000), 2, {}, accumulated=number)[1] for number in (1, 3))
    number = int(once.partition("accumulate_grad_batches=")[2].split()[0])
    assert f"trainer.accumulate_grad_batches={3 * number} " in thrice


def test_before_there_are_several():
    alone = Cluster(1, None, None)
    well, advice = scaling_model.advice(alone, resnet18(5_000), 1, OTHERS)
    assert well and advice.startswith("two such nodes would reach 90 % over a link that carries ")
    gbit_per_s = float(advice.split(" carries ")[1].split()[0])
    found = scaling_model.efficiency(resnet18(5_000), 2, Link(gbit_per_s * 1e9 / 8))
    assert found == pytest.approx(0.9, abs=0.05)  # two digits are said


def test_steps_too_short_for_any_network():
    short = Step(1e-6, 0.6e-6, 4.0, 4.0)
    assert "too short" in scaling_model.advice(Cluster(8, None, Link(1e12)), short, 1, {})[1]


def test_the_links_that_count():
    cluster = Cluster(8, Link.ethernet(10), Link(100e9))
    step = resnet18(5_000)
    assert cluster.efficiency(step, 1) == scaling_model.efficiency(step, 8, Link(100e9))
    assert cluster.efficiency(step, 2) == scaling_model.efficiency(step, 16, Link.ethernet(10))
    assert Cluster(8, None, None).efficiency(step, 1) is None
    assert Cluster(1, None, None).efficiency(step, 1) == 1.0
    assert cluster.speedup(step, 2) == pytest.approx(
        2 * (cluster.efficiency(step, 2) or 0) / (cluster.efficiency(step, 1) or 1)
    )
