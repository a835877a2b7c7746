"""Run the trials of a study: start them as slots become free, prune them, and record their results.

Does not import torch.
"""

import os
import re
import sys
import time
from collections.abc import Sequence

import yaml
from optuna.trial import TrialState

from imagenet_ddp.cli import overrides
from imagenet_ddp.config.keys import key_of
from imagenet_ddp.runs.folder import summary
from imagenet_ddp.runs.signals import Signals
from imagenet_ddp.system import console
from imagenet_ddp.system.console import discard_output
from imagenet_ddp.system.files import atomic_write
from imagenet_ddp.system.text import count_noun, duration, percent
from imagenet_ddp.tune.options import Plan
from imagenet_ddp.tune.study import EPOCH, OPTIONS, Study, number_of
from imagenet_ddp.tune.trials import Trial

POLL_S = 0.2
SIGNAL_WAIT_S = 5.0  # after a run was stopped from outside, wait this long for this process to be signalled too
MAX_EPOCHS = "trainer.max_epochs"
STOPPED = (129, 130, 138, 140, 143)  # exit codes of a run that was stopped by a signal


def say(text: str, *, whole: bool = False) -> None:
    """Print a line, whole: without wrapping it. The study goes on if standard output cannot be written, for example
    because its reader has left."""
    try:
        if whole:
            print(text, flush=True)
        else:
            console.print_message(text, sys.stdout)
    except OSError:
        discard_output(sys.stdout)


