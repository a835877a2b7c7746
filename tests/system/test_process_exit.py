"""A process that ends at once loses neither what a thread is writing nor its exit code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from imagenet_ddp.system.process import clean_up_at_exit, exit_at_once, finish_before_exit

own, slow = Path("own"), Path("slow")
own.touch()
clean_up_at_exit(own.unlink)
finish_before_exit(ThreadPoolExecutor().submit(lambda: (time.sleep(0.5), slow.touch())))
threading.Thread(target=time.sleep, args=(300,)).start()  # such as a hanging collective
print("last words", end="")
if sys.argv[1] == "in a thread":
    threading.Thread(target=exit_at_once, args=(7,)).start()
else:
    exit_at_once(7)
"""


@pytest.mark.parametrize("where", ["in a thread", "in the main thread"])
@pytest.mark.parametrize("is_read", [True, False])
def test_nothing_is_lost_and_the_code_is_right(where: str, is_read: bool, tmp_path: Path) -> None:
    read, write = os.pipe()
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}  # so that the output is written at the end
    process = subprocess.Popen([sys.executable, "-c", CODE, where], cwd=tmp_path, stdout=write, env=buffered)
    os.close(write)
    if not is_read:
        os.close(read)
    try:
        assert process.wait(60) == 7
    finally:
        process.kill()
    assert (tmp_path / "slow").is_file()
    assert not (tmp_path / "own").exists()
    if is_read:
        assert os.read(read, 100) == b"last words"
        os.close(read)
