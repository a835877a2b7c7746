import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import SMALL, clean_environ
from helpers import forked_commands

from imagenet_ddp.data.worker_failures import explain
from imagenet_ddp.data.workers import choose_mp_context, choose_num_workers
from imagenet_ddp.errors import RunError
from imagenet_ddp.system.text import count_noun

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def test_processes_are_forked_by_a_server_but_on_macos(monkeypatch: pytest.MonkeyPatch):
    for platform, expected in (("linux", "forkserver"), ("darwin", "spawn")):
        monkeypatch.setattr(sys, "platform", platform)
        assert choose_mp_context() == expected


@pytest.mark.parametrize(
    ("asked", "on_cpu", "cores", "processes", "expected"),
    [
        (0, False, 64, 1, 0),
        (3, True, 2, 8, 3),
        ("5", True, 2, 8, 5),
        ("auto", True, 1, 1, 0),
        ("auto", True, 3, 1, 0),
        ("auto", True, 4, 1, 1),
        ("auto", True, 16, 2, 2),
        ("auto", False, 1, 1, 1),
        ("auto", False, 2, 2, 1),
        ("auto", False, 8, 1, 7),
        ("auto", False, 64, 8, 7),
        ("auto", False, 96, 1, 16),
    ],
)
def test_the_number_of_workers_follows_the_cores(
    monkeypatch: pytest.MonkeyPatch, asked: int | str, on_cpu: bool, cores: int, processes: int, expected: int
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    number, reason = choose_num_workers(asked, on_cpu, processes)
    assert number == expected
    assert (reason == "as set") == (asked != "auto")
    if asked == "auto":
        assert f"{count_noun(cores // processes, 'core')} per " in reason


def test_without_an_affinity_all_cores_count(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 9)
    assert choose_num_workers("auto", False, 1)[0] == 8
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert choose_num_workers("auto", False, 1)[0] == 1


# ---- start methods -------------------------------------------------------------------------------------------------

# While the loader processes start, a thread of the training process holds a lock that they need: that of logging's
# registry, which getLogger takes.
LOCKED = """
    import logging, threading
    from torch.utils.data import DataLoader
    from imagenet_ddp.data.workers import init_worker, choose_mp_context, start_fork_server

    class Images:
        def __len__(self):
            return 4

        def __getitem__(self, index):
            logging.getLogger(f"decoder {index}")
            return index

    def hold():
        logging._acquireLock() if hasattr(logging, "_acquireLock") else logging._lock.acquire()
        held.set()
        threading.Event().wait()

    if __name__ == "__main__":
        method = choose_mp_context()
        if method == "forkserver":
            start_fork_server()
        loader = DataLoader(Images(), num_workers=1, multiprocessing_context=method, worker_init_fn=init_worker)
        held = threading.Event()
        threading.Thread(target=hold, daemon=True).start()
        held.wait()
        print([int(index) for index in loader], flush=True)
        import os
        os._exit(0)
"""


@pytest.mark.slow
@linux_only
def test_a_lock_that_a_thread_holds_stops_no_worker(tmp_path: Path):
    """A plain fork would wait for it for ever."""
    script = tmp_path / "locked.py"
    script.write_text(textwrap.dedent(LOCKED))
    found = subprocess.run([sys.executable, script], capture_output=True, env=clean_environ(), timeout=180)
    assert found.stdout == b"[0, 1, 2, 3]\n", found.stderr


# ---- deaths --------------------------------------------------------------------------------------------------------

DYING = """
    import os, resource, signal, sys
    from pathlib import Path
    import torch
    from torch.utils.data import DataLoader
    from imagenet_ddp.data.worker_failures import explain_failures
    from imagenet_ddp.data.stall_watchdog import StallWatchdog
    from imagenet_ddp.data.workers import init_worker, start_fork_server
    from imagenet_ddp.errors import RunError

    what, method = sys.argv[1:]
    armed = Path(f"{__file__}.{what}")

    class Images:
        def __len__(self):
            return 200

        def __getitem__(self, index):
            if index == 7:
                if what.startswith("SIG") and (what != "SIGSTOP" or armed.exists()):
                    os.kill(os.getpid(), getattr(signal, what))
                if what == "exit":
                    os._exit(3)
            if what == "files":
                return [torch.zeros(9) for _ in range(100)]
            return torch.zeros(2**18)  # 1 MiB

    if __name__ == "__main__":
        if what == "files":
            resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
        if method == "forkserver":
            start_fork_server()
        loader = DataLoader(Images(), batch_size=None, num_workers=2, multiprocessing_context=method,
                            persistent_workers=True, worker_init_fn=init_worker)
        before = signal.getsignal(signal.SIGCHLD)
        try:
            kept = list(explain_failures(loader.__iter__, loader, StallWatchdog(loader)))
            armed.touch()  # its processes have started
            watchdog = StallWatchdog(loader, "", "Rank 3", print, timeout_s=4)
            kept = list(explain_failures(loader.__iter__, loader, watchdog))
        except RunError as error:
            assert signal.getsignal(signal.SIGCHLD) == before
            print("RunError:", error)
        loader._iterator._shutdown_workers()  # they are deaf to the signal that would end them
"""


@pytest.fixture
def dying(tmp_path: Path) -> Path:
    script = tmp_path / "dying.py"
    script.write_text(textwrap.dedent(DYING))
    return script


@pytest.mark.slow
@linux_only
def test_the_cause_is_said_and_what_to_set(dying: Path):
    cases = {
        (
            "SIGKILL",
            "spawn",
        ): r"worker \d+ \(one of 2\) .* by SIGKILL.* Hint: .*data\.num_workers=1 \(now 2\)",
        ("SIGSEGV", "fork"): r"was killed by SIGSEGV: a library crashed.* Hint: .*prepare=check",
        ("exit", "forkserver"): r"ended with exit code 3\. Its own error message, if any, is printed above",
        ("files", "forkserver"): r"could not send a batch, for the reason printed above\. Hint: .*\(ulimit -n\)",
        ("SIGSTOP", "forkserver"): r"timed out after 4 s \(data\.loader_timeout_s\): Rank 3 got no batch of "
        r"images \(processes \d+, \d+\)\. Hint: .*kill -CONT",
    }
    where = {"folder": dying.parent, "environment": clean_environ()}
    # a forked command opens its workers' descriptors itself, so that another process has too few
    processes = {case: forked_commands.start(dying.stem, *case, **where, forked=case[0] != "files") for case in cases}
    for case, process in processes.items():
        said, complaint = process.communicate(timeout=300)
        assert re.search(cases[case], said), (case, said, complaint)
        assert "RunError: " in said
        assert ("Rank 3 has waited" in said) == (case[0] == "SIGSTOP")


@pytest.mark.slow
@linux_only
def test_a_full_shared_memory_is_said(dying: Path):
    if os.geteuid() or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("a small /dev/shm of its own needs root, and the right to unshare")
    small = f"mount -t tmpfs -o size=4m none /dev/shm && exec {sys.executable} {dying} full forkserver"
    found = subprocess.run(
        ["unshare", "-m", "sh", "-c", small], capture_output=True, text=True, env=clean_environ(), timeout=120
    )
    assert re.search(r"^RunError: .*could not send a batch.* if /dev/shm is full, start the container with docker run",
                     found.stdout), found  # fmt: skip


@pytest.mark.slow
@linux_only
def test_training_ends_with_one_sentence(tree: Path, tmp_path: Path):
    """A person, or the kernel, kills a loader process of a training that runs."""
    command = [
        sys.executable, "-m", "imagenet_ddp.train", *SMALL, f"data.root={tree}", "trainer.max_epochs=100000",
        "data.num_workers=2",
    ]  # fmt: skip
    errors = (tmp_path / "errors").open("w+")
    process = subprocess.Popen(
        command, cwd=tmp_path, env=clean_environ(), stdout=subprocess.PIPE, stderr=errors, text=True
    )
    assert process.stdout is not None
    watch = threading.Timer(120, process.kill)
    watch.start()
    try:
        while not process.stdout.readline().startswith("epoch 2/"):
            assert process.poll() is None
        workers = [pid for pid in _below(process.pid) if "forkserver" in _command(pid) and not _children(pid)]
        os.kill(workers[0], signal.SIGKILL)
        process.communicate(timeout=60)
    finally:
        watch.cancel()
        process.kill()
    errors.seek(0)
    said = errors.read()
    errors.close()
    assert process.returncode == 1
    assert re.search(r"DataLoader worker \d+ \(one of 2\) was killed by SIGKILL", said)
    assert "Traceback" not in said


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _below(pid: int) -> list[int]:
    children = _children(pid)
    return children + [each for child in children for each in _below(child)]


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


class Worker(SimpleNamespace):
    """As a process of multiprocessing that has ended. Its exit code comes a little after its end, as on a busy
    machine."""

    def __init__(self, pid: int, exitcode: int | None):
        self.reader, writer = multiprocessing.Pipe(duplex=False)
        writer.close()  # its end, to whoever waits for it
        super().__init__(pid=pid, exitcode=None, code=exitcode, sentinel=self.reader.fileno())

    def join(self, timeout: float) -> None:
        self.exitcode = self.code


def loader_of(*codes: int | None, num_workers: int = 4) -> Any:
    workers = [Worker(100 + number, code) for number, code in enumerate(codes)]
    sampler = SimpleNamespace(batch_size=32)
    iterator = SimpleNamespace(_workers=workers)
    return SimpleNamespace(num_workers=num_workers, batch_sampler=sampler, _iterator=iterator)


GONE = RuntimeError("DataLoader worker (pid(s) 100) exited unexpectedly")


def said_of(loader: Any, error: BaseException = GONE) -> str:
    found = explain(error, loader)
    assert isinstance(found, RunError)
    return str(found)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (-9, "was killed by SIGKILL, usually because memory ran out. "
             "Hint: set data.num_workers=2 (now 4) or data.batch_size=16 (now 32), or request more memory."),
        (-7, "was killed by SIGBUS: /dev/shm is full, or a packed file was truncated. "
             "Hint: start the container with docker run --ipc=host (or --shm-size=8g), or set data.num_workers=2 "
             "(now 4) or data.batch_size=16 (now 32). To find a truncated file, run `python -m imagenet_ddp.prepare "
             "prepare=check data=packed data.root=FOLDER`."),
        (-11, "was killed by SIGSEGV: a library crashed, most likely on an image. "
              "Hint: run `python -m imagenet_ddp.prepare prepare=check` with the same data options to find the image, "
              "or set data.decoder=pillow to use another decoder."),
        (-1, "was killed by SIGHUP. Its own error message, if any, is printed above. "
             "Hint: set data.num_workers=0 to get the error in the training process."),
        (100, "ended with exit code 100: it could not send a batch, for the reason printed above. Hint: if /dev/shm is "
              "full, start the container with docker run --ipc=host (or --shm-size=8g), or set data.num_workers=2 "
              "(now 4) or data.batch_size=16 (now 32). If too many files are open, raise the limit (ulimit -n)."),
        (3, "ended with exit code 3. Its own error message, if any, is printed above. "
            "Hint: set data.num_workers=0 to get the error in the training process."),
    ],
)  # fmt: skip
def test_the_process_that_died_is_named_with_the_likely_reason(code: int, expected: str):
    assert said_of(loader_of(None, code)) == f"DataLoader worker 101 (one of 4) {expected}"


