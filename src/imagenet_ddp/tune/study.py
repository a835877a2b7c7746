"""Run a study: draw the options of each trial with Optuna, start trials as slots become free, prune them, and record
their results in study.db.

Each trial gets its own sampler, seeded by the trial's number. The values drawn therefore depend on earlier trials, but
not on how often the command was stopped and resumed. An interrupted trial is resumed in Optuna's way: the old Optuna
trial is marked as failed, and its values are enqueued as a new one. Both count as one trial with the number of the
first, which names its folder. Does not import torch.
"""

import contextlib
import os
import sys
import time
import warnings

import optuna
import yaml
from optuna.trial import FrozenTrial, TrialState

from imagenet_ddp.cli.overrides import shell_line
from imagenet_ddp.config.figures import best_metric, figure_of
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs.folder import summary
from imagenet_ddp.runs.signals import Signals
from imagenet_ddp.system import console
from imagenet_ddp.system.files import atomic_write
from imagenet_ddp.system.seeding import hash_seed
from imagenet_ddp.system.text import count_noun, duration, first_line
from imagenet_ddp.tune.study_plan import StudyPlan
from imagenet_ddp.tune.trials import Trial

POLL_S = 0.2
STOPPED = (129, 130, 138, 140, 143)  # exit codes of a run that was stopped by a signal
NUMBER, OPTIONS = "run", "options"  # user attributes of Optuna's trials; OPTIONS is set last
WORDS = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed",
         TrialState.RUNNING: "running", TrialState.WAITING: "stopped"}  # fmt: skip


def say(text: str, *, whole: bool = False) -> None:
    console.print_message(text, sys.stdout, whole=whole)


