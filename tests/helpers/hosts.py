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
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from conftest import clean_environ
from helpers import forked_commands
from helpers.namespaces import BOOT, DISK, FLAGS, first, in_network, requirement

INTERFACE = "ens5"
Process = forked_commands.Command


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
        server = forked_commands.fork_server()
        self._started.append(server.start(*words, folder=folder, environment=environ, host=self.init))
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

    def block(self, except_port: int) -> None:
        """Drop new TCP connections from other hosts to all ports but one, as a cloud's security group does."""
        if shutil.which("nft") is None:
            pytest.skip("a host's ports are blocked by nft (package nftables)")
        rule = f'iifname != "lo" tcp flags & (syn | ack) == syn tcp dport != {except_port} drop'
        table = f"table inet hosts {{\nchain input {{\ntype filter hook input priority 0;\n{rule}\n}}\n}}\n"
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
