"""Manage the study: choose the next trial, record results, and prune. Only this module uses Optuna's studies.

Each trial gets its own sampler, seeded by the trial's number. The values drawn therefore depend on earlier trials, but
not on how often the command was stopped and resumed. An interrupted trial is resumed in Optuna's way: its values are
enqueued as a new Optuna trial, and the old Optuna trial is marked as failed. In this module both count as one trial
with the number of the first.
"""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import count_noun, first_line
from imagenet_ddp.tune.space import Parameter

SEED_STRIDE = 100_003  # a prime; trials of studies with close seeds thus get different seeds
# User attributes of Optuna's trials. NUMBER is the trial's number in this module, and OPTIONS is set last.
NUMBER, OPTIONS, EPOCH = "run", "options", "epoch"
WORDS = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed",
         TrialState.RUNNING: "running", TrialState.WAITING: "stopped"}  # fmt: skip


class Study:
    """An Optuna study in study.db; every change is stored before the method returns."""

    def __init__(self, folder: Path, options: Mapping[str, Any], seed: int, parameters: Sequence[Parameter]):
        """Open study.db or create it. options: tune.* Raises ConfigError if study.db cannot be read as a study."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        self._options, self._seed, self._parameters = options, seed, parameters
        self._trials: dict[int, optuna.Trial] = {}
        file = (folder / "study.db").resolve()
        try:
            self._study = optuna.create_study(
                storage=f"sqlite:///{file}", study_name="study", load_if_exists=True,
                direction="maximize", pruner=_pruner(options),
            )  # fmt: skip
        except Exception as error:
            if not file.exists():
                raise
            message = f"{file} cannot be read as a study: {first_line(error)} Hint: start a new study."
            raise ConfigError(message) from error
        self._study.set_metric_names(["val/top1"])

    @property
    def trials(self) -> dict[int, FrozenTrial]:
        """The latest Optuna trial of each number, without trials whose values were not all drawn."""
        trials = self._study.get_trials(deepcopy=False)
        return {number_of(trial): trial for trial in trials if OPTIONS in trial.user_attrs}

    def requeue(self) -> int:
        """Enqueue the trials that were running when the command ended. Return how many trials are waiting."""
        latest = self.trials
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            number = number_of(trial)
            # enqueue before tell: if the command is killed in between, no trial is lost
            if OPTIONS in trial.user_attrs and latest[number].number == trial.number:
                attrs = {NUMBER: number, OPTIONS: trial.user_attrs[OPTIONS]}
                self._study.enqueue_trial(trial.params, user_attrs=attrs)
            self._study.tell(trial.number, state=TrialState.FAIL)
        return len(self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))

    def next_trial(self) -> tuple[int, tuple[str, ...]]:
        """Return (number, options) of the next trial, which is an enqueued trial or, if there is none, a new trial."""
        number = len(self.trials)
        self._study.sampler = _sampler(self._options, (self._seed + SEED_STRIDE * number) % 2**32)
        trial = self._study.ask({each.key: each.distribution for each in self._parameters})
        if OPTIONS not in trial.user_attrs:
            trial.set_user_attr(NUMBER, number)
            trial.set_user_attr(OPTIONS, [each.option(trial.params[each.key]) for each in self._parameters])
        number = number_of(trial)
        self._trials[number] = trial
        return number, tuple(trial.user_attrs[OPTIONS])

    def report(self, number: int, epochs: Mapping[int, float]) -> int | None:
        """Report a trial's validations. Return the epoch at which to prune it, or None to continue. epochs: epoch ->
        val/top1 of all epochs so far."""
        trial, reported = self._trials[number], self.trials[number].intermediate_values
        for epoch in sorted(epochs.keys() - reported.keys()):
            trial.report(epochs[epoch], epoch)
            if trial.should_prune():
                return epoch
        return None

    def end(self, number: int, state: TrialState, top1: float | None = None, epoch: int | None = None) -> None:
        trial = self._trials.pop(number)
        trial.set_user_attr(EPOCH, epoch)
        self._study.tell(trial, values=top1, state=state)

    def best(self) -> FrozenTrial:
        """Return the finished trial with the highest top-1, or raise ValueError if none has finished."""
        finished = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return max(finished, key=lambda trial: trial.values[0])

    def counts(self) -> str:
        states = [trial.state for trial in self.trials.values()]
        parts = [f"{states.count(state)} {word}" for state, word in WORDS.items() if state in states]
        return f"{count_noun(len(states), 'trial')}: {', '.join(parts)}."


def number_of(trial: FrozenTrial | optuna.Trial) -> int:
    """Return the trial's number in this study, which names its folder."""
    return trial.user_attrs.get(NUMBER, trial.number)


def _pruner(options: Mapping[str, Any]) -> optuna.pruners.BasePruner:
    if options["pruner"] == "none":
        return optuna.pruners.NopPruner()
    # warm-up steps count from 0, epochs from 1
    return optuna.pruners.MedianPruner(options["pruner_num_trials"], options["pruner_num_epochs"])


def _sampler(options: Mapping[str, Any], seed: int) -> optuna.samplers.BaseSampler:
    if options["sampler"] == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=options["num_random_trials"])
