"""The simulated hosts behave as separate machines do."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.hosts import DISK, INTERFACE, Host, Hosts, Process, requirement

pytestmark = pytest.mark.skipif(requirement() is not None, reason=str(requirement()))

# SERVE port: return the last byte of all data received. CALL address port mib timeout_s: send this amount of data, wait
# for its last byte, and print the seconds.
SERVE = """
import socket, sys
with socket.create_server(("", int(sys.argv[1]))) as server:
    print("ready", flush=True)
    while True:
        connection, _ = server.accept()
        with connection:
            while data := connection.recv(1 << 16):
                connection.sendall(data[-1:])
"""
CALL = """
import socket, sys, time
count = int(float(sys.argv[3]) * 2**20) or 1
start = time.perf_counter()
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[4])) as connection:
    connection.sendall(bytes(count - 1) + b"!")
    while not connection.recv(1 << 16).endswith(b"!"):
        pass
print(time.perf_counter() - start)
"""
MISSING = "10.77.0.99"


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Host, ...]]:
    with Hosts(["zeta", "alpha"], tmp_path) as hosts:
        yield hosts


def wait_for(condition: Callable[[], object], timeout_s: float = 20) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)


def serve(host: Host, port: int) -> Process:
    process = host.popen(["python", "-c", SERVE, str(port)])
    wait_for(lambda: process.out or process.poll() is not None)
    assert process.out.strip() == "ready", process.err  # the end of the line may be on its way
    return process


def call(
    host: Host, address: str, port: int, mib: float = 0, timeout_s: float = 1.5
) -> subprocess.CompletedProcess[str]:
    return host.run(["python", "-c", CALL, address, str(port), str(mib), str(timeout_s)], timeout_s=60)


def assert_through(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr


def assert_fails(done: subprocess.CompletedProcess[str], how: str) -> None:
    assert done.returncode == 1
    assert how in done.stderr


def printed(host: Host, *command: str) -> str:
    done = host.run(command)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_addresses_names_and_interfaces(two: tuple[Host, Host]) -> None:
    zeta, alpha = two
    for host, other in (zeta, alpha), (alpha, zeta):
        assert printed(host, "python", "-c", "import socket; print(socket.gethostname())") == host.name
        assert printed(host, "getent", "hosts", host.name).split() == ["127.0.1.1", host.name]
        assert f" {host.address}/24 " in printed(host, "ip", "-4", "addr", "show", INTERFACE)
        assert sorted(printed(host, "ls", "/sys/class/net").split()) == sorted([INTERFACE, "lo"])
        serve(host, 5000)
        assert_through(call(other, host.address, 5000))
        assert_through(call(host, host.address, 5000))
        assert_fails(call(other, host.address, 5001), "ConnectionRefusedError")
        start = time.monotonic()
        assert_fails(call(other, host.name, 5000), "Name or service not known")
        assert_fails(call(host, "192.0.2.1", 5000), "Network is unreachable")
        assert time.monotonic() - start < 5
        other.add_name(host.name, host.address)
        assert_through(call(other, host.name, 5000))
    assert (zeta.address, alpha.address) == ("10.77.0.1", "10.77.0.2")
    assert_fails(call(zeta, MISSING, 5000, timeout_s=10), "No route to host")
    assert os.uname().nodename not in ("zeta", "alpha")
    assert "10.77.0." not in subprocess.check_output(["ip", "address"], text=True)


def test_each_has_a_disk_and_memory_of_its_own(two: tuple[Host, Host], tmp_path: Path) -> None:
    script = f"pwd; hostname >{DISK}/who; hostname >/dev/shm/who; hostname >>'{tmp_path}/shared'"
    for host in two:
        assert printed(host, "sh", "-c", script) == f"{DISK}/work"
    for host in two:
        assert printed(host, "cat", f"{DISK}/who", "/dev/shm/who") == f"{host.name}\n{host.name}"
        assert (host.folder / "who").read_text() == f"{host.name}\n"
    assert (tmp_path / "shared").read_text() == "zeta\nalpha\n"
    assert not (DISK / "who").exists() and not Path("/dev/shm/who").exists()


def test_blocked_ports(two: tuple[Host, Host]) -> None:
    zeta, alpha = two
    for port in (5000, 5001):
        serve(zeta, port)
    serve(alpha, 5000)
    zeta.block(ports=[5001])
    assert_through(call(alpha, zeta.address, 5000))
    assert_fails(call(alpha, zeta.address, 5001), "TimeoutError")
    zeta.block(except_ports=[5001])
    assert_fails(call(alpha, zeta.address, 5000), "TimeoutError")
    assert_through(call(alpha, zeta.address, 5001))
    assert_through(call(zeta, zeta.address, 5000))
    assert_through(call(zeta, alpha.address, 5000))
    zeta.block(how="reject")
    assert_fails(call(alpha, zeta.address, 5001), "ConnectionRefusedError")
    zeta.unblock()
    assert_through(call(alpha, zeta.address, 5000))


def test_a_cable_is_pulled_and_put_back(two: tuple[Host, Host]) -> None:
    zeta, alpha = two
    serve(zeta, 5000)
    zeta.cut()
    assert printed(zeta, "cat", f"/sys/class/net/{INTERFACE}/carrier") == "0"
    assert_fails(call(alpha, zeta.address, 5000), "TimeoutError")
    zeta.mend()
    assert_through(call(alpha, zeta.address, 5000, timeout_s=10))


def test_nothing_is_left_of_a_failing_test(tmp_path: Path) -> None:
    cards, pids = sorted(Path("/sys/class/net").iterdir()), set[int]()

    def failing() -> None:
        with Hosts(["zeta", "alpha"], tmp_path) as hosts:
            for host in hosts:  # processes that only SIGKILL ends, one of them in its own session
                host.popen(["bash", "-c", "trap '' INT TERM HUP; (setsid sleep 1000 &); sleep 1001; exit"])
                wait_for(lambda host=host: len(host.processes()) == 3)
                pids.update(host.processes())
            hosts[1].cut()
            raise KeyError("a failing test")

    with pytest.raises(KeyError, match="a failing test"):
        failing()
    assert len(pids) == 6
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert sorted(Path("/sys/class/net").iterdir()) == cards
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
