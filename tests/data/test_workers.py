import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import clean_environ

from imagenet_ddp.data.workers import choose_num_workers
from imagenet_ddp.system.text import count_noun

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.mark.parametrize(
    ("asked", "on_cpu", "cores", "processes", "expected"),
    [
        (0, False, 64, 1, 0),
        ("5", True, 2, 8, 5),
        ("auto", True, 1, 1, 0),
        ("auto", True, 4, 1, 1),
        ("auto", True, 16, 2, 2),
        ("auto", False, 2, 2, 1),
        ("auto", False, 8, 1, 7),
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
