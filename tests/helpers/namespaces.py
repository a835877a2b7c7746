"""Create the Linux namespaces that helpers/hosts.py builds its hosts from. They have no names, and end with their first
process."""

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from conftest import ROOT

TOOLS = ("ip", "tc", "unshare", "nsenter", "mount")


def _hides(folder: Path, needed: Iterable[Path]) -> bool:
    return any(folder in (path, *path.parents) for each in needed for path in (each, each.resolve()))


_NEEDED = [ROOT, *map(Path, (sys.prefix, sys.base_prefix, sys.executable, tempfile.gettempdir()))]
# A folder that every distribution has: a new folder would have to be created on the machine itself, and removed again.
DISK = next(
    (path for path in map(Path, ("/mnt", "/srv", "/media")) if path.is_dir() and not _hides(path, _NEEDED)),
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
        return "hosts need a folder /mnt, /srv or /media that contains neither Python nor this project"
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
