"""Signed and unsigned messages through a store, and what is made of those that no process of a run posts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.fake_ranks import FakeRanks, call_all, connect, join_all, mistakes
from torch.distributed import HashStore, PrefixStore

from imagenet_ddp.cli.check_launch import find_place
from imagenet_ddp.config.schema.distributed import ClusterConfig
from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.config.schema.trainer import TrainerConfig
from imagenet_ddp.distributed.failure import read_failure
from imagenet_ddp.distributed.messages import Messages
from imagenet_ddp.distributed.secret import VARIABLE, read_secret
from imagenet_ddp.errors import ConfigError

KEY, OTHER = b"k" * 32, b"o" * 32


def refused(what: Callable[[], Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        what()
    (text,) = map(str, caught.value.mistakes)
    assert "Hint: " in text
    return text


@pytest.mark.parametrize("key", [None, KEY])
def test_what_is_posted_is_read(key: bytes | None) -> None:
    here, there = (Messages(store, key).under("run") for store in [HashStore()] * 2)
    value = {"path": "/\u00e4 b\n", "lr": 0.1, "none": None, "list": [1, "x", True]}
    here.set("a", value)
    assert there.get("a") == value
    assert [there.set_first("b", number) for number in (1, 2)] == [1, 1]
    assert there.get_many(["a", "b"]) == [value, 1]
    here.append("c", ["x", "y"])
    there.append("c", [["z", None]])
    assert here.get_lines("c") == ["x", "y", ["z", None]]


@pytest.mark.parametrize(
    ("own", "its", "said"),
    [
        (KEY, None, "must be signed with the secret of this command, but `a` is not signed. Hint: set cluster.secret_"),
        (KEY, OTHER, "must be signed with the secret of this command, but `a` is signed with another secret."),
        (None, OTHER, "the other nodes sign their messages, but this command has no secret. Hint: set cluster.secret_"),
    ],
)
def test_a_message_of_another_secret_is_refused(own: bytes | None, its: bytes | None, said: str) -> None:
    store: Any = HashStore()
    Messages(store, its).set("a", 1)
    assert said in refused(lambda: Messages(store, own).get("a"))


def test_a_signed_message_counts_only_where_it_was_posted() -> None:
    """Not at another key, in another part of the store, of another value, or among other members."""
    store: Any = HashStore()
    here = Messages(store, KEY)
    here.set("a", 1)
    (signed,) = store.multi_get(["a"])
    for key, part in (("b", here), ("y/a", here.under("y")), ("a", here.among(["1", "2"]))):
        store.set(key, signed)
        assert "is signed with another secret" in refused(lambda key=key, part=part: part.get(key[-1]))
    store.set("a", signed[:-1] + b"2")
    assert "is signed with another secret" in refused(lambda: here.get("a"))


@pytest.mark.parametrize("posted", [b"\x80\x04.", b"{", b"", b"[" * 100_000, b"hmac-sha256:"])
def test_no_json_is_refused(posted: bytes) -> None:
    store: Any = HashStore()
    store.set("a", posted)
    refused(lambda: Messages(store).get("a"))


def test_control_characters_are_escaped() -> None:
    store: Any = HashStore()
    store.set("a", json.dumps({"\x1b]0;x\x07": ["a\tb\nc", "\x9b2J\r"]}))
    assert Messages(store).get("a") == {"\\x1b]0;x\\x07": ["a\tb\nc", "\\x9b2J\\r"]}


@pytest.mark.parametrize(
    "posted", [[0, ["x"]], [True, ["x"]], [-9, ["x"]], [256, ["x"]], [1, []], [1, [2]], [1], "x", {}]
)
def test_a_failure_has_a_code_and_a_reason(posted: Any) -> None:
    root = Messages(HashStore())
    assert read_failure(root) is None
    root.set("failed", posted)
    assert refused(lambda: read_failure(root)).startswith("`failed` in the rendezvous store is not what a process of")


VERDICTS = [[], [1], [[[[0, 0]], [{"host": 1}]]], [[[[0, 5]], []]], {"a": 1}, "x", None]


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_verdict_of_another_kind_is_refused(verdict: Any) -> None:
    with FakeRanks(connect(2)) as fake_ranks:
        store = PrefixStore("ranks", next(fake_ranks.stores))
        store.set("verdict", json.dumps(verdict))
        (text,) = mistakes(fake_ranks.join(1, 2), ConfigError)
        assert text.startswith("`verdict` in the rendezvous store is not what a process of this run posts. Hint: ")


def test_a_recorded_verdict_does_not_count() -> None:
    """That of a run before, with the same members: it does not contain what this one has drawn."""
    connections = connect(2)
    with FakeRanks(connections) as fake_ranks:
        first, _ = join_all(fake_ranks, 2)
        recorded: Any = first.root.store.get("ranks/verdict")
    with FakeRanks(connections) as fake_ranks:
        PrefixStore("ranks", next(fake_ranks.stores)).set("verdict", recorded)
        (text,) = mistakes(fake_ranks.join(1, 2), ConfigError)
        assert text.startswith("`verdict` in the rendezvous store is not what a process of this run posts.")


def test_members_of_a_meeting_sign_for_each_other() -> None:
    with FakeRanks(connect(3)) as fake_ranks:
        members = join_all(fake_ranks, 3)
        assert len({each.store.path for each in members}) == 1
        for future in call_all(fake_ranks, members, lambda m: m.broadcast("x", m.number)):
            assert future.result(5) == 0


def cluster(path: Path | None, **more: Any) -> ClusterConfig:
    return ClusterConfig(secret_file=None if path is None else str(path), **more)


def test_the_secret_is_read_from_a_file_or_a_variable(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o640)
    assert read_secret(None, {}) is None
    assert read_secret(str(path), {VARIABLE: "f" * 16}) == b"0123456789abcdef"
    assert read_secret(None, {VARIABLE: "f" * 16}) == b"f" * 16
    nodes = CommonConfig(cluster=cluster(path, address="10.0.0.1"), trainer=TrainerConfig("cpu", num_nodes=2))
    found = find_place(nodes, {})
    assert found.secret == b"0123456789abcdef" and "0123" not in repr(found)
    assert find_place(CommonConfig(cluster=cluster(tmp_path / "none")), {}).secret is None, "one machine needs none"


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        ("0123456789abcde\n", 0o600, "must hold 16 to 4,096 bytes, got 15. Hint: `(umask 077; openssl rand"),
        ("f" * 5000, 0o600, "must hold 16 to 4,096 bytes, got 4,097."),
        ("f" * 64, 0o604, "must be closed to other users, because whoever reads it can sign. Hint: run `chmod o= "),
        (None, 0, "cannot be read: No such file or directory. Hint: "),
    ],
)
def test_a_file_that_is_no_secret(content: str | None, mode: int, said: str, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    assert said in refused(lambda: read_secret(str(path), {}))
    assert "fff" not in refused(lambda: read_secret(str(path), {}))
