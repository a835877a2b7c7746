"""What a stranger on the network can do to a run. The machines, also the stranger's, are namespaces (helpers/hosts.py).

The stranger knows this program and its options, connects as soon as the store is there.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import PROBES, SMALL
from helpers.hosts import Host, Hosts, requirement
from helpers.train_runs import probe, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(requirement() is not None, reason=str(requirement())),
]
STRANGER = """
import sys, time
from datetime import timedelta
from torch.distributed import TCPStore
address, *posts = sys.argv[1:]
print("ready", flush=True)
end = time.monotonic() + 100
while time.monotonic() < end:
    try:
        store = TCPStore(address, 29500, None, False, timedelta(seconds=5), wait_for_workers=False)
        break
    except Exception:
        time.sleep(0.02)
for key, value in zip(posts[::2], posts[1::2]):
    store.set(key, value)
print("posted")
"""


@contextmanager
def stranger(host: Host, address: str, posts: dict[str, Any]) -> Iterator[None]:
    """Post these values in the store at this address."""
    words = [word for key, value in posts.items() for word in (f"imagenet_ddp/0/{key}", json.dumps(value))]
    command = ["nsenter", f"--target={host.init}", "--net", sys.executable, "-c", STRANGER, address, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        yield
        assert process.communicate(timeout=120)[0] == "posted\n"


@pytest.mark.parametrize("ways", [["trainer.devices=2"], ["-m", "seed=1,2", "trainer.devices=1"]])
def test_one_machine_listens_on_loopback_only(ways: list[str], tree: Path, tmp_path: Path) -> None:
    """Two ranks, and the single rank of a job in a sweep, which needs no socket at all."""
    folder = tmp_path / "seen"
    options = [*SMALL, f"data.root={tree}", "trainer.max_epochs=500", *probe(folder, slow_s=0.2), *ways]
    with Hosts(["alpha"], tmp_path) as (host,):
        command = host.popen(["python", "-m", "imagenet_ddp.train", *options], {"PYTHONPATH": PROBES})
        wait_for((folder / "seen0.jsonl").exists, command)
        assert host.listening() == ({"127.0.0.1"} if "trainer.devices=2" in ways else set())
        command.send_signal(signal.SIGTERM)
        assert command.wait(60) == 143, command.out + command.err


def test_a_forged_failure_is_no_success(tree: Path, tmp_path: Path) -> None:
    """With exit code 0, and text that would clear the terminal. Node 0 serves the store, and waits for node 1."""
    line = ["python", "-m", "imagenet_ddp.train", *SMALL, f"data.root={tree}", "trainer.num_nodes=2"]
    forged = {"failed": [0, ["\x1b[2J all is well"]]}
    with Hosts(["zeta", "stranger"], tmp_path) as (zeta, other), stranger(other, zeta.address, forged):
        command = zeta.popen([*line, "trainer.devices=1"], {"MASTER_ADDR": zeta.address})
        code = command.wait(120)
    printed = command.out + command.err
    assert code == 2 and "`failed` in the rendezvous store is not what a process of this run posts" in printed, printed
    assert "\x1b" not in printed and "all is well" not in printed
