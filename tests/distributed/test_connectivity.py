"""Do the nodes reach each other? Two machines on one, told apart by what they say of themselves."""

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from imagenet_ddp.distributed import connectivity
from imagenet_ddp.distributed.compare_members import Member
from imagenet_ddp.distributed.connectivity import check_connectivity, own_address
from imagenet_ddp.distributed.meet import Meeting
from imagenet_ddp.distributed.messages import Messages
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.errors import SharedError
from imagenet_ddp.system import interfaces


def tried(machines: str, address_of: Callable[[int], str] = lambda rank: "127.0.0.1") -> list[list[str]]:
    """machines: a letter per rank. The mistakes that each rank is told."""
    members = [Member(f"host-{machine}", 1, machine, "") for machine in machines]
    store = Messages(HashStore())

    def one(rank: int) -> list[str]:
        threading.current_thread().name = str(rank)
        try:
            check_connectivity(Meeting(store, store, Place(rank), members, 20), address_of(rank))
        except SharedError as error:
            return list(map(str, error.mistakes))
        return []

    with ThreadPoolExecutor(len(machines)) as pool:
        return list(pool.map(one, range(len(machines))))


@pytest.mark.parametrize("machines", ["aa", "abab", "aaabbbccc"])
def test_all_reach_each_other(machines: str):
    assert tried(machines) == [[]] * len(machines)


def test_an_address_that_cannot_be_reached_is_named_to_all(monkeypatch: pytest.MonkeyPatch):
    """Both came to the rendezvous, but nothing of the first machine is heard at the address it gives."""
    monkeypatch.setattr(connectivity, "_listen", lambda: socket.create_server(("127.0.0.1", 0)))
    found = tried("aabb", lambda rank: "127.0.0.2" if rank < 2 else "127.0.0.1")
    assert all(mistakes == found[0] for mistakes in found)
    (text,) = found[0]
    assert text.startswith("node 1 (host-b) cannot reach node 0 (host-a) at 127.0.0.2:")
    assert ": Connection refused, although both reach the rendezvous. Hint: allow all TCP ports" in text


def test_every_node_is_tried_by_some_other():
    for size in (2, 3, 16, 17, 100):
        pairs = {(node, other) for node in range(size) for other in connectivity._targets(node, size)}
        assert {other for _, other in pairs} == set(range(size))
        assert all(node != other for node, other in pairs)
        assert len(pairs) == size * (size - 1) if size <= 16 else len(pairs) <= 2 * size


def test_own_address(monkeypatch: pytest.MonkeyPatch):
    known = [
        interfaces.Interface("lo", ("127.0.0.1",), True, True),
        interfaces.Interface("eth0", ("10.0.0.5", "fd00::5"), True, False),
        interfaces.Interface("empty", (), True, False),
    ]
    monkeypatch.setattr(interfaces, "interfaces", lambda: known)
    monkeypatch.setattr(interfaces, "source_address", lambda number: {"10.1.1.20": "10.1.1.7"}.get(number))
    for environ, master, expected in (
        ({}, "10.1.1.20", "10.1.1.7"),
        ({"GLOO_SOCKET_IFNAME": "eth0,lo"}, "10.1.1.20", "10.0.0.5"),
        ({"GLOO_SOCKET_IFNAME": "empty"}, "10.1.1.20", "10.1.1.7"),
        ({}, "10.1.1.99", "10.1.1.99"),
    ):
        assert own_address(environ, master) == expected
