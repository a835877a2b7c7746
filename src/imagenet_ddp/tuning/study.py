"""The study: what was tried, what is tried next, which trial ends early. The only file that knows Optuna.

Every trial has a sampler of its own, made from seed and number: what is drawn hangs on the trials before, not on how
often the command was stopped and started again.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagenet_ddp.schema import ConfigError
from imagenet_ddp.tuning.parameter import Parameter

if TYPE_CHECKING:
    import optuna

METRIC = "val/top1"
SEEDS_APART = 100_003  # a prime: the seeds of two studies' trials do not meet
FIGURES = {
    "history": "plot_optimization_history", "importances": "plot_param_importances", "slices": "plot_slice",
    "parallel": "plot_parallel_coordinate", "epochs": "plot_intermediate_values",
}  # fmt: skip


@dataclass(frozen=True)
class Tried:
    """A trial as the study knows it."""

    number: int
    state: str  # finished, pruned, failed, running
    top1: float | None  # a fraction; of a pruned one its last
    epoch: int | None
    options: tuple[str, ...]
    values: Mapping[str, Any]  # key -> value
    error: str = ""


class Study:
    """study.db in the folder: each call is in the file before it returns."""

    def __init__(
        self, folder: Path, options: Mapping[str, Any], seed: int, parameters: Sequence[Parameter], epochs: int | None
    ):
        """options: tune.*; epochs: the most that a trial trains, None where that is open."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        self._optuna, self._options, self._seed, self._parameters = optuna, options, seed, tuple(parameters)
        file = (folder / "study.db").resolve()
        try:
            # the name goes into hyperband's choice of brackets: the same in every study
            self._study = optuna.create_study(
                storage=optuna.storages.RDBStorage(f"sqlite:///{file}"), study_name="study", load_if_exists=True,
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

    def begin(self) -> tuple[int, tuple[str, ...]]:
        """(number, options) of the next trial."""
        self._study.sampler = self._sampler(self.num_trials)
        return self._begun(self._study.ask())

    def go_on(self) -> list[tuple[int, tuple[str, ...]]]:
        """Those that were running when the command ended; one that had no values yet is given them now."""
        begun = []
        for frozen in self._study.get_trials(deepcopy=False):
            if frozen.state == self._optuna.trial.TrialState.RUNNING:
                self._study.sampler = self._sampler(frozen.number)
                begun.append(self._begun(self._optuna.trial.Trial(self._study, frozen._trial_id)))
        return begun

    def _begun(self, trial: "optuna.Trial") -> tuple[int, tuple[str, ...]]:
        options = tuple(each.option(self._value(trial, each)) for each in self._parameters)
        if "options" not in trial.user_attrs:
            trial.set_user_attr("options", list(options))
        self._asked[trial.number] = trial
        return trial.number, options

    @staticmethod
    def _value(trial: "optuna.Trial", each: Parameter) -> Any:
        if each.choices:
            return trial.suggest_categorical(each.key, each.labels)
        if each.whole:
            return trial.suggest_int(each.key, int(each.low), int(each.high), log=each.log, step=int(each.step or 1))
        return trial.suggest_float(each.key, each.low, each.high, log=each.log, step=each.step)

    def report(self, number: int, epochs: Mapping[int, float]) -> int | None:
        """The epoch at which the pruner gives the trial up; None: it shall go on. epochs: epoch -> val/top1; those that
        the study knows already say nothing new."""
        trial = self._asked[number]
        known = self._study.get_trials(deepcopy=False)[number].intermediate_values
        for epoch in sorted(epochs.keys() - known.keys()):
            trial.report(epochs[epoch], epoch)
            if trial.should_prune():
                return epoch
        return None

    def end(
        self, number: int, state: str, top1: float | None = None, epoch: int | None = None, error: str = ""
    ) -> None:
        """state: as in Tried."""
        states = self._optuna.trial.TrialState
        found = {"finished": states.COMPLETE, "pruned": states.PRUNED, "failed": states.FAIL}[state]
        trial = self._asked.pop(number)
        if epoch is not None:
            trial.set_user_attr("epoch", epoch)
        if error:
            trial.set_user_attr("error", error)
        self._study.tell(trial, values=top1 if state == "finished" else None, state=found)

    @property
    def num_trials(self) -> int:
        return len(self._study.get_trials(deepcopy=False))

    def tried(self) -> list[Tried]:
        """By number."""
        names = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed"}
        by_key = {each.key: each for each in self._parameters}
        found = []
        for trial in self._study.get_trials(deepcopy=False):
            top1 = trial.value if trial.state.name in ("COMPLETE", "PRUNED") else None
            attrs = trial.user_attrs
            values = {key: _known(by_key.get(key), label) for key, label in trial.params.items()}
            found.append(
                Tried(trial.number, names.get(trial.state.name, "running"), top1, attrs.get("epoch", trial.last_step),
                      tuple(attrs.get("options", ())), values, attrs.get("error", ""))
            )  # fmt: skip
        return found

    def draw(self, folder: Path) -> tuple[list[Path], list[str]]:
        """(Optuna's own figures as PNG, a line for each that could not be drawn)."""
        from imagenet_ddp.tuning import figures

        drawn, left_out = [], []
        folder.mkdir(exist_ok=True)
        target = {} if len(self._study.directions) > 1 else {"target_name": "val top-1"}
        for name, function in FIGURES.items():
            plot = getattr(self._optuna.visualization.matplotlib, function)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    more = {} if name in ("epochs",) else target
                    drawn.append(figures.save(lambda plot=plot, more=more: plot(self._study, **more), folder, name))
                except Exception as error:
                    left_out.append(f"{name}.png is left out: {str(error).splitlines()[0] if str(error) else error!r}")
        return drawn, left_out


def _known(parameter: Parameter | None, label: Any) -> Any:
    if parameter is None or not parameter.choices or label not in parameter.labels:
        return label
    return parameter.choices[parameter.labels.index(label)]
