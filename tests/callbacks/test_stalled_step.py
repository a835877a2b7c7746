"""A step that does not end, in a process whose main thread is blocked in C, where Python runs no signal handler."""

import signal
import time

from helpers.forked_commands import Command, start_code
from helpers.train_runs import wait_for

BLOCKED = """
import ctypes
from types import SimpleNamespace
from imagenet_ddp.callbacks import stalled_step
from imagenet_ddp.runs.signals import Signals

vars(stalled_step).update(POLL_S=0.02, REPORT_S=args[0])
Signals().install()
callback = stalled_step.StalledStep(lambda what, code: print("told", code, what, flush=True), 1800.0)
callback.setup(SimpleNamespace(global_rank=0), None, "fit")
callback.on_train_batch_end(None, None)
if args[1]:
    callback.on_train_end(None, None)
print("blocked", flush=True)
mutex = ctypes.create_string_buffer(128)
for _ in range(2):
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


def blocked(report_s: float, is_over: bool = False) -> Command:
    process = start_code(BLOCKED, report_s, is_over)
    process.wait_for_line("blocked")
    return process


def test_it_is_reported_and_a_stop_ends_it() -> None:
    process = blocked(0.3)
    wait_for(lambda: process.err.count("No step has ended for ") > 1, process, timeout_s=20)
    assert "fails after 1800 s (strategy.timeout_s).\n" in process.err
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 128 + signal.SIGTERM
    assert "told 143 was stopped by SIGTERM, and no step has ended for " in process.out
    assert "Stopped by SIGTERM without saving, and no step has ended for " in process.err


def test_the_third_request_ends_it_at_once() -> None:
    process = blocked(600.0)
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
        assert process.poll() is None
        process.send_signal(number)
        time.sleep(0.7)
    assert process.wait(20) == 128 + signal.SIGTERM
    assert "No step has ended" not in process.err


def test_the_last_checkpoint_is_written_to_its_end() -> None:
    """Which may take minutes on a network disk, after the last step."""
    process = blocked(0.3, is_over=True)
    process.send_signal(signal.SIGTERM)
    time.sleep(1.5)
    assert process.poll() is None and "No step has ended" not in process.err
    process.kill()
