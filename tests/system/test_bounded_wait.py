import errno
import fcntl
import threading
from pathlib import Path

import pytest

from imagenet_ddp.system import bounded_wait


def test_who_waits_says_so_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bounded_wait, "REPORT_EVERY_S", 0.01)
    monkeypatch.setattr(bounded_wait, "POLL_S", 0.01)
    said, is_repeated = list[str](), threading.Event()

    def say(text: str) -> None:
        said.append(text)
        if len(said) >= 2:
            is_repeated.set()

    monkeypatch.setattr(bounded_wait, "print_message", say)
    lock, entered = tmp_path / "x.lock", threading.Event()

    def wait() -> None:
        with bounded_wait.lock_or_wait(lock):
            entered.set()

    with lock.open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        assert is_repeated.wait(60)
        assert not entered.is_set()
    assert entered.wait(60)
    assert f"Waiting for another process that prepares {tmp_path} (it holds x.lock)" in said[0]


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def flock(*_: object) -> None:  # as on Lustre without the mount option flock
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with bounded_wait.lock_or_wait(tmp_path / "x.lock"):
        pass
