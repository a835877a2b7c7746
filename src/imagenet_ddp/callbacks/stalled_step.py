"""Report a training step that does not end, and let a stop end it. Python runs no signal handler while the main thread
waits in a collective, for example for a rank that a broken network no longer reaches."""

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import lightning.pytorch as L

from imagenet_ddp.system import console
from imagenet_ddp.system.process import exit_at_once
from imagenet_ddp.system.stop_signals import DUPLICATE_S, STOP_SIGNALS

REPORT_S = 60.0  # between two reports; a stop waits as long for a step to end
POLL_S = 0.5
SLOW_STEPS = 5  # a step may take this many times as long as the longest one so far


class StalledStep(L.Callback):
    """Print a line every minute in which no batch ends. If a stop is requested and no batch ends for a minute, end this
    process without saving; at the third request, at once.

    fail: function of a text and an exit code that ends the other ranks, too. timeout_s: of a collective.
    """

    def __init__(self, fail: Callable[[str, int], object], timeout_s: float):
        self._fail, self._timeout_s = fail, timeout_s
        self._ended = threading.Event()
        self._last_s = self._longest_s = 0.0
        self._reports = False

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Start. DistributedDataParallel already sends the weights before the first step."""
        self._reports, self._last_s = trainer.global_rank == 0, time.monotonic()
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)  # the system writes the number of each signal there
        threading.Thread(target=self._watch, args=(reader,), name="stalled step", daemon=True).start()

    def end(self) -> None:
        """Stop watching, because the run is over, or because it is being saved, which may take long."""
        if not self._ended.is_set():
            self._ended.set()
            signal.set_wakeup_fd(-1)

    def _beat(self) -> None:
        now_s = time.monotonic()
        self._longest_s, self._last_s = max(self._longest_s, now_s - self._last_s), now_s

    def _watch(self, reader: int) -> None:
        stop, requests_s, reported_s = 0, list[float](), 0.0
        while not self._ended.is_set():
            if select.select([reader], [], [], POLL_S)[0]:
                for number in os.read(reader, 64):
                    now_s = time.monotonic()
                    if number in STOP_SIGNALS and (not requests_s or now_s - requests_s[-1] > DUPLICATE_S):
                        stop, requests_s = stop or number, [*requests_s, now_s]
            if len(requests_s) >= 3:
                self._exit(stop, "by three requests")
            silent_s = time.monotonic() - self._last_s
            allowed_s = max(REPORT_S, SLOW_STEPS * self._longest_s)
            if silent_s < allowed_s:
                reported_s = 0.0
                continue
            if self._reports and silent_s > reported_s + REPORT_S:
                reported_s = silent_s
                console.print_message(
                    f"No step has ended for {silent_s:.0f} s: the ranks wait for each other, for images or for a disk. "
                    f"A collective that does not end fails after {self._timeout_s:g} s (strategy.timeout_s)."
                )
            if stop and time.monotonic() - requests_s[0] > allowed_s:
                self._exit(stop, f"and no step has ended for {silent_s:.0f} s")

    def _exit(self, stop: int, why: str) -> None:
        name = signal.Signals(stop).name
        if not self._ended.is_set():
            with contextlib.suppress(Exception):  # the network may be broken
                self._fail(f"was stopped by {name}, {why}", 128 + stop)
            if self._reports:
                console.print_message(f"Stopped by {name} without saving, {why}.")
            exit_at_once(128 + stop)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any, **__: Any) -> None:
        self._beat()

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._beat()

    def on_validation_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any, **__: Any) -> None:
        self._beat()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._beat()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.end()  # the ranks now wait for the last checkpoint

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if stage == "fit":  # after a validation alone, the ranks wait for each other once more
            self.end()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self.end()
