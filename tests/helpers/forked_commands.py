"""Start the project's commands within a tenth of a second, by forking them from helpers/fork_server.py.

    done = run("imagenet_ddp.train", "seed=1", folder=tmp_path, environment=clean_environ())

Importing torch and Lightning takes four fifths of the time of a small training. Commands still start as a user's do in
test_startup.py, test_packaging.py, test_default.py, tests/slurm, tests/tune,
distributed/rendezvous/test_announce_refusal.py, with forked=False, and if another program (torchrun, a script)
starts them.
"""

import atexit
import contextlib
import functools
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from conftest import PROBES, clean_environ
from helpers.fork_server import at_start

SERVER = Path(__file__).with_name("fork_server.py")


class Command:
    """A running command, with the part of subprocess.Popen's interface that the tests use.

    The command is the leader of its own session, and its output goes to files.
    """

    def __init__(self, server: subprocess.Popen[str], stem: Path, arguments: Sequence[str]) -> None:
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

    def send_signal(self, number: int) -> None:
        if self.returncode is None and self._server.poll() is None:  # all commands end with the server
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read(self, end: str, timeout_s: float) -> int:
        file, limit = Path(f"{self._stem}.{end}"), time.monotonic() + timeout_s
        while not file.exists():
            if self._server.poll() is not None and not file.exists():
                raise RuntimeError(f"{SERVER.name} ended with code {self._server.returncode}: no {file.name}")
            if time.monotonic() > limit:
                raise TimeoutError(f"no {file.name} within {timeout_s} s")
            time.sleep(0.01)
        return int(file.read_text())


class ForkServer:
    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="forked_commands_"))
        self._numbers = itertools.count()
        self._started: list[Command] = []
        # modules that look for GPUs on import must not initialise CUDA, which cannot be used after a fork
        environment = clean_environ(TORCH_CPP_LOG_LEVEL="ERROR", PYTORCH_NVML_BASED_CUDA_CHECK="1", PYTHONPATH=None)
        self._server = subprocess.Popen(
            [sys.executable, SERVER], stdin=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
        atexit.register(self._close)

    def start(
        self, module: str, *arguments: str, folder: Path, environment: dict[str, str], host: int | None = None
    ) -> Command:
        """Start `python -m module` with these arguments.

        host: pid of the first process of a host of helpers/hosts.py; None: this machine.
        """
        assert self._server.stdin
        stem = self._folder / str(next(self._numbers))
        request = [module, arguments, str(folder), environment, str(stem), host]
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        self._started.append(Command(self._server, stem, [module, *arguments]))
        return self._started[-1]

    def _close(self) -> None:
        for command in self._started:
            with contextlib.suppress(ProcessLookupError):
                command.kill()
        assert self._server.stdin
        self._server.stdin.close()
        try:
            self._server.wait(10)
        except subprocess.TimeoutExpired:
            self._server.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


@functools.cache
def fork_server() -> ForkServer:
    return ForkServer()


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
