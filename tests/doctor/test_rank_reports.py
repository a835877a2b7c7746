"""What doctor writes about measurements, from made-up ones."""

from imagenet_ddp.config.schema.commands import RunConfig
from imagenet_ddp.doctor import check_ranks
from imagenet_ddp.doctor.checks import Check
from imagenet_ddp.performance.scaling import Step
from imagenet_ddp.performance.step_timer import AllReduce

STEP = Step(compute_s=0.5, backward_s=0.25, gradient_bytes=50e6)


def report(num_nodes: int, ranks_per_node: int, all_reduce_s: float, waiting_s: float | None) -> Check:
    check, ranks = Check("scaling", True, ""), num_nodes * ranks_per_node
    all_reduce = AllReduce(all_reduce_s, 50_000_000, ranks, 50_000_000) if ranks > 1 else None
    check_ranks.fill_scaling(check, RunConfig(), STEP, num_nodes, ranks_per_node, all_reduce, waiting_s)
    return check


def test_one_rank_is_told_which_link_two_nodes_need():
    check = report(1, 1, 0.0, None)
    assert check.ok and check.what == "two such nodes would reach 90 % over a link that carries 1.4 Gbit/s"


def test_two_nodes_are_measured_and_others_predicted():
    check = report(2, 1, 0.5, 0.25)
    assert check.ok and check.what.startswith(
        "measured: 2 nodes 67 % of independent ranks; predicted: 2 nodes 65 %, 4 nodes 49 %, 8 nodes 43 %; over "
    )
    assert "2 nodes are 1.33 times as fast as one: better with strategy.comm_hook=bf16 (95 %)" in check.what
