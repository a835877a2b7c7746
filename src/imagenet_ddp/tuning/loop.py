"""Run the trials of a study: begin them as places become free, watch them, prune them, tell the study. No torch."""

import os
import re
import sys
import time
from dataclasses import dataclass, field
from datetime import timedelta

from imagenet_ddp import screen, session
from imagenet_ddp.run.signals import Signals
from imagenet_ddp.tuning.plan import Plan
from imagenet_ddp.tuning.study import Study
from imagenet_ddp.tuning.trials import Trial

POLL_S = 0.2
SIGNALLED_S = 5.0  # after a run was stopped from outside, wait this long for a signal to this process
STOPS = (130, 138, 140, 143)


def say(text: str) -> None:
    screen.say(text, sys.stdout)


@dataclass
class Loop:
    plan: Plan
    study: Study
    signals: Signals
    running: list[Trial] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # output of the first trial where train refused it
    num_failed: int = 0  # in a row
    began: float = field(default_factory=time.monotonic)

    def run(self) -> int | None:
        """Return the exit code of a study that was stopped, None where all trials have ended."""
        waiting = self.study.requeue()
        if waiting:
            say(f"Resuming {self.study.counts()}")
        while True:
            for trial in list(self.running):
                self._poll(trial)
            number = self.signals.received
            if number or self.refused or self.num_failed >= self.plan.options["max_failures"]:
                return self._stop(number)
            while len(self.running) < len(self.plan.places) and (waiting or self._has_more()):
                waiting = max(0, waiting - 1)
                self._begin(*self.study.begin())
            if not self.running:
                return None
            time.sleep(POLL_S)

    def _has_more(self) -> bool:
        timeout_s = self.plan.options["timeout_s"]
        late = timeout_s is not None and time.monotonic() - self.began > timeout_s
        return not late and self.study.num_trials < self.plan.options["num_trials"]

    def _begin(self, number: int, options: tuple[str, ...]) -> None:
        trial = Trial(number, options, self.plan.folder / "trials" / str(number))
        is_resumed = trial.log.exists()
        if is_resumed:
            trial.wait_until_free()
            if trial.result() is not None:  # it finished after tune was killed
                trial.began = time.monotonic()
                self.study.report(number, trial.new_epochs())
                return self._finished(trial)
        place = next(place for place in self.plan.places if not any(place is other.place for other in self.running))
        short = re.sub(r"(?<==)-?\d+\.\d+(e-\d+)?(?= |$)", lambda match: f"{float(match[0]):.4g}", " ".join(options))
        say(f"trial {number} {'resumes' if is_resumed else 'begins'}: {short}")
        trial.begin(self.plan.train_argv, place)
        self.running.append(trial)

    def _poll(self, trial: Trial) -> None:
        code = trial.ended()
        if trial.stop_since is None and (epochs := trial.new_epochs()):
            hopeless = self.study.report(trial.number, epochs)
            if hopeless is not None and code is None and max(epochs) != self.plan.max_epochs:
                trial.pruned_at = hopeless
                trial.stop()
        if code is None:
            return
        assert trial.ended_at is not None
        if code in STOPS and trial.pruned_at is None and time.monotonic() - trial.ended_at < SIGNALLED_S:
            return  # SLURM stops the runs first, and then this process: such a trial is resumed later
        self.running.remove(trial)
        if code == 0 and trial.result() is not None:
            return self._finished(trial)
        if trial.pruned_at is not None and code in (*STOPS, 137):
            return self._pruned(trial)
        lines = trial.output()
        if code == 2 and not self.study.num_ended:
            self.refused = lines
        self._failed(trial, f"exit code {code}: {lines[-1].strip() if lines else 'no output'}")

    def _finished(self, trial: Trial) -> None:
        top1, epoch = trial.result() or (None, None)
        if top1 is None:
            return self._failed(trial, "no val/top1, because nothing was validated.")
        self.num_failed = 0
        self.study.end(trial.number, "COMPLETE", top1, epoch)
        best = self.study.best()
        assert best is not None
        say(f"trial {trial.number} finished: val top-1 {100 * top1:.2f} % after {_since(trial)}; "
            f"best so far {100 * best[1].values[0]:.2f} % (trial {best[0]})")  # fmt: skip

    def _pruned(self, trial: Trial) -> None:
        self.num_failed = 0
        self.study.end(trial.number, "PRUNED")
        say(f"trial {trial.number} pruned at epoch {trial.pruned_at}, after {_since(trial)}")

    def _failed(self, trial: Trial, reason: str) -> None:
        self.num_failed += 1
        self.study.end(trial.number, "FAIL")
        say(f"trial {trial.number} failed, {reason} See {os.path.relpath(trial.log)}")

    def _stop(self, number: int | None) -> int:
        """number: of the signal. Runs that save stay in the study as running ones."""
        if self.running:
            say("Stopping: the running trials save first.")
        for trial in self.running:
            trial.stop()
        while any(trial.ended() is None for trial in self.running):
            time.sleep(POLL_S)
        if self.refused:
            return 2
        for trial in self.running:
            if trial.ended() == 0 and trial.result() is not None:
                self._finished(trial)
            elif trial.pruned_at is not None:
                self._pruned(trial)
        say(self.study.counts())
        if number is None:
            say(f"{self.num_failed} trials in a row failed, so no further one begins (tune.max_failures).")
        print(f"Resume with: {session.command('tune', [f'tune.resume={self.plan.folder}'])}", flush=True)
        return 128 + number if number else 1


def _since(trial: Trial) -> timedelta:
    return timedelta(seconds=round(time.monotonic() - trial.began))
