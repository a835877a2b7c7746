"""A network that goes away and comes back while two nodes train."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import PROBES
from faults.trainings import QUIET, SLOW, End, assert_same, short, told
from helpers.hosts import Host, Hosts, Process
from helpers.train_runs import wait_for


@pytest.mark.slow
def test_network_cut(tree: Path, unharmed: Callable[..., Path], tmp_path: Path) -> None:
    """The cable between two nodes is pulled for 3 s, then for good: the run survives the first cut; after the
    second, both nodes name the lost rank, and the run continues bit-exactly."""
    options = [*short(tree, "trainer.num_nodes=2"), f"hydra.run.dir={tmp_path}/r"]
    seen = tmp_path / "p/seen0.jsonl"
    slow = [option.replace("folder=p", f"folder={tmp_path}/p") for option in SLOW]

    def train(hosts: tuple[Host, ...], *more: str) -> list[Process]:
        environ = {"PYTHONPATH": PROBES, "MASTER_ADDR": hosts[0].address}
        return [host.popen(["python", "-m", "imagenet_ddp.train", *options, *more], environ) for host in hosts]

    def steps(number: int) -> None:
        wait_for(lambda: seen.exists() and len(seen.read_text().splitlines()) >= number, running[0])

    with Hosts(["alpha", "zeta"], tmp_path) as hosts:
        running = train(hosts, *slow)
        steps(1)
        hosts[1].cut()
        time.sleep(3)
        hosts[1].mend()
        steps(6)
        cut_at = time.monotonic()
        hosts[1].cut()
        while not all(each.err for each in running):
            assert time.monotonic() - cut_at < 60, [each.out for each in running]
            time.sleep(0.02)
        said_s = time.monotonic() - cut_at
        hosts[1].mend()
        codes = [process.wait(60) for process in running]
        assert set(codes) <= {1, -6}, codes  # a thread of Gloo's may abort the process, after it has said why
        lost = "rank 1 (node 1, local rank 0)", "the command of node 0 (alpha, rank 0)"  # which serves the store
        for each, other in zip(running, lost, strict=True):
            told(End(1, each.out, each.err, said_s), f"{other} is gone: its process, or its machine, no longer answers")
        for process in (ended := train(hosts, *QUIET)):
            assert process.wait(240) == 0, [each.out + each.err for each in ended]
    assert_same(unharmed(2), tmp_path / "r")
