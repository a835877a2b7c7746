"""A forked command does not differ from one started with `python -m`, except in its imports."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from conftest import clean_environ
from helpers.forked_commands import ForkServer, fork_server, start_fork_server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux adopts orphans")

MODULE = """
import json, multiprocessing, os, random, subprocess, sys, tempfile, threading, time
import numpy

def here():
    loaded = ["torch" in sys.modules, "imagenet_ddp.train" in sys.modules]
    drawn = [random.random(), numpy.random.random()]
    return [os.getcwd(), dict(os.environ), tempfile.gettempdir(), loaded, len(os.listdir("/proc/self/task"))], drawn

def child(pipe):
    pipe.send([os.getppid() == int(os.environ["PARENT"]), os.getpgrp() == int(os.environ["PARENT"]), *here()])
    sys.exit(4)

if __name__ == "__main__":
    if sys.argv[1:] == ["wait"]:
        print("ready", flush=True)
        time.sleep(600)
    if sys.argv[1:] == ["inner"]:
        is_child, leads = os.getppid() == int(os.environ["PARENT"]), os.getpid() == os.getsid(0)
        print(json.dumps([is_child, leads, sys.stdin.read(), *here()]))
        print("said", file=sys.stderr)
        sys.exit(5)
    os.environ["PARENT"] = str(os.getpid())
    leads = os.getpid() == os.getpgrp() == os.getsid(0)
    state, drawn = here()
    receiver, sender = multiprocessing.Pipe(False)
    process = multiprocessing.get_context("spawn").Process(target=child, args=(sender,))
    process.start()
    process.join()
    inner = [sys.executable, "-m", "mine", "inner"]
    done = subprocess.run(inner, input="hello", capture_output=True, text=True, start_new_session=True)
    found = [sys.argv[1:], leads, sys.stdin.read(), process.exitcode, state, drawn, receiver.recv()]
    found.append([done.returncode, done.stderr, *json.loads(done.stdout)])
    print(json.dumps(found), flush=True)
    sys.exit("one reason")
"""


@pytest.fixture
def module(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MODULE)
    return "mine"


def test_it_is_as_a_process_that_has_just_started(module: str, tmp_path: Path):
    (tmp_path / "tmp").mkdir()
    environment = clean_environ(TMPDIR=str(tmp_path / "tmp"), WHO="ann")
    commands = [
        fork_server().start(module, "a b", str(number), folder=tmp_path, environment=environment) for number in range(2)
    ]
    drawn = []
    for number, command in enumerate(commands):
        assert command.wait(300) == 1
        assert command.err == "one reason\n"
        argv, leads, stdin, exitcode, state, mine, (is_child, in_group, of_child, childs), inner = json.loads(
            command.out
        )
        assert inner[:5] == [5, "said\n", True, True, "hello"]
        assert (argv, leads, stdin, exitcode, is_child, in_group) == (["a b", str(number)], True, "", 4, True, True)
        there = {**environment, "PARENT": str(command.pid)}
        assert state == of_child == inner[5] == [str(tmp_path), there, str(tmp_path / "tmp"), [True, False], 1]
        drawn += [*mine, *childs, *inner[6]]
    assert len(set(drawn)) == 12, "each process draws different random numbers"


@pytest.mark.slow
def test_it_ends_with_its_server_and_nobody_waits_in_vain(module: str, tmp_path: Path):
    server = ForkServer(*start_fork_server())
    command = server.start(module, "wait", folder=tmp_path, environment=clean_environ())
    until(lambda: command.out == "ready\n")
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"fork_server.py ended: no 0\.code"):
        command.wait(60)
    until(lambda: not Path(f"/proc/{command.pid}").exists())


def until(condition) -> None:  # type: ignore[no-untyped-def]
    limit = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < limit, "timed out"
        time.sleep(0.02)
