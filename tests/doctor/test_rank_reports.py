"""What doctor writes about measurements, from made-up ones."""

from typing import Any

import pytest

from imagenet_ddp.config.schema.commands import DoctorConfig
from imagenet_ddp.config.section import to_config
from imagenet_ddp.doctor import check_ranks
from imagenet_ddp.doctor.checks import Check
from imagenet_ddp.performance.scaling import Step
from imagenet_ddp.performance.step_timer import AllReduce

STEP = Step(compute_s=0.5, backward_s=0.25, gradient_bytes=50e6)


def config(hook: str | None = None, batches: int = 1) -> DoctorConfig:
    plain = {
        "data": {"batch_size": 100},
        "trainer": {"accumulate_grad_batches": batches},
        "strategy": {"comm_hook": hook},
    }
    return to_config(plain, DoctorConfig)


def report(
    num_nodes: int, ranks_per_node: int, all_reduce_s: float, waiting_s: float | None, step: Step = STEP, **keys: Any
) -> Check:
    check = Check("scaling", True, "")
    ranks = num_nodes * ranks_per_node
    all_reduce = AllReduce(all_reduce_s, 50_000_000, ranks, 50_000_000) if ranks > 1 else None
    check_ranks.fill_scaling(check, config(**keys), step, num_nodes, ranks_per_node, all_reduce, waiting_s)
    return check


def test_one_rank_is_told_which_link_two_nodes_need():
    check = report(1, 1, 0.0, None, batches=2)
    assert check.ok and check.what == "two such nodes would reach 90 % over a link that carries 1.4 Gbit/s"
    assert check.numbers["nodes"] == [{"num_nodes": 1, "num_ranks": 1, "efficiency": 1.0, "images_per_s": 400.0}]
    assert check.numbers["measured"] is None


def test_two_nodes_are_measured_and_others_predicted():
    check = report(2, 1, 0.5, 0.25)
    assert check.ok and check.what.startswith(
        "measured: 2 nodes 67 % of independent ranks; predicted: 2 nodes 65 %, 4 nodes 49 %, 8 nodes 43 %; over "
    )
    assert "2 nodes are 1.33 times as fast as one: better with strategy.comm_hook=bf16 (95 %)" in check.what
    assert [node["num_nodes"] for node in check.numbers["nodes"]] == [1, 2, 4, 8]
    assert check.numbers["measured"] == {"num_nodes": 2, "efficiency": pytest.approx(2 / 3), "waiting_s": 0.25}
