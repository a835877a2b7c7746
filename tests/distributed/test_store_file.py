"""Test cluster.address=file:///PATH: the file itself, and who serves, joins or replaces its store."""

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.forked_commands import start_code
from torch.distributed import TCPStore

from imagenet_ddp.cli import check_launch
from imagenet_ddp.cli.check_launch import validate_rendezvous_file
from imagenet_ddp.distributed import store, store_file
from imagenet_ddp.distributed.commands import find_store
from imagenet_ddp.distributed.place import Address, Place
from imagenet_ddp.distributed.store import FoundStore
from imagenet_ddp.distributed.store_file import StoreAddress, read, remove_own_files
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system import bounded_wait

OWNER = """
place = Place(node_rank=0, num_nodes=2, address=Address(file=args[0]), is_node=True, job_id=args[1])
found = commands.find_store(place, 20, "node 0 of 2")
print("owned" if found.is_server else "joined")
time.sleep(60) if args[2] == "sleep" else None
store_file.remove_own_files() if args[2] == "hard" else None
os._exit(2) if args[2] == "hard" else sys.exit(3)
"""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(store, "POLL_S", 0.02)
    monkeypatch.setattr(store, "serve", serve_anew)  # one for each thread
    monkeypatch.setattr(store_file, "INCOMPLETE_S", 0.5)
    yield
    remove_own_files()
    SERVED.clear()


SERVED: list[TCPStore] = []
UNCACHED_SERVE = store.serve.__wrapped__


def serve_anew(host: str, port: int, *, everywhere: bool = False) -> TCPStore:
    SERVED.append(UNCACHED_SERVE(host, port, everywhere=everywhere))
    return SERVED[-1]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(12) as pool:
        yield pool


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "job42"


def find(file: Path, node_rank: int | None = None, job_id: str | None = None, timeout_s: float = 20) -> FoundStore:
    place = Place(node_rank=node_rank, num_nodes=2, address=Address(file=str(file)), is_node=True, job_id=job_id)
    return find_store(place, timeout_s, "one of 2 nodes")


def owner_process(file: Path, how: str = "sleep", job_id: str | None = None):
    process = start_code(OWNER, str(file), job_id, how)
    process.wait_for_line("owned")
    return process


def names(file: Path) -> list[str]:
    return sorted(path.name for path in file.parent.iterdir())


# ---- own and join ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["well", "hard"])
def test_file_is_removed_at_exit(file: Path, how: str):
    assert owner_process(file, how).wait(20) == {"well": 3, "hard": 2}[how]
    assert names(file) == []


def test_joins_the_owner(file: Path):
    process = owner_process(file, job_id="a")
    found = find(file, job_id="a")
    assert not found.is_server
    assert found.host == "127.0.0.1", "on the same machine the loopback is likeliest"
    process.kill()


def test_node_1_waits_for_rank_0_and_creates_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(bounded_wait, "REPORT_EVERY_S", 0.1)
    with pytest.raises(ConfigError, match=r"waiting 0 s for rank 0 to create .*job42\. Missing: rank 0"):
        find(file, 1, timeout_s=0.3)
    assert names(file) == []
    assert f"Waiting for rank 0 to create {file}, 0 s." in capfd.readouterr().err


# ---- stale -----------------------------------------------------------------------------------------------------------


def make_stale(file: Path) -> StoreAddress:
    """Leave the file of a process that was killed."""
    process = owner_process(file)
    process.kill()
    process.wait(20)
    content = read(str(file))
    assert content is not None
    return content


@pytest.mark.parametrize("node_rank", [0, None])
def test_stale_file_is_named_and_replaced(file: Path, node_rank: int | None, capfd: pytest.CaptureFixture[str]):
    old = make_stale(file)
    assert find(file, node_rank, "new").is_server
    assert json.loads(file.read_text(encoding="utf-8"))["job_id"] == "new"
    message = f"{file} is stale: its owner, {old.owner}, no longer answers. The file is replaced."
    assert message in capfd.readouterr().err
    remove_own_files()
    assert names(file) == []


def test_node_1_waits_for_the_new_owner(file: Path, pool: ThreadPoolExecutor, capfd: pytest.CaptureFixture[str]):
    make_stale(file)
    joining = pool.submit(find, file, 1)
    time.sleep(0.5)
    assert not joining.done() and file.exists()
    owned = find(file, 0)
    assert joining.result(10).port == owned.port
    assert "no longer answers. Waiting for a new file." in capfd.readouterr().err


@pytest.mark.parametrize("is_stale", [True, False])
def test_one_of_many_owns(file: Path, pool: ThreadPoolExecutor, is_stale: bool):
    if is_stale:
        make_stale(file)
    found = [future.result(20) for future in [pool.submit(find, file) for _ in range(6)]]
    assert sorted(each.is_server for each in found) == [False] * 5 + [True]
    assert names(file) == ["job42"]


# ---- refused ---------------------------------------------------------------------------------------------------------


def test_the_file_of_a_running_job(file: Path):
    find(file, 0, "a")
    for node_rank in (None, 1):
        with pytest.raises(ConfigError, match=r"cluster\.job_id=a, but this job has cluster\.job_id=b\. Hint: use"):
            find(file, node_rank, "b")
    assert json.loads(file.read_text(encoding="utf-8"))["job_id"] == "a"
    with pytest.raises(ConfigError, match=r"belongs to another job, which is running\. Hint: use a separate file"):
        find(file, 0, "a")


@pytest.mark.parametrize("content", ["", '{"token": "x"}', "\udcff"])
def test_foreign_file_is_left_as_it_is(file: Path, content: str):
    file.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=r"the existing file has other content\. Hint: set another path"):
        find(file)
    assert file.read_bytes() == content.encode(errors="surrogateescape")
    assert names(file) == ["job42"]


def test_validate_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert validate_rendezvous_file(tmp_path / "new") == []
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "gone/job", tmp_path / "link", tmp_path / "pipe"):
        (text,) = map(str, validate_rendezvous_file(path))
        assert text.startswith(f"cluster.address=file://{path} must name a regular file or a new file")
    monkeypatch.setattr(check_launch.os, "access", lambda path, mode: False)  # root may write anywhere
    assert "Hint: mount the shared disk" in str(validate_rendezvous_file(tmp_path / "new")[0])
