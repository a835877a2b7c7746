"""Start the project's commands within a tenth of a second, by forking them from helpers/fork_server.py.

    done = run("imagenet_ddp.train", "seed=1", folder=tmp_path, environment=clean_environ())

Importing torch and Lightning takes four fifths of the time of a small training. Commands still start as a user's do in
test_startup.py, test_packaging.py, test_default.py, tests/slurm, with forked=False, and if another program (such as a
script) starts them.
"""

import atexit
import contextlib
import functools
import itertools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conftest import PROBES, clean_environ
from helpers.fork_server import at_start

SERVER = Path(__file__).with_name("fork_server.py")
SHARED = "IMAGENET_DDP_FORK_SERVER"


class Command:
    """A running command, with the part of subprocess.Popen's interface that the tests use.

    The command is the leader of its own session, and its output goes to files.
    """

    def __init__(self, server: "ForkServer", stem: Path, arguments: Sequence[str]) -> None:
        self._server, self._stem, self.args = server, stem, list(arguments)
        self.pid = self._read("pid", 300)  # the first command waits for the imports of the server

    @property
    def out(self) -> str:
        return Path(f"{self._stem}.out").read_text()

    @property
    def err(self) -> str:
        return Path(f"{self._stem}.err").read_text()

    @property
    def returncode(self) -> int | None:
        """The exit code, or -n if signal n ended the command; None while it runs."""
        file = Path(f"{self._stem}.code")
        return int(file.read_text()) if file.exists() else None

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float = 600) -> int:
        try:
            return self._read("code", timeout)
        except TimeoutError:
            raise subprocess.TimeoutExpired(self.args, timeout, self.out, self.err) from None

    def communicate(self, timeout: float = 600) -> tuple[str, str]:
        self.wait(timeout)
        return self.out, self.err

    def wait_for_line(self, word: str, timeout_s: float = 60) -> str:
        """Wait for a complete output line that starts with `word`, and return it. Raises AssertionError after
        timeout_s."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            for line in self.out.splitlines(keepends=True):
                if line.startswith(word) and line.endswith("\n"):
                    return line.strip()
            time.sleep(0.01)
        raise AssertionError(f"no {word!r} within {timeout_s} s: {self.out}{self.err}")

    def send_signal(self, number: int) -> None:
        if self.returncode is None and not self._server.has_ended():  # all commands end with the server
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read(self, end: str, timeout_s: float) -> int:
        file, limit = Path(f"{self._stem}.{end}"), time.monotonic() + timeout_s
        while not file.exists():
            if self._server.has_ended() and not file.exists():
                raise RuntimeError(f"{SERVER.name} ended: no {file.name}")
            if time.monotonic() > limit:
                raise TimeoutError(f"no {file.name} within {timeout_s} s")
            time.sleep(0.01)
        return int(file.read_text())


class ForkServer:
    """A fork server that this process or, with pytest-xdist, the process that distributes the tests has started."""

    def __init__(self, folder: Path, pid: int) -> None:
        self.pid = pid
        self._end = select.poll()  # asked a hundred times a second by each command that is waited for
        self._end.register(os.pidfd_open(pid))
        self._files = Path(tempfile.mkdtemp(dir=folder))
        self._numbers = itertools.count()
        self._started: list[Command] = []
        self._requests = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._requests.connect(f"\0{folder.name}")
        atexit.register(self._close)

    def start(
        self, module: str, *arguments: str, folder: Path, environment: dict[str, str], host: int | None = None
    ) -> Command:
        """Start `python -m module` with these arguments.

        host: pid of the first process of a host of helpers/hosts.py; None: this machine.
        """
        stem = self._files / str(next(self._numbers))
        self._requests.send(json.dumps([module, arguments, str(folder), environment, str(stem), host]).encode())
        self._started.append(Command(self, stem, [module, *arguments]))
        return self._started[-1]

    def has_ended(self) -> bool:
        return bool(self._end.poll(0))

    def _close(self) -> None:
        for command in self._started:
            with contextlib.suppress(ProcessLookupError):
                command.kill()
        self._requests.close()


def start_fork_server() -> tuple[Path, int]:
    """Start a fork server, which ends with this process. Return (the folder whose name its socket has, its pid)."""
    folder = Path(tempfile.mkdtemp(prefix="forked_commands_"))
    # modules that look for GPUs on import must not initialise CUDA, which cannot be used after a fork
    environment = clean_environ(TORCH_CPP_LOG_LEVEL="ERROR", PYTORCH_NVML_BASED_CUDA_CHECK="1", PYTHONPATH=None)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as requests:
        requests.bind(f"\0{folder.name}")  # an abstract name, because the path of a socket may be too long
        server = subprocess.Popen(
            [sys.executable, SERVER], stdin=requests.fileno(), env=environment, start_new_session=True
        )

    def close() -> None:
        server.kill()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(close)
    return folder, server.pid


@functools.cache
def fork_server() -> ForkServer:
    """Return the fork server of all tests. The first that needs it waits for its imports, and starts it without
    pytest-xdist."""
    if shared := os.environ.get(SHARED):
        folder, pid = json.loads(shared)
        return ForkServer(Path(folder), pid)
    return ForkServer(*start_fork_server())


def share_fork_server() -> None:
    """Start a fork server for the worker processes of pytest-xdist, which inherit this environment."""
    folder, pid = start_fork_server()
    os.environ[SHARED] = json.dumps([str(folder), pid])


def start_code(code: str, *args: Any) -> Command:
    """Start a process that executes this Python code. args: values that JSON can represent; see probes/run_code.py."""
    environment = clean_environ(PYTHONPATH=PROBES)
    return fork_server().start("run_code", code, json.dumps(args), folder=Path(PROBES), environment=environment)


def can_fork(environment: dict[str, str]) -> bool:
    """Return whether a process in this environment may be forked: the variables that Python reads at its start must
    have the server's values."""
    here = clean_environ()
    if environment.get("PYTHONPATH") == PROBES:  # this folder has no sitecustomize.py
        here["PYTHONPATH"] = PROBES
    return sys.platform == "linux" and at_start(here) == at_start(environment)


def start(
    module: str, *arguments: str, folder: Path, environment: dict[str, str], forked: bool = True
) -> Command | subprocess.Popen[str]:
    """Start `python -m module` in its own session.

    forked: fork the process if its environment permits it (can_fork); false: always start a new Python.
    """
    if forked and can_fork(environment):
        return fork_server().start(module, *arguments, folder=folder, environment=environment)
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(
    module: str, *arguments: str, folder: Path, environment: dict[str, str], timeout_s: float = 240
) -> subprocess.CompletedProcess[str]:
    """Run `python -m module` to its end. Raises subprocess.TimeoutExpired, as subprocess.run does, after killing the
    command."""
    process = start(module, *arguments, folder=folder, environment=environment)
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
    assert process.returncode is not None
    return subprocess.CompletedProcess([module, *arguments], process.returncode, out, err)
