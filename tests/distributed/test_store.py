"""The rendezvous store: serving it, finding it, and the errors where it is missing."""

import errno
import socket
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from helpers.ports import free_port, program
from helpers.private_network import in_own_network
from torch.distributed import DistStoreError, TCPStore

from imagenet_ddp.distributed import store as module
from imagenet_ddp.distributed.commands import find_store
from imagenet_ddp.distributed.place import Address, Place
from imagenet_ddp.distributed.store import FoundStore, PortInUseError, client, connect, serve
from imagenet_ddp.distributed.store_file import StoreAddress, _connect_to_owner
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system import bounded_wait, interfaces


def sentence(what: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        what()
    (text,) = map(str, caught.value.mistakes)
    assert "Hint: " in text
    return text


def test_rank_0_serves_and_the_others_find_it():
    port = free_port()
    second = Place(1, 1, 0, 2, 2, 1, Address("127.0.0.1", port))
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(connect(second, 20)))
    thread.start()  # before there is a server
    time.sleep(0.3)
    server = serve("127.0.0.1", port)
    thread.join(20)
    connect(replace(second, rank=0), 20).set("key", "word")
    assert found[0].get("key") == "word"
    assert serve("127.0.0.1", port) is server, "once in a process"
    assert server.get("imagenet_ddp/0/key") == b'"word"'
    again = connect(replace(second, attempt=1), 20)
    assert not again.has("key"), "a launcher's second attempt has keys of its own"


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    monkeypatch.setattr(bounded_wait, "REPORT_EVERY_S", 0.2)
    port = free_port()
    text = sentence(lambda: client("127.0.0.1", port, 0.6, "rank 1 of 2"))
    assert f" s for rank 0 at 127.0.0.1:{port}, but nothing listens there yet. Missing: rank 0 (node 0). Hint:" in text
    assert f"Waiting for rank 0 at 127.0.0.1:{port}: nothing listens there yet" in capfd.readouterr().err


def test_a_name_that_does_not_resolve():
    for what in (lambda: client("a..b", 29500, 60, "rank 1 of 2"), lambda: serve("a..b", 29500)):
        assert sentence(what).startswith("the name a..b cannot be resolved on this machine: ")


