"""Simulate several hosts on one machine by Linux namespaces with their own network card, host name, disk, /proc and
/dev/shm.

    with Hosts(["zeta", "alpha"], folder=tmp_path) as (zeta, alpha):
        process = zeta.popen(["python", "-m", "imagenet_ddp.doctor"])

Host i has the address 10.77.0.<i+1> on its card INTERFACE. A bridge in another namespace connects the cards, and no
route leads to other networks. DISK is a different folder on each host, and commands start in DISK/work. Every other
path is the same on all hosts, like a shared disk. As on Debian, a host's name resolves to 127.0.1.1 in its own
/etc/hosts; a host cannot resolve the names of the others.

The namespaces have no names on the machine, so they exist only as long as their first processes. A first process ends
when the pipe from the tests closes, even if the tests were killed, and all processes on its host end with it.
"""

import contextlib
import functools
import ipaddress
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from conftest import clean_environ
from helpers import forked_commands

INTERFACE = "ens5"
Process = forked_commands.Command
TOOLS = ("ip", "tc", "unshare", "nsenter", "mount")


# A folder that every distribution has: a new folder would have to be created on the machine itself, and removed again.
DISK = next(
    (path for path in map(Path, ("/mnt", "/srv", "/media")) if path.is_dir() and not any(path.iterdir())),
    Path("/nonexistent"),
)

# The first process of a host: sh -c BOOT sh NAME ETC FOLDER DISK. As process 1 of its namespace, it inherits the
# orphans; because it ignores SIGCHLD, it need not wait for them. It prints its pid as seen from outside, which it reads
# from the outer /proc before it mounts its own.
BOOT = """
set -e
read -r pid rest </proc/self/stat
mount -t proc proc /proc
if [ -d /sys/fs/cgroup ]; then mount --rbind /sys/fs/cgroup "$2/cgroup"; fi
mount -t sysfs sysfs /sys
if [ -d /sys/fs/cgroup ]; then mount --move "$2/cgroup" /sys/fs/cgroup; fi
mount -t tmpfs tmpfs /dev/shm
mount --bind "$2/hosts" /etc/hosts
if [ -e /etc/nsswitch.conf ]; then mount --bind "$2/nsswitch.conf" /etc/nsswitch.conf; fi
if [ -e /etc/resolv.conf ]; then mount --bind /dev/null /etc/resolv.conf; fi
mount --bind "$3" "$4"
echo "$1" >/proc/sys/kernel/hostname
for which in all default; do  # else IPv6 addresses exist for two seconds before they can be used
  if [ -e /proc/sys/net/ipv6 ]; then echo 0 >/proc/sys/net/ipv6/conf/$which/accept_dad; fi
done
ip link set lo up
echo "$pid"
exec env --ignore-signal=CHLD cat
"""
FLAGS = ("--net", "--uts", "--ipc", "--mount")


@functools.cache
def requirement() -> str | None:
    """Return the reason why hosts cannot run on this machine, or None if they can."""
    if sys.platform != "linux":
        return "hosts need the namespaces of Linux"
    if os.geteuid() != 0:
        return "hosts need namespaces, which only root may create"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"hosts need {', '.join(missing)} (packages iproute2, util-linux)"
    if not DISK.is_dir():
        return "hosts need an empty folder /mnt, /srv or /media"
    links = "ip link add name veth type veth && ip link add name bridge type bridge"
    trial = f"mount -t proc proc /proc && mount -t sysfs sysfs /sys && {links}"
    command = ["unshare", *FLAGS, "--pid", "--fork", "--kill-child", "sh", "-c", trial]
    done = subprocess.run(command, capture_output=True, text=True)
    return f"hosts cannot run here: {done.stderr.strip()}" if done.returncode else None


@contextlib.contextmanager
def first(command: Sequence[str | Path]) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start a command that prints a number when it is ready and ends when its input closes; yield (process, number).

    Raises RuntimeError if the command ends without printing a number.
    """
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    with process:
        try:
            assert process.stdout and process.stderr
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"no host: {process.stderr.read()}")
            yield process, int(line)
        finally:
            process.kill()


def in_network(pid: int, tool: Sequence[str], lines: str) -> None:
    """Run a tool in the network namespace of `pid`, with these lines as its input."""
    command = ["nsenter", f"--target={pid}", "--net", *tool]
    done = subprocess.run(command, input=lines, capture_output=True, text=True)
    assert done.returncode == 0, f"{tool}: {lines}{done.stdout}{done.stderr}"


def _address(digits: str) -> str:
    """Return an address of /proc/net/tcp, which prints words of 32 bits in the machine's byte order."""
    words = [int(digits[begin : begin + 8], 16).to_bytes(4, sys.byteorder) for begin in range(0, len(digits), 8)]
    return str(ipaddress.ip_address(b"".join(words)))


