"""A file on its way from number 0 to the others."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.fake_ranks import FakeRanks, call_all, connect, join_all
from torch.distributed import TCPStore

from imagenet_ddp.distributed import join as module
from imagenet_ddp.distributed.join import share_file


@pytest.fixture(scope="module")
def connections() -> list[TCPStore]:
    return connect(3)


@pytest.fixture
def fake_ranks(connections: list[TCPStore]) -> Iterator[FakeRanks]:
    with FakeRanks(connections) as fake_ranks:
        yield fake_ranks


@pytest.fixture
def sent(fake_ranks: FakeRanks) -> Callable[[Path | None], list[Path | None]]:
    def send(path: Path | None) -> list[Path | None]:
        members = join_all(fake_ranks, 3)
        return [future.result(60) for future in call_all(fake_ranks, members, lambda m: share_file(m, path))]

    return send


def test_a_file_that_is_there_is_not_sent(sent: Callable[..., Any], tmp_path: Path):
    path = tmp_path / "last.ckpt"
    path.write_bytes(b"weights")
    assert sent(path) == [path] * 3


def test_no_file(sent: Callable[..., Any]):
    assert sent(None) == [None] * 3


def elsewhere(monkeypatch: pytest.MonkeyPatch, path: Path, content: bytes | None) -> None:
    """On the disks of the others the path holds another content, or nothing: theirs is looked at by these threads,
    after number 0 has told of its own."""
    here, is_file = hashlib.sha256(path.read_bytes()).hexdigest(), Path.is_file
    leader: set[int] = set()
    digest = module.sha256

    def seen(each: Path) -> str:
        if each != path:
            return digest(each)
        if not leader:
            leader.add(threading.get_ident())
        mine = threading.get_ident() in leader
        return here if mine else hashlib.sha256(content or b"").hexdigest()

    monkeypatch.setattr(module, "sha256", seen)
    monkeypatch.setattr(Path, "is_file", lambda each: is_file(each) if each != path else content is not None)


@pytest.mark.parametrize("content", [None, b"the weights of another run"])
def test_a_file_that_is_lacking_is_sent(
    sent: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
):
    path = tmp_path / "last.ckpt"
    path.write_bytes(b"weights" * 1000)
    monkeypatch.setattr(module, "CHUNK_BYTES", 999)
    elsewhere(monkeypatch, path, content)
    found = sent(path)
    assert found[0] == path
    for copy in found[1:]:
        assert copy != path and copy.name == "last.ckpt"
        assert copy.read_bytes() == path.read_bytes()
    assert found[1] != found[2]
