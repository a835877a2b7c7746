"""Run the trials of a study: begin them as places become free, watch them, prune them, tell the study. No torch."""

import os
import re
import sys
import time
from datetime import timedelta

import yaml
from optuna.trial import TrialState

from imagenet_ddp.engine import job
from imagenet_ddp.runs.folder import summary
from imagenet_ddp.runs.signals import Signals
from imagenet_ddp.system import console
from imagenet_ddp.system.atomic_write import atomic_write
from imagenet_ddp.tune.options import Plan
from imagenet_ddp.tune.study import EPOCH, OPTIONS, Study, number_of
from imagenet_ddp.tune.trials import Trial

POLL_S = 0.2
SIGNALLED_S = 5.0  # after a run was stopped from outside, wait this long for a signal to this process
STOPS = (130, 138, 140, 143)


def say(text: str) -> None:
    console.print_message(text, sys.stdout)


class Loop:
    def __init__(self, plan: Plan, signals: Signals):
        self.plan, self.signals = plan, signals
        self.study = Study(plan.folder, plan.options, plan.config.seed, plan.parameters, plan.max_epochs)
        self.running: list[Trial] = []
        self.refused: list[str] = []  # output of the first trial where train refused it
        self.num_failed = 0  # in a row

    def run(self) -> int:
        """Return the exit code."""
        options, late = self.plan.options, time.monotonic() + (self.plan.options["timeout_s"] or float("inf"))
        say(f"Study folder: {self.plan.folder}")
        searched = f"Sampler: {options['sampler']}, seed {self.plan.config.seed}. Pruner: {options['pruner']}."
        say(
            f"{options['num_trials']} trials, {len(self.plan.places)} at once. {searched} The highest val top-1 counts."
        )
        waiting = self.study.requeue()
        if waiting:
            say(f"Resuming {self.study.counts()}")
        while True:
            for trial in list(self.running):
                self._poll(trial)
            if self.signals.received or self.refused or self.num_failed >= options["max_failures"]:
                return self._stop(self.signals.received)
            while len(self.running) < len(self.plan.places) and (
                waiting or (len(self.study.trials) < options["num_trials"] and time.monotonic() < late)
            ):
                waiting = max(0, waiting - 1)
                self._begin(*self.study.begin())
            if not self.running:
                return self._end()
            time.sleep(POLL_S)

    def _begin(self, number: int, options: tuple[str, ...]) -> None:
        place = next(place for place in self.plan.places if not any(place is other.place for other in self.running))
        trial = Trial(number, options, self.plan.folder / "trials" / str(number), place)
        is_resumed = trial.log.exists()
        if is_resumed:
            trial.wait_until_free()
            if summary(trial.folder):  # it finished after tune was killed
                self.study.report(number, trial.new_epochs())
                return self._finished(trial)
        short = re.sub(r"(?<==)-?\d+\.\d+(e-\d+)?(?= |$)", lambda match: f"{float(match[0]):.4g}", " ".join(options))
        say(f"trial {number} {'resumes' if is_resumed else 'begins'}: {short}")
        trial.begin(self.plan.train_argv)
        self.running.append(trial)

    def _poll(self, trial: Trial) -> None:
        code = trial.poll()
        if trial.stopped is None and (epochs := trial.new_epochs()):
            hopeless = self.study.report(trial.number, epochs)
            if hopeless is not None and code is None and max(epochs) != self.plan.max_epochs:
                trial.pruned_at = hopeless
                trial.stop()
        if code is None:
            return
        if code in STOPS and trial.pruned_at is None and time.monotonic() - (trial.ended or 0.0) < SIGNALLED_S:
            return  # SLURM stops the runs first, and then this process: such a trial is resumed later
        self.running.remove(trial)
        if code == 0 and summary(trial.folder):
            return self._finished(trial)
        if trial.pruned_at is not None and code in (*STOPS, 137):
            return self._pruned(trial)
        lines = trial.output()
        if code == 2 and not any(each.state.is_finished() for each in self.study.trials.values()):
            self.refused = lines
        self._failed(trial, f"exit code {code}: {lines[-1].strip() if lines else 'no output'}")

    def _finished(self, trial: Trial) -> None:
        result = summary(trial.folder)
        if result["best/val/top1"] is None:
            return self._failed(trial, "no val/top1, because nothing was validated.")
        self.num_failed = 0
        self.study.end(trial.number, TrialState.COMPLETE, result["best/val/top1"], result["best_epoch"])
        best = self.study.best()
        say(f"trial {trial.number} finished: val top-1 {100 * result['best/val/top1']:.2f} % after {_since(trial)}; "
            f"best so far {100 * best.values[0]:.2f} % (trial {number_of(best)})")  # fmt: skip

    def _pruned(self, trial: Trial) -> None:
        self.num_failed = 0
        self.study.end(trial.number, TrialState.PRUNED)
        say(f"trial {trial.number} pruned at epoch {trial.pruned_at}, after {_since(trial)}")

    def _failed(self, trial: Trial, reason: str) -> None:
        self.num_failed += 1
        self.study.end(trial.number, TrialState.FAIL)
        say(f"trial {trial.number} failed, {reason} See {os.path.relpath(trial.log)}")

    def _end(self) -> int:
        plan, where = self.plan, os.path.relpath(self.plan.folder)
        say(self.study.counts())
        try:
            best = self.study.best()
        except ValueError:
            return 1
        number, top1, options = number_of(best), best.values[0], best.user_attrs[OPTIONS]
        longer = [f"trainer.max_epochs={2 * plan.max_epochs}"] if plan.max_epochs else []
        kept = [token for token in plan.train_argv if not (longer and token.startswith("trainer.max_epochs="))]
        line = job.command("train", [*kept, *options, *longer])
        content = {"trial": number, "val/top1": top1, "epoch": best.user_attrs[EPOCH], "options": options,
                   "train_longer": line}  # fmt: skip
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1000)
        atomic_write(plan.folder / "best.yaml", f"# The finished trial with the highest val top-1.\n{text}")
        drawn, failed = self.study.draw(plan.folder / "figures")
        for sentence in [*failed, *([f"Figures: {where}/figures/ with {', '.join(drawn)}"] if drawn else [])]:
            say(sentence)
        print(f"Leaderboard: {job.command('report', [where])}")
        say(f"Best: trial {number}, val top-1 {100 * top1:.2f} %. Train longer with its options:")
        print(f"  {line}", flush=True)
        return 0

    def _stop(self, number: int | None) -> int:
        """number: of the signal. Runs that save stay in the study as running ones."""
        if self.running:
            say("Stopping: the running trials save first.")
        for trial in self.running:
            trial.stop()
        while any(trial.poll() is None for trial in self.running):
            time.sleep(POLL_S)
        if self.refused:
            return 2
        for trial in self.running:
            if trial.poll() == 0 and summary(trial.folder):
                self._finished(trial)
            elif trial.pruned_at is not None:
                self._pruned(trial)
        say(self.study.counts())
        if number is None:
            say(f"{self.num_failed} trials in a row failed, so no further one begins (tune.max_failures).")
        print(f"Resume with: {job.command('tune', [f'tune.resume={self.plan.folder}'])}", flush=True)
        return 128 + number if number else 1


def _since(trial: Trial) -> timedelta:
    return timedelta(seconds=round(time.monotonic() - trial.began))