def test_in_kubernetes_a_name_is_waited_for(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """Name servers learn the name of a pod after it has started, and keep that of its predecessor for a while."""
    monkeypatch.setattr(module, "NAME_POLL_S", 0.05)
    monkeypatch.setattr(bounded_wait, "REPORT_EVERY_S", 0.01)
    server, unknown = serve("127.0.0.1", free_port()), socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    own = Place(node_rank=0, num_nodes=2, is_node=True, address=Address("pod-0.job", server.port), hosts_move=True)
    other, old = replace(own, node_rank=1), "192.0.2.7"  # the address of the pod that had the name before
    try_client, gone = module.try_client, [OSError(errno.EHOSTUNREACH, "No route to host")] * 3

    def answered(*answers: str | OSError, of: Place) -> FoundStore:
        left = [*answers]

        def resolve(host: str) -> str:
            answer = left.pop(0) if left else "127.0.0.1"
            if isinstance(answer, OSError):
                raise answer
            return answer

        monkeypatch.setattr(interfaces, "resolve", resolve)
        return find_store(of, 20, "node 1 of 2")

    def first_unreachable(*args: Any, **kwargs: Any) -> TCPStore | None:
        if gone:
            raise gone.pop()
        return try_client(*args, **kwargs)

    monkeypatch.setattr(module, "try_client", first_unreachable)
    assert answered(unknown, unknown, old, unknown, of=other).port == server.port
    assert "pod-0.job, which cannot be resolved yet: Name or service not known, 0 s." in capfd.readouterr().err
    monkeypatch.setattr(module, "serve", lambda host, port: server)
    assert answered(unknown, old, old, of=own).is_server
    assert "pod-0.job, which still resolves to 192.0.2.7, which is not this machine" in capfd.readouterr().err
    with pytest.raises(ConfigError, match=r"the name pod-0\.job cannot be resolved"):
        answered(unknown, of=replace(other, hosts_move=False))


def test_an_address_that_is_not_ours():
    text = sentence(lambda: serve("192.0.2.7", 29500))
    assert text.startswith("192.0.2.7 must be an address of this machine, because node 0 and rank 0 run here, ")
    assert "127.0.0.1" in text


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", None])
def test_another_program_at_the_port(answer: bytes | None, monkeypatch: pytest.MonkeyPatch):
    """One that speaks another language, one that stays silent."""
    monkeypatch.setattr(module, "ANSWER_S", 1.0)
    monkeypatch.setattr(module, "NAME_LOOKUP_S", 1.0 if answer is None else 20.0)  # torch itself gives up after 7 s
    with program(answer) as port:
        text = sentence(lambda: client("127.0.0.1", port, 60, "rank 1 of 2"))
        with pytest.raises(PortInUseError, match=f"port {port} of this machine is in use"):  # for who serves
            serve("127.0.0.1", port)
    assert text.startswith(f"rank 1 of 2 needs the rendezvous store at 127.0.0.1:{port}, but another program answers")
    assert ("(it accepts connections, but sends nothing" in text) == (answer is None)


def test_a_store_that_answers_slowly_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    """An overloaded machine: the store is ours, so it is neither another program's nor a stale file's."""
    server = serve.__wrapped__("127.0.0.1", 0)  # its own, not the cached one
    server.set(module.OWNER_KEY, "token")
    tries: list[str] = []

    class Slow(TCPStore):
        def get(self, key: str) -> bytes:
            tries.append(key)
            if len(tries) == 1:
                raise DistStoreError("wait timeout after 5000ms")
            return super().get(key)

    monkeypatch.setattr(module, "TCPStore", Slow)
    assert client("127.0.0.1", server.port, 10, "rank 1 of 2").port == server.port
    tries.clear()
    content = StoreAddress("h", 1, "another", "", "token", None, ["127.0.0.1"], server.port)
    found, unreachable = _connect_to_owner(content, "rank 1")
    assert found is None and "does not answer within 5 s" in unreachable
    found, unreachable = _connect_to_owner(content, "rank 1")
    assert isinstance(found, FoundStore) and not unreachable


NETWORK = r"""
    ip link add card type veth peer name far
    ip addr add 10.9.9.1/24 dev card
    ip link set card up; ip link set far up
    ip neigh add 10.9.9.9 lladdr 02:00:00:00:00:09 dev card
    names=$(mktemp); printf 'nameserver 10.9.9.9\noptions timeout:3 attempts:1\n' >$names
    mount --bind $names /etc/resolv.conf; rm -f $names
"""
SCRIPT = """
import os, socket, tempfile, threading
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
from imagenet_ddp.distributed import store
from imagenet_ddp.errors import ConfigError

def said(name, what):
    begin = time.monotonic()
    try:
        what()
    except ConfigError as error:
        out[name] = [str(error), time.monotonic() - begin]

said("no route", lambda: store.client("192.0.2.1", 29500, 60, "rank 1 of 2"))
store.ANSWER_S = 0.5
said("silent", lambda: store.client("10.9.9.9", 29500, 60, "rank 1 of 2"))
store.ANSWER_S = 1.0
begin = time.monotonic()
pipe = os.pipe()
server = os.fork()
if not server:
    os.write(pipe[1], str(store.serve("10.9.9.1", 0).port).encode())
    time.sleep(60)
port = int(os.read(pipe[0], 100))
out["server"] = time.monotonic() - begin
errors = tempfile.TemporaryFile()
os.dup2(errors.fileno(), 2)
out["client"] = store.client("10.9.9.1", port, 60, "rank 1 of 2").get(store.OWNER_KEY).decode()
out["both"] = time.monotonic() - begin
os.kill(server, 9)
errors.seek(0)
out["errors"] = errors.read().decode()
"""


@pytest.mark.slow
def test_in_a_network_of_its_own():
    """No route; a machine that drops what is sent; and a name server that does not answer, which torch asks."""
    found = in_own_network(NETWORK, SCRIPT)
    for name, why in (
        ("no route", "192.0.2.1:29500: Network is unreachable"),
        ("silent", "10.9.9.9:29500: no answer within 0 s, not even a refusal"),
    ):
        text, seconds = found[name]
        assert text.startswith(f"rank 1 of 2 cannot reach {why}. Hint: check that the address is correct, and")
        assert seconds < 4
    assert found["client"] == ""
    assert 2 < found["server"] < found["both"] < 50, "the name server was waited for"
    assert found["errors"] == "", "no stack trace of torch on the way"
