"""imagenet_ddp.engine.world with ranks as threads, which share a real store."""

import dataclasses
from concurrent.futures import Future

from helpers.fake_ranks import FakeRanks, call_all, connect, join_all, mistakes
from helpers.plans import plan_of

from imagenet_ddp.distributed.meet import Meeting
from imagenet_ddp.engine.plan import Choice
from imagenet_ddp.engine.world import World, require_equal_devices


def test_unlike_machines_are_refused():
    """Rank 1 is on an older machine, and rank 2 on one without a GPU."""
    plan, connections = plan_of(), connect(3)

    def check(*devices: tuple[str, str]) -> list[Future[None]]:
        def of_rank(group: Meeting) -> None:
            accelerator, precision = (Choice(value, "auto") for value in devices[group.number])
            own = dataclasses.replace(plan, accelerator=accelerator, precision=precision)
            require_equal_devices(own, World(plan.world_info, meeting=group))

        with FakeRanks(connections) as fake_ranks:
            return call_all(fake_ranks, join_all(fake_ranks, len(devices)), of_rank)

    for future in check(("cpu", "bf16-mixed"), ("cpu", "bf16-mixed")):
        future.result(15)
    for future in check(("cuda", "bf16-mixed"), ("cuda", "32-true"), ("cpu", "32-true")):
        assert mistakes(future) == [
            "the ranks disagree on the accelerator: cuda on ranks 0, 1; cpu on rank 2. Hint: set "
            "trainer.accelerator=cpu, or trainer.accelerator=gpu to read why a machine has no GPU.",
            "the ranks disagree on the precision: bf16-mixed on rank 0; 32-true on ranks 1, 2. Hint: set "
            "trainer.precision=32-true, which every device supports.",
        ]
