"""Check before training that the nodes reach each other on ports other than the rendezvous port, also with much data.

The security group of a cloud often opens only one port, and a tunnel or a VPN may drop large packets without an error
(a path MTU black hole). The first collective then hangs."""

import contextlib
import errno
import socket
import threading
from collections.abc import Mapping

from imagenet_ddp.distributed.failure import LARGE, explain_lost_store
from imagenet_ddp.distributed.meet import Meeting
from imagenet_ddp.distributed.messages import as_posted
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system import interfaces
from imagenet_ddp.system.bounded_wait import Deadline

CONNECT_S = 5.0
TRIAL_BYTES = 2**20  # sent in each direction
STALL_S = 10.0  # without a single byte
CHECK_S = 60.0  # at most for all nodes
POLL_S = 0.2
MAX_ALL_PAIRS = 16  # with more nodes than this, each node tries only the first node and the next node
BLOCKED = (
    "allow all TCP ports between the nodes in the cloud's security group and in each machine's firewall, or correct "
    "the interface in nccl.env.GLOO_SOCKET_IFNAME or nccl.env.NCCL_SOCKET_IFNAME"
)


def own_address(environ: Mapping[str, str], master: str) -> str:
    """Return the address at which the other nodes reach this node: that of Gloo's interface, or else of the interface
    used to reach the rendezvous address."""
    wanted = environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    for interface in interfaces.interfaces():
        if interface.name == wanted and interface.addresses:
            return interface.addresses[0]
    return interfaces.source_address(interfaces.resolve(master)) or master


def check_connectivity(meeting: Meeting, address: str) -> None:
    """Check the connections between the nodes, from the first rank of each node. Call this on all ranks.

    address: address at which the other machines reach this machine. Raises SharedError on all ranks if a node is
    unreachable. The error names the node.
    """
    members, number, store = meeting.members, meeting.number, meeting.store
    machines = list(dict.fromkeys(member.machine for member in members))
    node_of = [machines.index(member.machine) for member in members]
    first_ranks = [node_of.index(node) for node in range(len(machines))]
    node = node_of[number]
    found = dict[str, list[str]]()  # node that is not reached -> [address, reason, hint]
    with contextlib.ExitStack() as stack:
        if first_ranks[node] == number:
            listener = stack.enter_context(_listen())
            threading.Thread(target=_answer, args=(listener,), daemon=True).start()
            store.set(f"node_address/{node}", [address, listener.getsockname()[1]])
            addresses = dict[int, tuple[str, int]]()
            for other in _targets(node, len(machines)):
                with explain_lost_store():
                    posted = store.get(f"node_address/{other}")  # soon set: all ranks have met
                with as_posted("node_address"):
                    addresses[other] = str(posted[0]), int(posted[1])
            found = _try_all(addresses)

        def require_reachable(of_ranks: list[Mapping[str, list[str]]]) -> None:
            mistakes = [
                f"node {node_of[rank]} ({members[rank].host}) cannot reach node {other} "
                f"({members[first_ranks[int(other)]].host}) at {where}: {reason}, although both reach the rendezvous. "
                f"Hint: {hint}."
                for rank, others in enumerate(of_ranks)
                for other, (where, reason, hint) in others.items()
            ]
            if mistakes:
                raise ConfigError(mistakes)

        meeting.agree("connectivity", found, require_reachable, max(meeting.timeout_s, 2 * CHECK_S))


def _targets(node: int, num_nodes: int) -> list[int]:
    if num_nodes <= MAX_ALL_PAIRS:
        return [other for other in range(num_nodes) if other != node]
    return sorted({0, (node + 1) % num_nodes} - {node})


def _try_all(addresses: Mapping[int, tuple[str, int]]) -> dict[str, list[str]]:
    """Try all nodes at once. Return [address, reason, hint] for each that is not reached. addresses: host and port of
    each node."""
    found, threads = dict[str, list[str]](), dict[int, threading.Thread]()

    def run(node: int, host: str, port: int) -> None:
        if why := _try(host, port):
            found[str(node)] = [f"{host}:{port}", *why]

    for node, (host, port) in addresses.items():
        threads[node] = threading.Thread(target=run, args=(node, host, port), daemon=True)
        threads[node].start()
    deadline = Deadline(CHECK_S)
    for node, thread in threads.items():
        thread.join(deadline.remaining_s)
        if thread.is_alive():
            found[str(node)] = ["{}:{}".format(*addresses[node]), f"1 MB takes longer than {CHECK_S:.0f} s", LARGE]
    return dict(found)


def _try(host: str, port: int) -> tuple[str, str] | None:
    """Send and receive TRIAL_BYTES. Return the reason why that is not possible, and a hint; None if it is."""
    is_connected = False
    try:
        with socket.create_connection((host, port), timeout=CONNECT_S) as connection:
            is_connected = True
            connection.settimeout(STALL_S)
            _send(connection)
            _receive(connection)
            return None
    except TimeoutError:
        if is_connected:
            return f"small packets arrive, but of 1 MB nothing more for {STALL_S:.0f} s", LARGE
        return f"no answer within {CONNECT_S:.0f} s", BLOCKED
    except OSError as error:
        return str(error.strerror or error), BLOCKED


def _send(connection: socket.socket) -> None:
    rest = memoryview(bytes(TRIAL_BYTES))
    while rest:
        rest = rest[connection.send(rest) :]


def _receive(connection: socket.socket) -> None:
    rest = TRIAL_BYTES
    while rest:
        received = len(connection.recv(min(rest, 2**16)))
        if not received:
            raise ConnectionResetError(errno.ECONNRESET, "the connection was closed")
        rest -= received


def _answer(listener: socket.socket) -> None:
    """Accept connections until the listener is closed. Receive and send TRIAL_BYTES over each."""

    def run(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(2 * STALL_S)  # the node that tries says what is wrong, unless it is closed here first
            _receive(connection)
            _send(connection)

    listener.settimeout(POLL_S)
    while True:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        except OSError:  # it is closed
            return
        threading.Thread(target=run, args=(connection,), daemon=True).start()


def _listen() -> socket.socket:
    """Listen on a free port at all of this machine's addresses."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
    return socket.create_server(("", 0), backlog=1024)