class Host:
    """A host of Hosts. `folder` is its DISK as seen from outside. The folder files/ next to it contains the host's
    /etc/hosts and the output of its commands."""

    def __init__(self, name: str, address: str, root: Path) -> None:
        self.name, self.address, self.folder, self._files = name, address, root / "disk", root / "files"
        for folder in (self.folder / "work", self.folder / "tmp", self._files / "cgroup"):
            folder.mkdir(parents=True)
        loopback = f"127.0.0.1 localhost\n127.0.1.1 {name}\n::1 localhost ip6-localhost ip6-loopback\n"
        (self._files / "hosts").write_text(loopback)
        (self._files / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
        self._started: list[Process] = []
        self.init = self.switch = 0
        self._port = ""

    @contextlib.contextmanager
    def up(self, switch: int, port: str) -> Iterator[None]:
        """Run the host, with its card connected to a port of the switch, until the block ends.

        switch: pid of a process in the network namespace of the bridge. port: name of the port.
        """
        boot = ["sh", "-c", BOOT, "sh", self.name, self._files, self.folder, DISK]
        with first(["unshare", *FLAGS, "--pid", "--fork", "--kill-child", *boot]) as (starter, self.init):
            self.switch, self._port = switch, port
            try:
                card = f"link add name {port} type veth peer name {INTERFACE} netns {self.init}\n"
                in_network(switch, ["ip", "-batch", "-"], f"{card}link set {port} master bridge up\n")
                address = f"addr add {self.address}/24 brd + dev {INTERFACE}\n"
                in_network(self.init, ["ip", "-batch", "-"], f"{address}link set {INTERFACE} up\n")
                yield
            finally:
                if starter.poll() is None:  # the first process of the host is running
                    os.kill(self.init, signal.SIGKILL)  # the kernel kills all other processes first
                for process in self._started:
                    process.wait()
                starter.wait()

    def popen(
        self, command: Sequence[str], env: dict[str, str] | None = None, *, folder: Path = DISK / "work"
    ) -> Process:
        """Fork `python -m module ...` or `torchrun ...` from a process that has imported torch, with TMPDIR on DISK."""
        environ = clean_environ(**{"TMPDIR": str(DISK / "tmp"), **(env or {})})
        assert forked_commands.can_fork(environ)
        words = ["torch.distributed.run", *command[1:]] if command[0] == "torchrun" else command[2:]
        self._started.append(Process(*words, folder=folder, environment=environ, host=self.init))
        return self._started[-1]

    def processes(self) -> dict[int, str]:
        """Return {pid as seen from outside: command line} of all processes of the host except its first one."""
        here = Path(f"/proc/{self.init}/ns/pid").readlink()
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # the process has ended
                if int(path.name) != self.init and (path / "ns/pid").readlink() == here:
                    found[int(path.name)] = (path / "cmdline").read_text().replace("\0", " ").strip()
        return {pid: command for pid, command in found.items() if command}  # a zombie has no command line

    def listening(self) -> set[str]:
        """Return the addresses, without ports, at which TCP sockets of the host listen."""
        tables = [Path(f"/proc/{self.init}/net/{name}").read_text(encoding="utf-8") for name in ("tcp", "tcp6")]
        rows = [line.split() for table in tables for line in table.splitlines()[1:]]
        return {_address(row[1].partition(":")[0]) for row in rows if row[3] == "0A"}

    def block(self, except_port: int) -> None:
        """Drop new TCP connections from other hosts to all ports but one, as a cloud's security group does."""
        if shutil.which("nft") is None:
            pytest.skip("a host's ports are blocked by nft (package nftables)")
        rule = f'iifname != "lo" tcp flags & (syn | ack) == syn tcp dport != {except_port} drop'
        table = f"table inet hosts {{\nchain input {{\ntype filter hook input priority 0;\n{rule}\n}}\n}}\n"
        in_network(self.init, ["nft", "-f", "-"], table)

    def drop_large(self, num_bytes: int, except_port: int) -> None:
        """Drop larger packets from other hosts, but to one port, without a word, as behind a path MTU black hole."""
        if shutil.which("nft") is None:
            pytest.skip("large packets are dropped by nft (package nftables)")
        rule = f'iifname != "lo" tcp dport != {except_port} meta length > {num_bytes} drop'
        table = f"table inet large {{\nchain input {{\ntype filter hook input priority 0;\n{rule}\n}}\n}}\n"
        in_network(self.init, ["nft", "-f", "-"], table)

    def slow(self, mbit: float) -> None:
        """Limit the host's cable in each direction to `mbit` Mbit/s, including the headers of Ethernet and TCP."""
        burst = max(64_000, int(mbit * 1e6 / 8 / 100))  # bytes; the kernel's clock ticks at least 100 times a second
        limit = f"tbf rate {int(mbit * 1e6)}bit burst {burst} latency 100ms"
        for pid, card in ((self.init, INTERFACE), (self.switch, self._port)):
            in_network(pid, ["tc", "-batch", "-"], f"qdisc replace dev {card} root {limit}\n")

    def cut(self) -> None:
        """Pull the cable: the address remains, no packet arrives, and no connection is closed."""
        in_network(self.switch, ["ip", "-batch", "-"], f"link set {self._port} down\n")

    def mend(self) -> None:
        in_network(self.switch, ["ip", "-batch", "-"], f"link set {self._port} up\n")
        # else a connection within the next 3 s fails with the unanswered ARP request that is still pending
        in_network(self.init, ["ip", "-batch", "-"], f"neigh flush dev {INTERFACE}\n")


class Hosts(contextlib.ExitStack):
    """Enter to start the hosts, in the order of their names; the test is skipped if hosts cannot run here.

    On exit, every process of the hosts is killed. The contents of their disks remain in folder/hosts.
    """

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        super().__init__()
        roots = [folder / "hosts" / name for name in names]
        self.hosts = tuple(Host(root.name, f"10.77.0.{number}", root) for number, root in enumerate(roots, start=1))

    def __enter__(self) -> tuple[Host, ...]:  # type: ignore[override]
        if reason := requirement():
            pytest.skip(reason)
        with contextlib.ExitStack() as stack:
            _, switch = stack.enter_context(first(["unshare", "--net", "sh", "-c", "echo $$; exec cat"]))
            in_network(switch, ["ip", "-batch", "-"], "link add name bridge type bridge\nlink set bridge up\n")
            for number, host in enumerate(self.hosts):
                stack.enter_context(host.up(switch, f"port{number}"))
            self.push(stack.pop_all())
        return self.hosts
