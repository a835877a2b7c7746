"""A training beside other programs, and beside other ranks."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SMALL, Run
from helpers.plans import plan_of

from imagenet_ddp.distributed.place import Place
from imagenet_ddp.launch.plan import Choice
from imagenet_ddp.launch.world import World, agree_on_devices
from imagenet_ddp.system.cpu_cores import num_cores
from imagenet_ddp.system.idle_cores import Cores

AUTO = [option for option in SMALL if not option.startswith("cluster.num_threads")]


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    """Keep all cores busy."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num_cores())]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def test_a_run_on_a_busy_machine_uses_one_thread_and_keeps_it_in_a_resume(tree: Path, tmp_path: Path, run: Run):
    options = [*AUTO, f"data.root={tree}", "hydra.run.dir=run"]

    def threads() -> Any:
        return json.loads((tmp_path / "run/summary.json").read_text())["plan"]["num_threads"]

    with busy_cores():
        done = run("train", *options, "trainer.max_epochs=1", code=0)
    assert threads()["value"] == 1
    log = (tmp_path / "run/logs/rank0.log").read_text()
    assert "1 thread per process" in done.stdout and f"1 thread per process ({threads()['reason']})" in log
    stored = torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)["imagenet_ddp"]
    assert tuple(stored["threads"]) == (1, 1)
    run("train", "resume=run", "trainer.max_epochs=2", code=0)
    assert threads() == {"value": 1, "reason": "as before the resume"}
    more = num_cores() + 1
    run("train", "resume=run", "trainer.max_epochs=3", f"cluster.num_threads={more}", code=0)
    assert threads()["value"] == more


@pytest.fixture
def plan(tree: Path) -> Callable[..., Any]:
    two = Place(world_size=2, local_world_size=2, cores=Cores(6, "6.2 of 8 cores idle"))
    return lambda **more: plan_of("data=imagefolder", f"data.root={tree}", place=two, **more).num_threads


def test_the_ranks_of_a_machine_divide_its_idle_cores(plan: Callable[..., Any], monkeypatch: pytest.MonkeyPatch):
    for module in ("imagenet_ddp.launch.devices", "imagenet_ddp.system.cpu_cores"):
        monkeypatch.setattr(f"{module}.num_cores", lambda: 8)
    assert plan() == Choice(3, "6.2 of 8 cores idle for 2 processes")
    assert plan(threads_before=(4, 2)) == Choice(4, "as before the resume")
    assert plan(threads_before=(4, 1)).value == 3  # on another number of ranks, the bits differ anyway
    assert plan(threads_before=(5, 2)).value == 3  # from a larger machine


def test_all_ranks_use_the_lowest_number(tree: Path):
    class Meeting:
        def require_equal(self, key: str, facts: Any, value: Any) -> Any:
            return json.loads(json.dumps([value, [1, "of the other rank"]]))

    own = plan_of("data=imagefolder", f"data.root={tree}", "cluster.num_threads=5")
    meeting: Any = Meeting()
    agreed = agree_on_devices(own, World(Place(), torch.device("cpu"), meeting=meeting))
    assert own.num_threads.value == 5 and agreed.num_threads == Choice(1, "of the other rank")