def test_the_most_telling_death_is_said():
    """The end of one process may end another."""
    assert "DataLoader worker 102 (one of 4) was killed by SIGKILL" in said_of(loader_of(1, -1, -9))
    pinning = RuntimeError("Pin memory thread exited unexpectedly")  # of a file that the worker can no longer pass on
    assert "DataLoader worker 100 (one of 4) was killed by SIGKILL" in said_of(loader_of(-9), pinning)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Too many open files. Communication with the workers is no longer possible", r"may open \d+ \(ulimit -n\)"),
        ("unable to open shared memory object </torch_1_2> in read-write mode: Too many open files (24)", r"ulimit"),
        ("unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)", r"shm is full\. "),
        ("Pin memory thread exited unexpectedly", r"has ended\. Its own error message is printed above\. Hint"),
    ],
)  # fmt: skip
def test_what_a_process_could_still_say(text: str, expected: str):
    assert re.search(expected, said_of(loader_of(), RuntimeError(text)))


def test_other_errors_are_left_as_they_are():
    assert explain(ValueError("of one's own"), loader_of()) is None
    assert explain(RunError("said already"), loader_of(-9)) is None
    assert explain(GONE, loader_of(-9, num_workers=0)) is None


# ---- memory --------------------------------------------------------------------------------------------------------

