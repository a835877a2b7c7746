"""What the ranks of one machine say in the same words is printed once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SAY = (
    "import sys; from imagenet_ddp.system.say_once import say_once\n"
    'for text in sys.argv[1:]: say_once(f\'[{__import__("os").environ.get("RANK", "")}] {text}\', about=text)'
)


@pytest.fixture
def say(tmp_path: Path):
    """Return a function that says texts as a process of a rank, and returns what it printed."""

    def start(rank: str | None, *texts: str) -> list[str]:
        environ = {name: value for name, value in os.environ.items() if not name.endswith("RANK")}
        environ |= {"TMPDIR": str(tmp_path)} | ({"RANK": rank} if rank else {})
        done = subprocess.run([sys.executable, "-c", SAY, *texts], env=environ, stderr=subprocess.PIPE, check=True)
        return done.stderr.decode().splitlines()

    return start


def test_once_per_parent_and_again_at_the_next_start(say) -> None:
    assert say("0", "one", "two") == ["[0] one", "[0] two"]
    assert say("1", "one", "other") == ["[1] other"]  # what only this rank has found
    assert say("1", "one") == ["[1] one"]  # typed again
    assert say("0", "one") == []


def test_a_process_that_is_no_rank_always_prints(say) -> None:
    assert say(None, "one") == say(None, "one") == ["[] one"]


def test_without_a_private_folder_each_prints(say, tmp_path: Path) -> None:
    folder = tmp_path / f"imagenet_ddp-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    assert say("0", "one") == ["[0] one"]
    assert say("1", "one") == ["[1] one"]
