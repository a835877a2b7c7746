"""The study: what was tried, what is tried next, which trials end early. The only file that runs Optuna.

Each trial gets its own sampler, seeded by its number: the values drawn depend on the trials before, not on how often
the command was stopped and resumed. An interrupted trial is resumed the way Optuna offers: its values are enqueued as
a new Optuna trial, and the old one is told to have failed. Here both are one trial, with the number of the first.
"""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagenet_ddp.schema import ConfigError
from imagenet_ddp.tuning.space import Parameter

if TYPE_CHECKING:
    import optuna

METRIC = "val/top1"
SEEDS_APART = 100_003  # a prime: the seeds of two studies' trials do not meet
FIGURES = {"history": "plot_optimization_history", "importances": "plot_param_importances",
           "parallel": "plot_parallel_coordinate"}  # fmt: skip
NUMBER, OPTIONS = "run", "options"  # user attributes: number of the trial here; its options, set last


class Study:
    """study.db in the folder; every call is stored before it returns."""

    def __init__(
        self, folder: Path, options: Mapping[str, Any], seed: int, parameters: Sequence[Parameter], epochs: int | None
    ):
        """options: tune.*; epochs: the most that a trial trains, None where that is open."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        self._optuna, self._options, self._seed = optuna, options, seed
        self._parameters = {each.key: each for each in parameters}
        file = (folder / "study.db").resolve()
        try:
            # hyperband's choice of brackets depends on the name: the same in every study
            self._study = optuna.create_study(
                storage=f"sqlite:///{file}", study_name="study", load_if_exists=True,
                direction="maximize", pruner=self._pruner(epochs),
            )  # fmt: skip
        except Exception as error:
            if not file.exists():
                raise
            raise ConfigError(
                f"{file} cannot be read as a study: {str(error).splitlines()[0]} HINT: start a new one."
            ) from error
        self._study.set_metric_names([METRIC])
        self._asked: dict[int, optuna.Trial] = {}

    def _pruner(self, epochs: int | None) -> "optuna.pruners.BasePruner":
        pruners, options = self._optuna.pruners, self._options
        first = options["pruner_num_epochs"]
        if options["pruner"] == "median":
            # warm-up steps count from 0, epochs from 1
            return pruners.MedianPruner(n_startup_trials=options["pruner_num_trials"], n_warmup_steps=first)
        if options["pruner"] == "hyperband":
            return pruners.HyperbandPruner(
                min_resource=first, max_resource=epochs or "auto", reduction_factor=options["hyperband_factor"]
            )
        return pruners.NopPruner()

    def _sampler(self, number: int) -> "optuna.samplers.BaseSampler":
        samplers, seed = self._optuna.samplers, (self._seed + SEEDS_APART * number) % 2**32
        if self._options["sampler"] == "random":
            return samplers.RandomSampler(seed=seed)
        return samplers.TPESampler(seed=seed, n_startup_trials=self._options["num_random_trials"])

    def _latest(self) -> dict[int, "optuna.trial.FrozenTrial"]:
        """Map each trial's number to its latest Optuna trial; without those whose values were never all drawn."""
        trials = self._study.get_trials(deepcopy=False)
        return {each.user_attrs.get(NUMBER, each.number): each for each in trials if OPTIONS in each.user_attrs}

    def requeue(self) -> int:
        """Enqueue the trials that were running when the command ended; return how many there are."""
        running, waiting = self._optuna.trial.TrialState.RUNNING, self._optuna.trial.TrialState.WAITING
        latest = self._latest()
        for trial in self._study.get_trials(deepcopy=False, states=(running,)):
            number = trial.user_attrs.get(NUMBER, trial.number)
            # before the old one ends: killed in between, the command finds both
            if OPTIONS in trial.user_attrs and latest[number].number == trial.number:
                attrs = {NUMBER: number, OPTIONS: trial.user_attrs[OPTIONS]}
                self._study.enqueue_trial(trial.params, user_attrs=attrs)
            self._study.tell(trial.number, state=self._optuna.trial.TrialState.FAIL)
        return len(self._study.get_trials(deepcopy=False, states=(waiting,)))

    def begin(self) -> tuple[int, tuple[str, ...]]:
        """Return (number, options) of the next trial: an enqueued one first, else a new one."""
        number = self.num_trials
        self._study.sampler = self._sampler(number)
        trial = self._study.ask({key: each.distribution for key, each in self._parameters.items()})
        if OPTIONS not in trial.user_attrs:
            trial.set_user_attr(NUMBER, number)
            trial.set_user_attr(OPTIONS, [self._parameters[key].option(label) for key, label in trial.params.items()])
        number = trial.user_attrs.get(NUMBER, number)
        self._asked[number] = trial
        return number, tuple(trial.user_attrs[OPTIONS])

    def report(self, number: int, epochs: Mapping[int, float]) -> int | None:
        """Return the epoch at which to prune the trial, None to continue. epochs: epoch -> val/top1, all so far."""
        trial = self._asked[number]
        known = self._latest()[number].intermediate_values
        for epoch in sorted(epochs.keys() - known.keys()):
            trial.report(epochs[epoch], epoch)
            if trial.should_prune():
                return epoch
        return None

    def end(self, number: int, state: str, top1: float | None = None, epoch: int | None = None) -> None:
        """state: COMPLETE, PRUNED or FAIL."""
        trial = self._asked.pop(number)
        trial.set_user_attr("epoch", epoch)
        self._study.tell(trial, values=top1, state=self._optuna.trial.TrialState[state])

    @property
    def num_trials(self) -> int:
        return len(self._latest())

    @property
    def num_ended(self) -> int:
        return sum(trial.state.is_finished() for trial in self._latest().values())

    def best(self) -> "tuple[int, optuna.trial.FrozenTrial] | None":
        """Return (number, trial) of the highest top-1 among the finished trials; the first of equal ones."""
        finished = [
            (number, trial)
            for number, trial in sorted(self._latest().items())
            if trial.value is not None and trial.state.name == "COMPLETE"
        ]
        return max(finished, key=lambda each: each[1].value or 0.0, default=None)

    def counts(self) -> str:
        names = [trial.state.name for trial in self._latest().values()]
        words = {
            "COMPLETE": "finished",
            "PRUNED": "pruned",
            "FAIL": "failed",
            "RUNNING": "running",
            "WAITING": "stopped",
        }
        parts = [f"{names.count(name)} {word}" for name, word in words.items() if name in names]
        return f"{len(names)} trials: {', '.join(parts)}."

    def draw(self, folder: Path) -> tuple[list[str], list[str]]:
        """Write Optuna's figures as PNG; return (their names, a sentence for each that failed)."""
        drawn, failed = [], []
        for name, function in FIGURES.items():
            try:
                import matplotlib

                matplotlib.use("Agg")
                plot = getattr(self._optuna.visualization.matplotlib, function)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    figure = plot(self._study, target_name="val top-1").figure
                    figure.set_size_inches(11, 5.5)
                    for axes in figure.axes:  # of parallel, each axis would draw its grid over the trials
                        axes.grid(False)
                    folder.mkdir(exist_ok=True)
                    figure.savefig(folder / f"{name}.png", dpi=120, bbox_inches="tight")
                drawn.append(f"{name}.png")
            except Exception as error:  # a failed figure must not fail the study
                failed.append(f"{name}.png could not be drawn: {str(error).partition(chr(10))[0] or error!r}")
        return drawn, failed