FLAT = """
    import json, sys
    from pathlib import Path
    import numpy as np
    from imagenet_ddp.data.loader import make_loader
    from imagenet_ddp.data.sampler import BatchSampler
    from imagenet_ddp.data.sources.files import FileImages
    from imagenet_ddp.data.sources.base import Names
    from imagenet_ddp.data.transforms import Sizes, TrainTransform

    def private_mib(pid):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024

    def main():
        image, number = sys.argv[1], int(sys.argv[2])
        folder, name = Path(image).parent, Path(image).name
        names = Names.of("./" * (index % 20) + name for index in range(number))
        images = FileImages(folder, names, np.zeros(number, int))
        sampler = BatchSampler(number, 100, 1, 0, shuffle=True, seed=0, fill_to=2)
        loader = make_loader(images, TrainTransform(Sizes(8), (0.9, 1.0), 0.5), sampler, seed=0, num_workers=2,
                             pin_memory=False)
        found = []
        for step, _ in enumerate(loader):
            if step in (len(loader) // 10, len(loader) - 3):
                found.append([private_mib(worker.pid) for worker in loader._iterator._workers])
        print(json.dumps(found))

    if __name__ == "__main__":
        main()
"""


@pytest.mark.slow
@linux_only
def test_a_workers_memory_is_flat_over_an_epoch(tree: Path, tmp_path: Path):
    """A list of 50,000 names would be copied page by page: 5 MiB, and as much again for their objects."""
    script = tmp_path / "flat.py"
    script.write_text(textwrap.dedent(FLAT))
    found = subprocess.run(
        [sys.executable, script, tree / "train/cat/000.jpg", "50000"],
        capture_output=True, text=True, env=clean_environ(), timeout=180,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    early, late = json.loads(found.stdout.splitlines()[-1])
    for before, after in zip(early, late, strict=True):
        assert after - before < 6, (early, late)  # MiB
