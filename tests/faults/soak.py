"""Many short trainings, each with a fault at a random moment, resumed and compared with one without faults.

Run by `python scripts/reliability.py soak=220`.
"""

import contextlib
import random
import shutil
import subprocess
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from conftest import PROBES, clean_environ, write_images
from faults import breakages
from faults.breakages import FAULTS, Scene, small_disk
from faults.trainings import QUIET, SLOW, assert_same, family, short
from helpers.forked_commands import Command, start

LANES = 3
HANGS_S = 180  # a run of 3 epochs takes 10 s alone
CASES = (  # of each kind, the run without a fault is made once
    ("trainer.devices=1", "data.num_workers=0"),
    ("trainer.devices=2", "data.num_workers=0"),
    ("trainer.devices=1", "data.num_workers=2"),
    ("trainer.devices=2", "data.num_workers=1"),
)
_starting = threading.Lock()  # one server forks the commands of all lanes


def soak(number: int, seed: int) -> Counter[str]:
    """Run so many, each fault once in every turn. Print each, and return the counts of "runs", "hanging", "lost",
    "wrong", and of each fault."""
    counts: Counter[str] = Counter(dict.fromkeys(("runs", "hanging", "lost", "wrong"), 0))
    with tempfile.TemporaryDirectory(prefix="soak_") as folder:
        root = Path(folder)
        (root / "runs").mkdir()
        write_images(root / "tree/train", {"cat": 10, "dog": 10, "owl": 9})
        write_images(root / "tree/val", {"cat": 4, "dog": 4, "owl": 3}, seed=1)
        wholes = {case: _finish(root, root / "runs" / f"whole{at}", root / "tree", case)
                  for at, case in enumerate(CASES)}  # fmt: skip

        def run(index: int) -> tuple[int, str, str, str, float]:
            draw, began = random.Random(f"{seed} {index}"), time.monotonic()
            turn, place = divmod(index, len(FAULTS))
            name, case = (
                random.Random(f"{seed} turn {turn}").sample(list(FAULTS), len(FAULTS))[place],
                draw.choice(CASES),
            )
            result = _one(root / str(index), root / "tree", name, case, wholes[case], draw)
            shutil.rmtree(root / str(index), ignore_errors=True)
            return index, name, " ".join(case), result, time.monotonic() - began

        with ThreadPoolExecutor(LANES) as lanes:
            for index, name, case, result, took_s in lanes.map(run, range(number)):
                kind, _, why = result.partition(": ")
                counts["runs"] += 1
                counts[name] += 1
                counts[kind] += kind in ("hanging", "lost", "wrong")
                print(f"{index + 1}/{number} {name}, {case}: {kind}, {took_s:.0f} s {why[-2000:]}", flush=True)
    return counts


def _one(folder: Path, tree: Path, name: str, case: tuple[str, ...], whole: Path, draw: random.Random) -> str:
    """Return "same", or "hanging: ...", "lost: ...", "wrong: ..."."""
    folder.mkdir()
    own = folder / "tree"
    shutil.copytree(tree, own)
    with small_disk(folder / "d", "100m") as disk:
        run_dir = disk / "r"
        command = _start(folder, run_dir, own, case, *SLOW)
        _wait_for_moment(command, folder, draw)
        processes = family(command)
        mend = FAULTS[name](Scene(command, run_dir, own, draw))
        try:
            ended = _wait(command, processes)
        finally:
            with contextlib.suppress(FileNotFoundError):
                if mend is not None:
                    mend()
        if not ended:
            return f"hanging: {command.out}{command.err}"
        if "Traceback" in command.err and name not in KILLS:
            return f"wrong: a traceback: {command.err}"
        printed = command.out + command.err
        command = _start(folder, run_dir, own, case, *QUIET)
        if not _wait(command, family(command)):
            return f"hanging: resumed: {command.out}{command.err}"
        if command.returncode:
            return f"lost: {printed}{command.out}{command.err}"
        try:
            assert_same(whole, run_dir)
        except (AssertionError, OSError, KeyError) as error:
            return f"wrong: {error} {printed}{command.out}{command.err}"
    return "same"


KILLS = ("kill_the_command", "kill_any_process", "kill_all", "kill_a_rank", "truncate_last_checkpoint", "flip_a_byte")


def _start(folder: Path, run_dir: Path, tree: Path, case: tuple[str, ...], *more: str) -> Command:
    options = [*short(tree), *case, f"hydra.run.dir={run_dir}", *more]
    with _starting:
        command = start("imagenet_ddp.train", *options, folder=folder, environment=clean_environ(PYTHONPATH=PROBES))
    assert isinstance(command, Command)
    return command


def _wait_for_moment(command: Command, folder: Path, draw: random.Random) -> None:
    """Wait for a random moment of a random step; of one run in six, of its start."""
    seen, step = folder / "p/seen0.jsonl", draw.randrange(12)
    deadline = time.monotonic() + HANGS_S
    while draw_later := step >= 2 and command.poll() is None and time.monotonic() < deadline:
        if seen.exists() and len(seen.read_text().splitlines()) >= step - 1:
            break
        time.sleep(0.02)
    time.sleep(draw.uniform(0, 0.5 if draw_later else 3))


def _wait(command: Command, processes: list[psutil.Process]) -> bool:
    """Return whether it, and all that it has started, ends."""
    try:
        command.wait(HANGS_S)
    except subprocess.TimeoutExpired:
        breakages.kill_all(Scene(command, Path(), Path()))
        return False
    _, alive = psutil.wait_procs(processes, timeout=60)
    for process in alive:
        process.kill()
    return not alive


def _finish(root: Path, run_dir: Path, tree: Path, case: tuple[str, ...]) -> Path:
    command = _start(root, run_dir, tree, case, *QUIET)
    assert command.wait(HANGS_S) == 0, command.out + command.err
    return run_dir