class Study:
    """An Optuna study in study.db. Raises ConfigError if study.db cannot be read as a study."""

    def __init__(self, plan: StudyPlan, signals: Signals):
        self.plan, self.options, self.signals = plan, plan.options, signals
        self.running: list[Trial] = []
        self.num_failed = 0  # number of trials that failed in a row
        self._asked: dict[int, optuna.Trial] = {}
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        file = (plan.folder / "study.db").resolve()
        pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
        if self.options.pruner == "median":  # warm-up steps count from 0, epochs from 1
            pruner = optuna.pruners.MedianPruner(self.options.pruner_num_trials, self.options.pruner_num_epochs)
        try:
            self._study = optuna.create_study(
                storage=f"sqlite:///{file}", study_name="study", load_if_exists=True,
                direction="maximize", pruner=pruner,
            )  # fmt: skip
        except Exception as error:
            if not file.exists():
                raise
            message = f"{file} cannot be read as a study: {first_line(error)} Hint: start a new study."
            raise ConfigError(message) from error

    def run(self) -> int:
        """Run the study to its end, or until a signal or too many failures stop it. Return the exit code."""
        options, deadline = self.options, time.monotonic() + (self.options.timeout_s or float("inf"))
        say(f"Study folder: {self.plan.folder}")
        trials = f"{count_noun(options.num_trials, 'trial')}, {len(self.plan.slots)} at once."
        search = f"Sampler: {options.sampler}, seed {self.plan.seed}. Pruner: {options.pruner}."
        say(f"{trials} {search} Objective: the highest score of a validation.")
        self.enqueue_interrupted()
        if self.trials:
            say(f"Resuming {self.counts()}")
        while True:
            for trial in list(self.running):
                self._poll(trial)
            if self.signals.received or self.num_failed >= options.max_failures:
                return self._stop(self.signals.received)
            while len(self.running) < len(self.plan.slots) and (
                self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
                or (len(self.trials) < options.num_trials and time.monotonic() < deadline)
            ):
                self._start()
            if not self.running:
                return self._end()
            time.sleep(POLL_S)

    @property
    def trials(self) -> dict[int, FrozenTrial]:
        """The latest Optuna trial of each number, without trials whose values were not all drawn."""
        trials = self._study.get_trials(deepcopy=False)
        return {_number_of(trial): trial for trial in trials if OPTIONS in trial.user_attrs}

    def counts(self) -> str:
        states = [trial.state for trial in self.trials.values()]
        parts = [f"{states.count(state)} {word}" for state, word in WORDS.items() if state in states]
        return f"{count_noun(len(states), 'trial')}: {', '.join(parts)}."

    def enqueue_interrupted(self) -> None:
        """Enqueue the trials that were running when the command ended."""
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self._study.tell(trial.number, state=TrialState.FAIL)
            if OPTIONS in trial.user_attrs:
                attrs = {NUMBER: _number_of(trial), OPTIONS: trial.user_attrs[OPTIONS]}
                self._study.enqueue_trial(trial.params, user_attrs=attrs)

    def next_trial(self) -> tuple[int, tuple[str, ...]]:
        """Return (number, options) of the next trial, which is an enqueued trial or, if there is none, a new trial."""
        number, parameters = len(self.trials), self.plan.parameters
        seed = hash_seed(self.plan.seed, number) % 2**32
        if self.options.sampler == "random":
            self._study.sampler = optuna.samplers.RandomSampler(seed=seed)
        else:
            self._study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=self.options.num_random_trials)
        trial = self._study.ask({each.key: each.distribution for each in parameters})
        # not the stored options of an enqueued trial: study.db may be somebody else's, who must not choose what runs
        options = [each.option(trial.params[each.key]) for each in parameters]
        if OPTIONS not in trial.user_attrs:
            trial.set_user_attr(NUMBER, number)
            trial.set_user_attr(OPTIONS, options)
        number = _number_of(trial)
        self._asked[number] = trial
        return number, tuple(options)

    def _options(self, trial: FrozenTrial) -> list[str]:
        """Return the options of a finished trial, of those of its values that are in the search space. Not the stored
        options, as in next_trial: a user is told to type these."""
        options = list[str]()
        for each in self.plan.parameters:
            with contextlib.suppress(KeyError, ValueError):
                value = trial.params[each.key]
                each.distribution.to_internal_repr(value)
                options.append(each.option(value))
        return options

    def end(self, number: int, state: TrialState, score: float | None = None) -> None:
        self._study.tell(self._asked.pop(number), values=score, state=state)

    def best(self) -> FrozenTrial | None:
        """Return the finished trial with the highest score, or None."""
        finished = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return max(finished, key=lambda trial: trial.values[0], default=None)

    def _start(self) -> None:
        number, options = self.next_trial()
        slot = next(slot for slot in self.plan.slots if not any(slot is other.slot for other in self.running))
        folder = self.plan.folder / "trials" / str(number)
        say(f"trial {number} {'resumes' if folder.exists() else 'starts'}: {' '.join(options)}")
        self.running.append(Trial(number, options, folder, slot, self.plan.train_argv))

    def _poll(self, trial: Trial) -> None:
        code, asked = trial.poll(), self._asked[trial.number]
        epochs = trial.new_epochs()
        for epoch, score in epochs.items():
            asked.report(score, epoch)
        if epochs and code is None and not trial.is_pruned and asked.should_prune():
            trial.is_pruned = True
            trial.stop()
        if code is None:
            return
        self.running.remove(trial)
        elapsed, found = duration(time.monotonic() - trial.started_s), summary(trial.folder)
        metric = best_metric(found)
        figure, score = figure_of(metric), found.get(f"best/{metric}")
        if code == 0 and score is not None:
            self.num_failed = 0
            self._study.set_metric_names([metric])
            self.end(trial.number, TrialState.COMPLETE, score)
            best = self.best()
            assert best
            say(f"trial {trial.number} finished: val {figure.title} {figure.text(score)} after {elapsed}; "
                f"best so far {figure.text(best.values[0])} (trial {_number_of(best)})")  # fmt: skip
        elif trial.is_pruned:
            self.num_failed = 0
            self.end(trial.number, TrialState.PRUNED)
            say(f"trial {trial.number} pruned after {elapsed}")
        elif code in STOPPED:  # from outside, perhaps by SLURM, which signals every process; it is resumed later
            self.signals.received = self.signals.received or code - 128
        else:
            self.num_failed += 1
            is_first = not any(each.state.is_finished() for each in self.trials.values())
            self.end(trial.number, TrialState.FAIL)
            reason = (trial.output() or ["no output"])[-1].strip() if code else "nothing was validated"
            say(
                f"trial {trial.number} failed, exit code {code}: {reason.rstrip('.')}. See {os.path.relpath(trial.log)}"
            )
            if code == 2 and is_first:  # train refuses the options of the study
                console.print_message("\n".join(trial.output()))
                for other in self.running:
                    other.stop()
                sys.exit(2)

    def _end(self) -> int:
        say(self.counts())
        if (best := self.best()) is None:
            return 1
        number, score, options = _number_of(best), best.values[0], self._options(best)
        metric = best_metric(summary(self.plan.folder / "trials" / str(number)))
        figure = figure_of(metric)
        line = shell_line("train", [*self.plan.train_argv, *options])
        content = {"trial": number, metric: score, "options": options, "command": line}
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1000)
        atomic_write(
            self.plan.folder / "best.yaml", f"# The finished trial with the highest val {figure.title}.\n{text}"
        )
        say(f"Leaderboard: {shell_line('report', [os.path.relpath(self.plan.folder)])}", whole=True)
        say(f"Best: trial {number}, val {figure.title} {figure.text(score)}. Train with its options:")
        say(f"  {line}", whole=True)
        return 0

    def _stop(self, number: int | None) -> int:
        """Stop the running trials and return the exit code. number: the signal that was received, or None. Interrupted
        trials remain in the study as running, to be resumed."""
        if self.running:
            say("Stopping as soon as the running trials have saved their state.")
        for trial in self.running:
            trial.stop()
        while self.running:
            time.sleep(POLL_S)
            for trial in list(self.running):
                self._poll(trial)
        say(self.counts())
        if number is None:
            say(f"{count_noun(self.num_failed, 'trial')} in a row failed, so the study stops (tune.max_failures).")
        say(f"Resume with: {shell_line('tune', [*self.plan.argv, f'hydra.run.dir={self.plan.folder}'])}", whole=True)
        return 128 + number if number else 1


def _number_of(trial: FrozenTrial | optuna.Trial) -> int:
    """Return the trial's number in this study, which names its folder."""
    return trial.user_attrs.get(NUMBER, trial.number)
