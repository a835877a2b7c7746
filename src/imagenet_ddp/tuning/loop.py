"""The trials of a study, begun as places become free, watched, ended early, told to the study. No torch."""

import os
import time
from dataclasses import dataclass, field

from imagenet_ddp import session
from imagenet_ddp.run.signals import Signals
from imagenet_ddp.tuning import board
from imagenet_ddp.tuning.asked import Plan
from imagenet_ddp.tuning.board import percent, say, since
from imagenet_ddp.tuning.study import Study
from imagenet_ddp.tuning.trials import Trial

POLL_S = 0.2
SIGNALLED_S = 5.0  # a run that was stopped from outside: so long until a signal to this process too would have come
STOPS = (130, 138, 140, 143)


@dataclass
class Loop:
    plan: Plan
    study: Study
    signals: Signals
    running: list[Trial] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # what train said to the very first trial
    num_failed: int = 0  # in a row
    began: float = field(default_factory=time.monotonic)

    def run(self) -> int | None:
        """The exit code of a study that ended before its end, which has been said; None: all trials have ended."""
        waiting = self.study.go_on()
        if waiting:
            say(f"Going on with {board.counts(self.study.tried())}")
        while True:
            for trial in list(self.running):
                self._look_at(trial)
            number = self.signals.received
            if number or self.refused or self.num_failed >= self.plan.options["max_failures"]:
                return self._stop(number)
            while len(self.running) < len(self.plan.places) and (waiting or self._has_more()):
                self._begin(*(waiting.pop(0) if waiting else self.study.begin()))
            if not self.running:
                return None
            time.sleep(POLL_S)

    def _has_more(self) -> bool:
        timeout_s = self.plan.options["timeout_s"]
        late = timeout_s is not None and time.monotonic() - self.began > timeout_s
        return not late and self.study.num_trials < self.plan.options["num_trials"]

    def _begin(self, number: int, options: tuple[str, ...]) -> None:
        trial = Trial(number, options, self.plan.folder / "trials" / str(number))
        verb = "goes on" if trial.log.exists() else "begins"
        if verb == "goes on":
            trial.wait_until_free()
            if trial.result() is not None:  # it finished while nobody looked
                trial.began = time.monotonic()
                self.study.report(number, trial.new_epochs())
                return self._finished(trial)
        place = next(place for place in self.plan.places if not any(place is other.place for other in self.running))
        say(f"trial {number} {verb}: {board.short_options(options)}")
        trial.begin(self.plan.train_argv, place)
        self.running.append(trial)

    def _look_at(self, trial: Trial) -> None:
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
            return  # SLURM stops the runs first, and then this process: such a trial goes on later
        self.running.remove(trial)
        if code == 0 and trial.result() is not None:
            return self._finished(trial)
        if trial.pruned_at is not None and code in (*STOPS, 137):
            return self._pruned(trial)
        lines = trial.last_lines()
        if code == 2 and all(each.state == "running" for each in self.study.tried()):
            self.refused = trial.last_lines(None)
        self.num_failed += 1
        self.study.end(trial.number, "failed", error="\n".join(lines))
        reason = next((line.strip() for line in reversed(lines)), "it said nothing")
        say(f"trial {trial.number} failed, exit code {code}: {reason} See {os.path.relpath(trial.log)}")

    def _finished(self, trial: Trial) -> None:
        top1, epoch = trial.result() or (None, None)
        if top1 is None:
            self.num_failed += 1
            self.study.end(trial.number, "failed", error="no val/top1: nothing was validated")
            return say(f"trial {trial.number} finished without val top-1, which counts as failed")
        self.num_failed = 0
        self.study.end(trial.number, "finished", top1, epoch)
        best = board.best_of(self.study.tried())
        assert best is not None
        say(f"trial {trial.number} finished: val top-1 {percent(top1)} after {since(trial.began)}; best so far "
            f"{percent(best.top1)} (trial {best.number})")  # fmt: skip

    def _pruned(self, trial: Trial) -> None:
        self.num_failed = 0
        self.study.end(trial.number, "pruned")
        say(f"trial {trial.number} pruned at epoch {trial.pruned_at}, after {since(trial.began)}")

    def _stop(self, number: int | None) -> int:
        """number: of the signal. Runs that save stay in the study as running ones."""
        if self.running:
            say("Stopping: what runs saves first.")
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
        say(board.counts(self.study.tried()))
        if number is None:
            say(f"{self.num_failed} trials in a row failed, so no further one begins (tune.max_failures).")
        print(f"Go on with: {session.command('tune', [f'tune.resume={self.plan.folder}'])}", flush=True)
        return 128 + number if number else 1
