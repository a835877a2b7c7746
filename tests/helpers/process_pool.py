"""Start real processes within milliseconds, by forking them from a server that has imported torch.

    member = process_pool().start("print(args[0], flush=True); sys.exit(3)", "hello")
    assert member.wait() == 3 and member.out == "hello\\n"

The code can use args, sys, os, time, json, timedelta, torch's TCPStore and PrefixStore, and the modules of the package
that SERVER imports. Each member is the leader of its own session, and is killed at the end of the tests.
"""

import atexit
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from conftest import ROOT, clean_environ

SERVER = """
import atexit, ctypes, gc, json, os, signal, sys, time, traceback
from datetime import timedelta
from torch.distributed import PrefixStore, TCPStore
from imagenet_ddp.distributed.rendezvous import connectivity
from imagenet_ddp.distributed.rendezvous import consistency
from imagenet_ddp.distributed.rendezvous import gather_ranks
from imagenet_ddp.distributed.rendezvous import failure_detector
from imagenet_ddp.distributed.rendezvous import address_file
from imagenet_ddp.distributed.rendezvous import find_store, rank_group, sockets, store
from imagenet_ddp.distributed.launchers.address import Address
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo
from imagenet_ddp.errors import ConfigError

def take_part(code, args, stem):
    for number, end in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(stem + end, os.O_CREAT | os.O_WRONLY, 0o600), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout, sys.stderr = open(1, "w", buffering=1), open(2, "w", buffering=1)
    try:
        exec(code, {**globals(), "args": args})
        return 0
    except SystemExit as end:
        return end.code or 0
    except Exception:
        traceback.print_exc()
        return 99
    finally:
        atexit._run_exitfuncs()

gc.freeze()  # a collection in a member would copy every page
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    code, args, stem = json.loads(line)
    if os.fork():
        continue
    sys.stdin.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    end, begin = os.pipe()
    if pid := os.fork():  # this process waits for the member, and writes its exit code to a file
        os.close(end)
        with open(stem + ".pid~", "w") as file:
            file.write(str(pid))
        os.rename(stem + ".pid~", stem + ".pid")
        os.close(begin)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with open(stem + ".code~", "w") as file:
            file.write(str(code))
        os.rename(stem + ".code~", stem + ".code")
        os._exit(0)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    os.setsid()
    os.close(begin)
    os.read(end, 1)
    os.close(end)
    code = take_part(code, args, stem)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # without taking the modules apart, which would copy every page of the memory shared with the server
"""


class Member:
    def __init__(self, stem: Path) -> None:
        self._stem = stem
        self.pid = int(self._read("pid", 30))

    @property
    def out(self) -> str:
        return Path(f"{self._stem}.out").read_text()

    @property
    def err(self) -> str:
        return Path(f"{self._stem}.err").read_text()

    def wait_for_line(self, word: str, timeout_s: float = 20) -> str:
        """Wait for a complete output line that starts with `word`, and return it. Raises AssertionError after
        timeout_s."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            for line in self.out.splitlines(keepends=True) if Path(f"{self._stem}.out").exists() else []:
                if line.startswith(word) and line.endswith("\n"):
                    return line.strip()
            time.sleep(0.01)
        raise AssertionError(f"no {word!r} within {timeout_s} s: {self.out}{self.err}")

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout_s: float = 20) -> int:
        """Wait for the end of the process, and return its exit code, or -n if signal n ended it."""
        return int(self._read("code", timeout_s))

    def is_alive(self) -> bool:
        return not Path(f"{self._stem}.code").exists()

    def _read(self, name: str, timeout_s: float) -> str:
        file, end = Path(f"{self._stem}.{name}"), time.monotonic() + timeout_s
        while not file.exists():
            assert time.monotonic() < end, f"no {name} within {timeout_s} s"
            time.sleep(0.01)
        return file.read_text()


class ProcessPool:
    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="process_pool_"))
        self._started: list[Member] = []
        environ = clean_environ(PYTHONPATH=str(ROOT / "src"), TORCH_CPP_LOG_LEVEL="ERROR")
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, text=True, env=environ, start_new_session=True
        )
        atexit.register(self._close)

    def start(self, code: str, *args: Any) -> Member:
        """Start a process that executes this Python code. args: values that JSON can represent."""
        assert self._server.stdin
        stem = self._folder / str(len(self._started))
        self._server.stdin.write(json.dumps([code, args, str(stem)]) + "\n")
        self._server.stdin.flush()
        self._started.append(Member(stem))
        return self._started[-1]

    def _close(self) -> None:
        for member in self._started:
            if member.is_alive():
                member.kill()
        assert self._server.stdin
        self._server.stdin.close()
        self._server.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


@functools.cache
def process_pool() -> ProcessPool:
    return ProcessPool()
