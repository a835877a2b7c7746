"""cluster.address=file:///PATH: who owns the file, who joins, and what becomes of it. Real processes own it, so that
they can be killed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from imagenet_ddp.distributed.rendezvous import address_file, timeout
from imagenet_ddp.distributed.rendezvous.address_file import StoreLocation, find, mistakes, remove_own_files
from imagenet_ddp.errors import ConfigError

OWN = """
import os, sys, time
from imagenet_ddp.distributed.rendezvous import address_file
address_file.RENEW_S, address_file.STALE_S, address_file.LOOK_S = 0.1, 0.8, 0.02
job_id = sys.argv[2] or None
found = address_file.find(sys.argv[1], job_id, 10, may_own=True, must_own=True, serve=lambda: (["10.9.9.9"], 4711))
print("owned" if found.owned else "joined", flush=True)
how = sys.stdin.readline().strip()
if how == "hard":
    address_file.remove_own_files()
    os._exit(2)
sys.exit(3)
"""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(address_file, "RENEW_S", 0.1)
    monkeypatch.setattr(address_file, "STALE_S", 0.8)
    monkeypatch.setattr(address_file, "LOOK_S", 0.02)
    yield
    remove_own_files()


def owner(file: Path, job_id: str = "") -> subprocess.Popen[str]:
    """Another process that has the file; it ends when it is told how. No torch in it."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWN, str(file), job_id], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert process.stdout and process.stdout.readline() == "owned\n"
    return process


def end(process: subprocess.Popen[str], how: str = "well") -> int:
    process.communicate(f"{how}\n", timeout=20)
    return process.returncode


def join(file: Path, job_id: str | None = None, **more: Any) -> StoreLocation:
    options = {"may_own": False, "must_own": False, "serve": lambda: (["10.0.0.1"], 29500), **more}
    return find(str(file), job_id, options.pop("timeout_s", 10), **options)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "job42"


def left(file: Path) -> list[str]:
    return sorted(path.name for path in file.parent.iterdir())


# ---- own and join ----------------------------------------------------------------------------------------------------


def test_the_first_owns_and_a_finished_job_leaves_nothing(file: Path):
    found = join(file, "a", may_own=True)
    assert found == StoreLocation(("10.0.0.1",), 29500, True)
    content = json.loads(file.read_text())
    assert (content["job_id"], content["pid"], content["port"]) == ("a", os.getpid(), 29500)
    assert left(file) == ["job42", f"job42.{content['token']}"]
    counter = file.with_name(f"job42.{content['token']}")
    before = counter.read_text()
    time.sleep(0.4)
    assert counter.read_text() != before, "a counter, not a clock"
    remove_own_files()
    assert left(file) == []
    time.sleep(0.3)
    assert left(file) == [], "and it is not renewed after its end"


@pytest.mark.parametrize(("how", "code"), [("well", 3), ("hard", 2)])
def test_joined(file: Path, how: str, code: int):
    process = owner(file, "a")
    found = join(file, "a", may_own=True)
    assert found == StoreLocation(("127.0.0.1", "10.9.9.9"), 4711, False), (
        "on the same machine the loopback is likeliest"
    )
    assert end(process, how) == code
    assert left(file) == []


def test_another_machine_goes_by_the_addresses_that_others_reach(file: Path, monkeypatch: pytest.MonkeyPatch):
    join(file, may_own=True, serve=lambda: (["127.0.0.1", "10.0.0.1", "fd00::1"], 7))
    monkeypatch.setattr(address_file, "this_process", lambda: {"machine": "another"})
    assert join(file).hosts == ("10.0.0.1", "fd00::1")


def test_who_waits_for_rank_0_makes_nothing(file: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any):
    monkeypatch.setattr(timeout, "SAY_EVERY_S", 0.1)
    with pytest.raises(
        ConfigError, match=r"waited 0 s for rank 0 to make .*job42, in vain\. Missing: rank 0"
    ) as caught:
        join(file, timeout_s=0.3)
    assert f"is {file.parent} really the same disk on every node?" in str(caught.value)
    assert left(file) == []
    assert f"Waiting for rank 0 to make {file}, 0 s." in capfd.readouterr().err


