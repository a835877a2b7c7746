"""Find mistakes in the name, callbacks, loggers, input and output of a run. Does not import torch."""

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from imagenet_ddp.config import conf_dir
from imagenet_ddp.config.figures import FIGURES, FIGURES_OF, Figure, figure_of
from imagenet_ddp.config.schema.commands import USE_MODEL
from imagenet_ddp.config.schema.keys import validate_group
from imagenet_ddp.config.section import OF_ENTRIES
from imagenet_ddp.config.validators import NULL, choice, expect, integer, shown
from imagenet_ddp.mistakes import Fix, Mistake, example, meant, must_be, setting
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.runs.folder import is_locked
from imagenet_ddp.system.files import below, beside, describe_path
from imagenet_ddp.system.packages import missing_package
from imagenet_ddp.system.text import near_names, shorten_list

MODULES = {"callbacks": "callbacks", "logger": "loggers"}  # group -> module of Lightning with its classes
MOST_NAMED = 3  # runs in a message
LATEST = ("true", "yes", "last", "latest")  # what other programs have for resume=auto
_RESULTS = ("report.html", "summary.json", "config.yaml", "metrics.csv", "curves.png", "known.npz")  # of a run
_WITHOUT_TRAINING = ("evaluate", "features", *USE_MODEL, "prepare", "benchmark")
# Arguments of ResumeCheckpoint, with their allowed values and an example.
ARGUMENTS = {
    "every_n_epochs": (integer(1), "1"),
    "every_n_steps": (NULL | integer(1), "null"),
    "mode": (choice("auto", "max", "min"), "max"),
}
# Lightning's callbacks that change what options set, or search for it in a module -> the option.
REPLACED = {
    "StochasticWeightAveraging": "averaging=swa",
    "GradientAccumulationScheduler": "trainer.accumulate_grad_batches=VALUE",
    "LearningRateFinder": "optim.lr=VALUE",
    "BatchSizeFinder": "trainer.batch_finder=true",
    "BackboneFinetuning": "model.freeze=backbone",
}


def validate(
    config: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    verb: str = "train",
    partial: bool = False,
    elsewhere: bool = False,
) -> list[Mistake]:
    """Return every mistake. Paths are relative to the current folder. partial: a checkpoint has the other
    arguments of callbacks and loggers. elsewhere: the checkpoint is on another machine, which checks and sends it."""
    found = validate_group("", config, verb)
    for group in OF_ENTRIES:
        found += [] if partial else _entries(group, config[group])
    found += [] if elsewhere else _logger_packages(config["logger"])
    found += _callback_arguments(config["callbacks"])
    found += _modes(config["callbacks"])
    if verb not in _WITHOUT_TRAINING:
        found += _monitors(config)
        found += validate_group("sweep", config["sweep"])
        if config["resume"] not in (None, "auto") and not elsewhere:
            found += _checkpoint("resume", config["resume"], environ)
    elif verb not in ("prepare", "benchmark") and config["checkpoint"] is not None and not elsewhere:
        found += _checkpoint("checkpoint", config["checkpoint"], environ)
    return found


def _entries(group: str, entries: Mapping[str, Any]) -> list[Mistake]:
    """Check that each callback or logger is {_target_: ..., arguments}, or null, which switches it off."""
    return [
        Mistake(
            f"{group}.{key} must name its class in _target_, got {shown(entry)}",
            (f"{group}.{key}",),
            (
                Fix(
                    (f"++{group}.{key}._target_=lightning.pytorch.{MODULES[group]}.CLASS",),
                    () if isinstance(entry, Mapping) else (f"{group}.{key}",),
                ),
            ),
        )
        for key, entry in entries.items()
        if entry is not None and not (isinstance(entry, Mapping) and entry.get("_target_"))
    ]


def _logger_packages(loggers: Mapping[str, Any]) -> list[Mistake]:
    """Check the packages of the loggers in conf/logger, whose files have the names of their packages."""
    return [
        mistake
        for name, entry in loggers.items()
        if entry is not None and (conf_dir() / "logger" / f"{name}.yaml").is_file()
        for mistake in missing_package(f"logger.{name}", name, instead=setting(f"logger.{name}=null"))
    ]


def _callback_arguments(callbacks: Mapping[str, Any]) -> list[Mistake]:
    found: list[Mistake] = []
    for key, name in _known_classes(callbacks):
        for argument, (allowed, usual) in ARGUMENTS.items():
            if name == "ResumeCheckpoint" and argument in callbacks[key]:
                path = f"callbacks.{key}.{argument}"
                found += expect(path, callbacks[key][argument], allowed, example(f"{path}={usual}"))
        if name in REPLACED:
            what = f"callbacks.{key} must not be {name}, in whose place there is an option"
            fix = Fix((REPLACED[name],), (f"callbacks.{key}",))
            found.append(Mistake(what, (f"callbacks.{key}",), (fix,)))
    writers = [key for key, name in _known_classes(callbacks) if name == "ResumeCheckpoint"]
    if len(writers) > 1:  # each would replace the other's best.ckpt
        fix = setting(f"++callbacks.{writers[-1]}._target_=lightning.pytorch.callbacks.ModelCheckpoint")
        found.append(
            Mistake(f"callbacks must have one ResumeCheckpoint, got {' and '.join(writers)}", ("callbacks",), (fix,))
        )
    return found