class Loop:
    def __init__(self, plan: Plan, signals: Signals):
        self.plan, self.signals = plan, signals
        self.study = Study(plan.folder, plan.options, plan.config.seed, plan.parameters)
        self.running: list[Trial] = []
        self.refused: list[str] = []  # output of the first trial, if train refused its options
        self.num_failed = 0  # number of trials that failed in a row

    def run(self) -> int:
        """Run the study to its end, or until a signal or too many failures stop it. Return the exit code."""
        options, deadline = self.plan.options, time.monotonic() + (self.plan.options["timeout_s"] or float("inf"))
        say(f"Study folder: {self.plan.folder}")
        trials = f"{count_noun(options['num_trials'], 'trial')}, {len(self.plan.slots)} at once."
        search = f"Sampler: {options['sampler']}, seed {self.plan.config.seed}. Pruner: {options['pruner']}."
        say(f"{trials} {search} Objective: highest val top-1.")
        say(f"Search space: {', '.join(str(parameter) for parameter in self.plan.parameters)}.")
        num_waiting = self.study.requeue()
        if num_waiting:
            say(f"Resuming {self.study.counts()}")
        while True:
            for trial in list(self.running):
                self._poll(trial)
            if self.signals.received or self.refused or self.num_failed >= options["max_failures"]:
                return self._stop(self.signals.received)
            while len(self.running) < len(self.plan.slots) and (
                num_waiting or (len(self.study.trials) < options["num_trials"] and time.monotonic() < deadline)
            ):
                num_waiting = max(0, num_waiting - 1)
                self._start(*self.study.next_trial())
            if not self.running:
                return self._end()
            time.sleep(POLL_S)

    def _start(self, number: int, options: tuple[str, ...]) -> None:
        slot = next(slot for slot in self.plan.slots if not any(slot is other.slot for other in self.running))
        trial = Trial(number, options, self.plan.folder / "trials" / str(number), slot)
        is_resumed = trial.log.exists()
        if is_resumed:
            trial.wait_until_free()
            if summary(trial.folder):  # finished after tune was killed
                self.study.report(number, trial.new_epochs())
                return self._finished(trial)
        short = re.sub(r"(?<==)-?\d+\.\d+(e-\d+)?(?= |$)", lambda match: f"{float(match[0]):.4g}", " ".join(options))
        say(f"trial {number} {'resumes' if is_resumed else 'starts'}: {short}")
        trial.start(self.plan.train_argv)
        self.running.append(trial)

    def _poll(self, trial: Trial) -> None:
        code = trial.poll()
        if trial.stopped is None and (epochs := trial.new_epochs()):
            prune_at = self.study.report(trial.number, epochs)
            if prune_at is not None and code is None and max(epochs) != self._max_epochs(trial.options):
                trial.pruned_at = prune_at
                trial.stop()
        if code is None:
            return
        if code in STOPPED and trial.pruned_at is None and time.monotonic() - (trial.ended or 0.0) < SIGNAL_WAIT_S:
            return  # SLURM signals the runs before this process; the trial is resumed later
        self.running.remove(trial)
        if code == 0 and summary(trial.folder):
            return self._finished(trial)
        if trial.pruned_at is not None and code in (*STOPPED, 137):
            return self._pruned(trial)
        lines = trial.output()
        if code == 2 and not any(each.state.is_finished() for each in self.study.trials.values()):
            self.refused = lines
        self._failed(trial, f"exit code {code}: {lines[-1].strip() if lines else 'no output'}")

    def _max_epochs(self, options: Sequence[str]) -> int | None:
        """Return the number of epochs of a trial, whose options may set it; None if it is not limited."""
        own = [int(token.partition("=")[2]) for token in options if key_of(token) == MAX_EPOCHS]
        return own[0] if own else self.plan.max_epochs

    def _finished(self, trial: Trial) -> None:
        result = summary(trial.folder)
        if result["best/val/top1"] is None:
            return self._failed(trial, "no val/top1, because nothing was validated.")
        self.num_failed = 0
        self.study.end(trial.number, TrialState.COMPLETE, result["best/val/top1"], result["best_epoch"])
        best = self.study.best()
        say(f"trial {trial.number} finished: val top-1 {percent(result['best/val/top1'])} after {_elapsed(trial)}; "
            f"best so far {percent(best.values[0])} (trial {number_of(best)})")  # fmt: skip

    def _pruned(self, trial: Trial) -> None:
        self.num_failed = 0
        self.study.end(trial.number, TrialState.PRUNED)
        say(f"trial {trial.number} pruned at epoch {trial.pruned_at}, after {_elapsed(trial)}")

    def _failed(self, trial: Trial, reason: str) -> None:
        self.num_failed += 1
        self.study.end(trial.number, TrialState.FAIL)
        say(f"trial {trial.number} failed, {reason} See {os.path.relpath(trial.log)}")

    def _end(self) -> int:
        plan = self.plan
        say(self.study.counts())
        try:
            best = self.study.best()
        except ValueError:
            return 1
        number, top1, options = number_of(best), best.values[0], best.user_attrs[OPTIONS]
        tokens, max_epochs = [*plan.train_argv, *options], self._max_epochs(options)
        if max_epochs:
            tokens = [token for token in tokens if key_of(token) != MAX_EPOCHS]
            tokens.append(f"{MAX_EPOCHS}={2 * max_epochs}")
        line = overrides.shell_line("train", tokens)
        content = {"trial": number, "val/top1": top1, "epoch": best.user_attrs[EPOCH], "options": options,
                   "train_longer": line}  # fmt: skip
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1000)
        atomic_write(plan.folder / "best.yaml", f"# The finished trial with the highest val top-1.\n{text}")
        say(f"Leaderboard: {overrides.shell_line('report', [os.path.relpath(plan.folder)])}", whole=True)
        say(f"Best: trial {number}, val top-1 {percent(top1)}. Train longer with its options:")
        say(f"  {line}", whole=True)
        return 0

    def _stop(self, number: int | None) -> int:
        """Stop the running trials and return the exit code. number: the signal that was received, or None. Interrupted
        trials remain in the study as running, to be resumed."""
        if self.running:
            say("Stopping as soon as the running trials have saved their state.")
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
            say(f"{self.num_failed} trials in a row failed, so the study stops (tune.max_failures).")
        say(f"Resume with: {overrides.shell_line('tune', [f'tune.resume={self.plan.folder}'])}", whole=True)
        return 128 + number if number else 1


def _elapsed(trial: Trial) -> str:
    return duration(time.monotonic() - trial.started)
