"""Start the project's commands within a tenth of a second, by forking them from helpers/fork_server.py.

    done = run("imagenet_ddp.train", "seed=1", folder=tmp_path, environment=clean_environ())

Importing torch and Lightning takes four fifths of the time of a small training. Commands still start as a user's do in
test_startup.py, test_packaging.py, test_default.py, by submitit, with forked=False, and if another program (such as a
script) starts them that finds no program of write_programs on its PATH.
"""

import atexit
import contextlib
import functools
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from conftest import PROBES, clean_environ
from helpers.fork_server import at_start

SERVER = Path(__file__).with_name("fork_server.py")
SHARED = "IMAGENET_DDP_FORK_SERVER"  # environment variable: the server's folder, whose name its socket has
STARTED: list[Any] = []  # processes, which end with the test that started them (conftest.py)


class Command:
    """A forked `python -m module`, with the part of subprocess.Popen's interface that the tests use.

    The command is the leader of its own session, and its output goes to files. host: pid of the first process of a host
    of helpers/hosts.py; None: this machine. terminal: descriptor of a terminal that the session has, in place of the
    files.
    """

    def __init__(
        self, module: str, *arguments: str, folder: Path, environment: dict[str, str], host: int | None = None,
        terminal: int | None = None,
    ) -> None:  # fmt: skip
        self.args, self._code, server = [module, *arguments], None, fork_server()
        self._files = Path(tempfile.mkdtemp(dir=server))
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(f"\0{server.name}")
        words = [sys.executable, "-m", *self.args]
        # the first terminal that the leader of a session opens is that of the session
        before = None if terminal is None else functools.partial(os.open, os.ttyname(terminal), os.O_RDWR)
        request = pickle.dumps((words, str(folder), environment, [0, 1, 2], [], [], True, before))
        paths = (Path(os.devnull), self._files / "out", self._files / "err")
        with contextlib.ExitStack() as stack:
            fds = (
                [stack.enter_context(path.open("a+")).fileno() for path in paths]
                if terminal is None
                else [terminal] * 3
            )
            socket.send_fds(self._connection, [pickle.dumps((host, request, False))], fds)
        self.pid = int(self._connection.recv(64))  # the first command waits for the imports of the server
        atexit.register(self.kill)
        STARTED.append(self)

    @property
    def out(self) -> str:
        return (self._files / "out").read_text()

    @property
    def err(self) -> str:
        return (self._files / "err").read_text()

    def _ended(self, timeout_s: float) -> int | None:
        if self._code is None:
            self._connection.settimeout(timeout_s)
            with contextlib.suppress(TimeoutError, BlockingIOError):
                self._code = int(self._connection.recv(64) or -signal.SIGKILL)  # all commands end with the server
                self._connection.close()
        return self._code

    def poll(self) -> int | None:
        """Return the exit code, or -n if signal n ended the command; None while it runs."""
        return self._ended(0)

    returncode = property(poll)

    def wait(self, timeout: float = 600) -> int:
        if (code := self._ended(timeout)) is None:
            raise subprocess.TimeoutExpired(self.args, timeout, self.out, self.err)
        return code

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
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork_server() -> Path:
    """Return the folder of the fork server of all tests. The first process that needs it starts it; with pytest-xdist,
    that is the one that distributes the tests, whose environment the others inherit."""
    if SHARED not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix="forked_commands_"))
        # modules that look for GPUs on import must not initialise CUDA, which cannot be used after a fork
        environment = clean_environ(TORCH_CPP_LOG_LEVEL="ERROR", PYTORCH_NVML_BASED_CUDA_CHECK="1", PYTHONPATH=None)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"\0{folder.name}")  # an abstract name, because the path of a socket may be too long
            listener.listen(64)
            server = subprocess.Popen(
                [sys.executable, SERVER, folder], stdin=listener.fileno(), env=environment, start_new_session=True
            )
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        atexit.register(server.kill)
        os.environ[SHARED] = str(folder)
    return Path(os.environ[SHARED])


def write_programs(folder: Path) -> Path:
    """Write the programs `python` and `torchrun`, which fork `python -m` (helpers/forked_python.py), for the PATH of
    what starts commands. Returns the folder. Their environment must be one that may be forked (can_fork)."""
    folder.mkdir()
    stand_in = Path(__file__).with_name("forked_python.py")
    for name, words in (("python", ""), ("torchrun", "-m torch.distributed.run ")):
        program = folder / name
        command = f"{sys.executable} -IS {stand_in} {fork_server().name} {words}"
        program.write_text(f'#!/bin/sh\nexec {command}"$@"\n')
        program.chmod(0o755)
    return folder


def start_code(code: str, *args: Any) -> Command:
    """Start a process that executes this Python code. args: values that JSON can represent; see probes/run_code.py."""
    environment = clean_environ(PYTHONPATH=PROBES)
    return Command("run_code", code, json.dumps(args), folder=Path(PROBES), environment=environment)


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
        return Command(module, *arguments, folder=folder, environment=environment)
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    STARTED.append(process)
    return process


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
    return subprocess.CompletedProcess([module, *arguments], process.wait(), out, err)
