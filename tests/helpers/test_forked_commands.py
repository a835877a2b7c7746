"""A forked command is what `python -m` would have started, but for the imports."""

import json
import signal
import sys
from pathlib import Path

import pytest
from conftest import clean_environ
from helpers.forked_commands import fork_server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux adopts orphans")

MODULE = """
import json, multiprocessing, os, sys, time

def child(pipe):
    pipe.send([os.getppid() == int(os.environ["PARENT"]), os.environ["WHO"], "torch" in sys.modules])
    sys.exit(4)

if __name__ == "__main__":
    os.environ["PARENT"] = str(os.getpid())
    receiver, sender = multiprocessing.Pipe(False)
    process = multiprocessing.get_context("spawn").Process(target=child, args=(sender,))
    process.start()
    print(json.dumps([sys.argv[1:], os.getcwd(), *receiver.recv(), process.join(), process.exitcode]), flush=True)
    if sys.argv[1:]:
        sys.exit("one reason")
    time.sleep(600)
"""


def test_folder_environment_children_and_end(tmp_path: Path):
    (tmp_path / "mine.py").write_text(MODULE)
    ends, waits = (
        fork_server().start("mine", *words, folder=tmp_path, environment=clean_environ(WHO="ann"))
        for words in (["a b"], [])
    )
    assert ends.wait(300) == 1
    assert json.loads(ends.out) == [["a b"], str(tmp_path), True, "ann", True, None, 4]
    assert ends.err == "one reason\n"
    while not waits.out:
        assert waits.poll() is None, waits.err
    waits.send_signal(signal.SIGTERM)
    assert waits.wait(300) == -signal.SIGTERM