def test_a_joiner_that_comes_first_finds_the_owner(file: Path):
    found: list[StoreLocation] = []
    thread = threading.Thread(target=lambda: found.append(join(file)))
    thread.start()
    time.sleep(0.1)
    join(file, may_own=True, must_own=True)
    thread.join(5)
    assert [each.port for each in found] == [29500]


def test_of_many_one_owns(file: Path):
    found: list[StoreLocation] = []
    threads = [threading.Thread(target=lambda: found.append(join(file, may_own=True))) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(each.owned for each in found) == [False] * 11 + [True]
    assert len(left(file)) == 2


# ---- stale -----------------------------------------------------------------------------------------------------------


def stale(file: Path) -> dict[str, Any]:
    """Left by a process that was killed."""
    process = owner(file)
    content = json.loads(file.read_text())
    process.kill()
    process.communicate()
    assert file.exists()
    return content


def test_a_stale_file_is_named_and_replaced(file: Path, capfd: Any):
    old = stale(file)
    begin = time.monotonic()
    found = join(file, "new", may_own=True, must_own=True)
    assert found.owned
    assert 0.7 < time.monotonic() - begin < 2
    assert json.loads(file.read_text())["job_id"] == "new"
    said = capfd.readouterr().err
    assert (
        f"{file} is stale: its owner, {old['host']} (process {old['pid']}), no longer renews it. It is replaced."
        in said
    )
    remove_own_files()
    assert left(file) == [], "nothing is left of the old one"


def test_who_may_not_own_waits_for_the_new_one(file: Path, capfd: Any):
    stale(file)
    found: list[StoreLocation] = []
    thread = threading.Thread(target=lambda: found.append(join(file)))
    thread.start()
    time.sleep(1.2)
    assert found == [] and file.exists()
    join(file, may_own=True, must_own=True)
    thread.join(5)
    assert [each.port for each in found] == [29500]
    assert "no longer renews it. Waiting for a new one." in capfd.readouterr().err


def test_two_that_see_the_same_stale_file(file: Path):
    stale(file)
    found: list[StoreLocation] = []
    threads = [threading.Thread(target=lambda: found.append(join(file, may_own=True))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(15)
    assert sorted(each.owned for each in found) == [False] * 5 + [True]
    assert len(left(file)) == 2


def test_an_owner_that_was_only_slow_is_joined_after_all(file: Path):
    process = owner(file)
    process.send_signal(signal.SIGSTOP)
    found: list[StoreLocation] = []
    thread = threading.Thread(target=lambda: found.append(join(file)))
    thread.start()
    time.sleep(1.2)
    assert found == []
    process.send_signal(signal.SIGCONT)
    thread.join(5)
    assert [each.port for each in found] == [4711]
    end(process)


def test_who_replaced_it_keeps_it(file: Path):
    """The owner that was stopped, and given up, comes back and ends: the new file is not its own."""
    process = owner(file)
    process.send_signal(signal.SIGSTOP)
    assert join(file, may_own=True).owned
    process.send_signal(signal.SIGCONT)
    end(process)
    assert json.loads(file.read_text())["pid"] == os.getpid()
    remove_own_files()
    assert left(file) == []


# ---- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mine", [None, "b"])
def test_alive_with_another_job_id(file: Path, mine: str | None):
    join(file, "a", may_own=True)
    for may_own in (True, False):
        with pytest.raises(ConfigError) as caught:
            join(file, mine, may_own=may_own)
        (text,) = caught.value.mistakes
        assert f"{file} belongs to another job, that of " in text
        assert f"(process {os.getpid()}, cluster.job_id=a), which is alive; this one has cluster.job_id={mine}." in text
        assert "Hint: a file of its own for each job." in text
    assert json.loads(file.read_text())["job_id"] == "a"


def test_a_second_rank_0(file: Path):
    join(file, "a", may_own=True)
    with pytest.raises(ConfigError, match=r"this is rank 0 and must own .* is rank 0 started twice\?"):
        join(file, "a", may_own=True, must_own=True)


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"token": "x"}', "my thesis", "\udcff"])
def test_a_foreign_file_is_left_as_it_is(file: Path, content: str):
    file.write_bytes(content.encode(errors="surrogateescape"))
    begin = time.monotonic()
    with pytest.raises(ConfigError, match=r"must be a new file, but holds something else\. Hint: another path"):
        join(file, may_own=True)
    assert time.monotonic() - begin < 2
    assert file.read_bytes() == content.encode(errors="surrogateescape")
    assert left(file) == ["job42"]


def test_a_file_that_is_being_written_is_no_foreign_one(file: Path):
    """Also where the wait has lasted for long already."""
    stale(file)
    found: list[StoreLocation] = []
    thread = threading.Thread(target=lambda: found.append(join(file, may_own=True)))
    thread.start()
    time.sleep(0.4)
    file.write_text("")  # its owner has made it, and not yet written
    time.sleep(0.6)
    assert found == []
    file.unlink()
    thread.join(5)
    assert [each.owned for each in found] == [True]


def test_mistakes_of_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert mistakes(f"{tmp_path}/new") == []
    (text,) = mistakes(str(tmp_path))
    assert f"must be a file, but is a folder. Hint: file://{tmp_path}/job1." in text
    (text,) = mistakes(f"{tmp_path}/gone/job")
    assert f"but {tmp_path}/gone does not exist here. Hint: mount the shared disk, or make the folder." in text
    (tmp_path / "plain").touch()
    (text,) = mistakes(f"{tmp_path}/plain/job")
    assert "does not exist here" in text
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    (text,) = mistakes(f"{tmp_path}/link")
    assert "is a link to nothing" in text
    os.mkfifo(tmp_path / "pipe")
    (text,) = mistakes(f"{tmp_path}/pipe")
    assert "must be a plain file, or none yet" in text
    (text,) = mistakes(f"{tmp_path}/{'a' * 300}")
    assert "cannot be used: File name too long" in text
    monkeypatch.setattr(address_file.os, "access", lambda path, mode: False)  # root may write anywhere
    (text,) = mistakes(f"{tmp_path}/new")
    assert f"must be writable, but {tmp_path} is not, for this user. Hint: " in text
    with pytest.raises(ConfigError, match="must be writable"):
        join(tmp_path / "new", may_own=True)


def test_a_disk_that_refuses_is_said(file: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(address_file.Path, "write_text", refuse)
    with pytest.raises(ConfigError, match=r"job42 cannot be made: Read-only file system\. Hint: another folder"):
        join(file, may_own=True)


def test_without_patches_a_stale_file_takes_six_seconds():
    assert address_file.RENEW_S != 2.0  # patched here
    fresh = subprocess.run(
        [sys.executable, "-c",
         "from imagenet_ddp.distributed.rendezvous import address_file as p; print(p.STALE_S, p.RENEW_S)"],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert fresh.stdout.split() == ["5.0", "2.0"]


def test_a_new_owner_s_file_is_put_back(file: Path, monkeypatch: pytest.MonkeyPatch):
    """Between the look at the stale file and its removal another was quicker."""
    join(file, "new", may_own=True)
    content, before = file.read_text(), left(file)
    address_file._remove_stale(file, "old")
    assert left(file) == before
    read, stale_once = address_file._read, iter([{"token": "old"}])
    monkeypatch.setattr(address_file, "_read", lambda path: next(stale_once, None) or read(path))
    address_file._remove_stale(file, "old")
    assert (file.read_text(), left(file)) == (content, before)