def _modes(callbacks: Mapping[str, Any]) -> list[Mistake]:
    """Check that mode=auto stands beside a figure of this package, because for another metric it is unknown whether
    more is better."""
    found: list[Mistake] = []
    for key, entry in callbacks.items():
        monitor = entry.get("monitor") if isinstance(entry, Mapping) and entry.get("mode") == "auto" else None
        if monitor not in (None, "auto") and figure_of(str(monitor)).name not in FIGURES:
            path, allowed = f"callbacks.{key}.mode", f"max or min with monitor={shown(monitor)}"
            found.append(must_be(path, allowed, "auto", setting(f"{path}=max"), setting(f"{path}=min")))
    return found


def _monitors(config: Mapping[str, Any]) -> list[Mistake]:
    """Check the metrics that Lightning would miss only after an epoch. Beside a callback of the user's own nothing is
    checked, because it may log any metric."""
    entries, classes = config["callbacks"], _known_classes(config["callbacks"])
    if len(classes) < sum(isinstance(entry, Mapping) for entry in entries.values()):
        return []
    has_validation = config.get("trainer", {}).get("limit_val_batches") != 0
    figures = FIGURES_OF.get(str(config.get("data", {}).get("labels")), FIGURES_OF["one"])
    known = _metrics(figures, has_validation=has_validation)

    def fix(path: str, monitor: str) -> Fix:
        likeliest = max(known, key=lambda each: SequenceMatcher(None, monitor, each).ratio())
        return Fix((f"++{path}={likeliest}",), is_meant=bool(near_names(monitor, [likeliest])))

    monitors = {
        key: f"val/{figures[1].name}" if (given := entries[key].get("monitor")) == "auto" else given
        for key, name in classes
        if name in ("EarlyStopping", "ModelCheckpoint")
        or (name == "ResumeCheckpoint" and has_validation)  # else it has no best score
    }
    return [
        must_be(
            f"callbacks.{key}.monitor",
            f"one of {', '.join(known)}",
            shown(monitor),
            fix(f"callbacks.{key}.monitor", str(monitor)),
        )
        for key, monitor in monitors.items()
        if monitor not in (None, *known)
    ]


def _metrics(figures: Sequence[Figure], *, has_validation: bool) -> list[str]:
    """Return the metrics that callbacks can monitor. callbacks/train_log.py and models/lightning_module.py log them.
    figures: of the task, with the loss first."""
    figures = [*figures[1:], figures[0]]
    train = [f"train/{each.name}{suffix}" for suffix in ("", "_epoch") for each in figures if each.is_mean]
    val = [f"val/{each.name}" for each in figures] if has_validation else []
    return [*train, "lr", "images_per_s", "data_wait_frac", *val, "epoch", "step"]


def _known_classes(entries: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (key, name of the class) of the entries whose class belongs to Lightning or to this project."""
    targets = {key: str(entry.get("_target_")) for key, entry in entries.items() if isinstance(entry, Mapping)}
    return [
        (key, target.rpartition(".")[2])
        for key, target in targets.items()
        if target.startswith(("lightning.", "imagenet_ddp."))
    ]


def _checkpoint(key: str, value: str, environ: Mapping[str, str]) -> list[Mistake]:
    path = Path(value)
    store = CheckpointStore.of_run(path)
    if path.name in _RESULTS and _has_checkpoint(path.parent):
        what = f"{key} must be a checkpoint file or a run folder, but {describe_path(path)} is a file of a run"
        return [Mistake(what, (key,), (meant(f"{key}={path.parent}"),))]
    if path.is_file() or store.files():
        return []
    runs = below(path if path.is_dir() else path.parent, _has_checkpoint)
    hint = f"name a run that exists, such as {shorten_list([*map(str, runs)], MOST_NAMED)}" if runs else ""
    fixes = [] if runs else [setting(f"{key}=runs/NAME/TIME")]
    fixes += [setting("resume=auto")] if key == "resume" else []
    what, near = "is not a regular file" if path.exists() else "does not exist", list[Path]()
    if path.is_dir():
        what = "is a folder without checkpoints/last.ckpt"
        files = [*sorted(store.folder.glob("*.ckpt")), *sorted(path.glob("*.ckpt"))]
        usual = [file for file in files if file.name == ("last.ckpt" if key == "resume" else "best.ckpt")]
        near = usual[:1] or files or runs
        if not near and is_locked(path):
            what = f"{key} must be a run that has saved a checkpoint, but that in {describe_path(path)} has just begun"
            return [Mistake(what, (key,), hint="wait until its first epoch has ended")]
    elif found := beside(path, _has_checkpoint):
        near = [found]
    elif value.startswith("~"):  # no shell expands ~ after "resume="
        near = [Path(f"{environ.get('HOME', '/home/me')}{value[1:]}")]
    if key == "resume" and value.lower() in LATEST:
        fixes, hint = [meant("resume=auto")], ""
    elif len(near) == 1:
        fixes, hint = [meant(f"{key}={near[0]}")], ""
    what = f"{key} must be a checkpoint file or a run folder, but {describe_path(path)} {what}"
    return [Mistake(what, (key,), tuple(fixes), hint)]


def newest_runs() -> list[Path]:
    """Return the runs below the folder where runs are by default, at most MOST_NAMED, the newest first."""
    return below(Path("runs"), _has_checkpoint)[:MOST_NAMED]


def _has_checkpoint(run: Path) -> bool:
    return bool(CheckpointStore.of_run(run).files())
