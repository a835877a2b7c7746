"""Read the files that `evaluate` wrote, and run `evaluate` first if necessary."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.cli.other_command import run_other
from imagenet_ddp.cli.overrides import quoted, shell_line
from imagenet_ddp.config.paths import is_file, is_remote
from imagenet_ddp.config.validators import is_mapping
from imagenet_ddp.data.sources.cells import read_cells
from imagenet_ddp.data.sources.imagenet import class_labels
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.report.run_folders import Run
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.runs.read_results import read_results
from imagenet_ddp.runs.result_files import NOT_FINITE, read_config
from imagenet_ddp.system.bounded_wait import lock_or_wait
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.files import describe_path, exists, short_path
from imagenet_ddp.system.table_files import of_text_cell
from imagenet_ddp.system.text import as_in_tables, count_noun, duration

EVALUATION = "evaluation"  # the subfolder with the evaluation of a run, which `report RUN` makes
TOP = 5  # maximum number of predicted classes per row


@dataclass(frozen=True)
class Predictions:
    """Predictions for N images that could be read. Classes are positions in `classes`.

    index: int64 (N,), position of each image in the evaluated split.
    top, top_probability: (N, k), most probable class first; -1 if the output is NaN or inf.
    is_known: bool (N,), whether each image is like the training images; None: the run had no known.npz.
    """

    classes: list[str]
    labels: list[str]  # names of the classes for display
    folder: Path
    evaluation: dict[str, Any]  # evaluation.json
    index: np.ndarray
    paths: list[str]
    target: np.ndarray
    loss: np.ndarray
    target_probability: np.ndarray
    top: np.ndarray
    top_probability: np.ndarray
    is_known: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.target)

    @property
    def checkpoint(self) -> Path | None:
        """Return the path of the evaluated checkpoint, which is a new one if the run folder has been moved since; None
        if other weights were evaluated."""
        if self.evaluation.get("checkpoint") is None:
            return None
        path = Path(self.evaluation["checkpoint"])
        moved = CheckpointStore.of_run(self.folder.parent).folder / path.name
        return moved if exists(str(moved)) and not exists(str(path)) else path

    @property
    def is_own(self) -> bool:
        """Return whether the evaluated net is a checkpoint of this project, which knows how long it was trained."""
        path = self.checkpoint
        return path is not None and (
            self.evaluation.get("epochs") is not None or bool(CheckpointStore.run_dir_of(path))
        )

    @property
    def started_in(self) -> Path:
        """Return the folder in which evaluate was started, of which relative paths are."""
        return Path(self.evaluation.get("folder") or ".").absolute()

    @property
    def model(self) -> str:
        """Return the path of the evaluated checkpoint, or the name of the evaluated weights."""
        return str(self.checkpoint or self.evaluation.get("weights"))

    @cached_property
    def names(self) -> list[str]:
        """Return the paths below the folder that contains all of these images."""
        ends = [path.split("/")[:-1] for path in (min(self.paths), max(self.paths))] if self.paths else []
        common = takewhile(lambda pair: pair[0] == pair[1], zip(*ends, strict=False))
        start = sum(len(part) + 1 for part, _ in common)
        return [path[start:] for path in self.paths]

    @property
    def prediction(self) -> np.ndarray:
        return self.top[:, 0]

    @property
    def confidence(self) -> np.ndarray:
        return self.top_probability[:, 0]

    @property
    def is_right(self) -> np.ndarray:
        return self.prediction == self.target


class _NoPredictionsError(Exception):
    """An evaluation that was written with predictions=none."""


def is_of_several_labels(folder: Path) -> bool:
    """Return whether a run or an evaluation has several labels per image, for which evaluate writes no predictions."""
    data = read_config(folder).get("data")
    return is_mapping(data) and data.get("labels") == "several"


def several_labels_sentence(folders: Sequence[Path]) -> str:
    names = " and ".join(map(describe_path, folders))
    return (
        f"{names} must have one label per image, to be shown or compared image by image, but "
        f"{'has' if len(folders) == 1 else 'have'} several. Hint: the figures of an evaluation are in its "
        f"evaluation.json, those of two runs in the table of `{shell_line('report', ['RUN', 'RUN'])}`."
    )


def net_options(found: Predictions) -> list[str]:
    """Return the options that name the evaluated net in another command, as they are typed: for a checkpoint of this
    project its run or file, for other weights also the net; [] if its class is of the user's own, or not known."""
    checkpoint, stored = found.checkpoint, read_config(found.folder).get("model")
    model: Mapping[str, Any] = stored if is_mapping(stored) else {}
    if checkpoint and found.is_own:
        run = CheckpointStore.run_dir_of(checkpoint)
        is_best = run is not None and CheckpointStore.to_use(run) in (checkpoint, run)
        return [quoted(f"checkpoint={short_path(run if run and is_best else checkpoint)}")]
    weights = str(model.get("weights") or "")
    if checkpoint:
        option = f"checkpoint={short_path(checkpoint)}"
    elif is_file(weights) and not is_remote(weights):
        option = f"model.weights={short_path(found.started_in / weights)}"
    else:
        option = f"model.weights={weights}" if weights else ""
    if not (option and model.get("name")) or any(model.get(key) for key in ("_target_", "args", "blur_pool")):
        return []
    library = ["model.library=timm"] if model.get("library") == "timm" else []
    return [quoted(option), *library, quoted(f"model.name={model['name']}")]


def read(folder: Path, remedy: str = "") -> Predictions:
    """Read a folder that evaluate wrote. remedy: what to do after removing the folder; "": evaluate again. Raises
    ConfigError if its files are missing, have unexpected contents, or no predictions."""
    if is_of_several_labels(folder):
        raise ConfigError(several_labels_sentence([folder]))
    try:
        return _read(folder)
    except _NoPredictionsError:
        again = f"run `rm -r {shlex.quote(str(folder))}`, then {remedy}"
        if not remedy:
            again = "type its command again, which evaluation.json has, without predictions=none and to another folder"
        raise ConfigError(
            f"{describe_path(folder)} must hold predictions, but was written with predictions=none. Hint: {again}."
        ) from None
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        again = f"run `python -m imagenet_ddp.evaluate checkpoint=FILE {quoted(f'hydra.run.dir={folder}')}`"
        raise ConfigError(
            f"{describe_path(folder)} must hold evaluation.json and predictions as evaluate writes them, but does not "
            f"({type(error).__name__}: {error}). "
            f"Hint: run `rm -r {shlex.quote(str(folder))}`, then {remedy or again}."
        ) from error


def _read(folder: Path) -> Predictions:
    problems: list[str] = []
    evaluation = read_results(folder / "evaluation.json", problems)
    if problems:
        raise ValueError(problems[0])
    if not evaluation["predictions"]:
        raise _NoPredictionsError
    classes, labels = [*map(str, evaluation["classes"])], [*map(str, evaluation["labels"])]
    if len(labels) != len(classes):
        raise ValueError("it has another number of labels than of classes")
    if labels == classes:  # for example, folders named by WordNet ids have no other labels
        known = class_labels()
        labels = [known.get(name) or name for name in classes]
    names = ["index", "path", "label", "loss", "label_probability", "error"]
    ranks = range(1, min(TOP, len(classes)) + 1)
    names += [f"{what}_{rank}" for rank in ranks for what in ("class", "probability")]
    names += ["known"] * ("known" in evaluation)
    if Path(evaluation["predictions"]).name != evaluation["predictions"]:
        raise ValueError("its predictions are in another folder")
    if not (file := folder / evaluation["predictions"]).is_file():
        raise ValueError(f"{file.name} is no file")
    cells = read_cells(file, {name: name for name in names}).columns
    columns = {name: [*map(of_text_cell, column)] for name, column in cells.items()}
    num_images = evaluation["num_val_images"] + evaluation["num_val_images_unreadable"]
    if len(columns["path"]) != num_images:
        raise ValueError(f"{num_images:,} images were evaluated, but {len(columns['path']):,} have a row")
    position = {as_in_tables(name): number for number, name in enumerate(classes)}
    good = [number for number, error in enumerate(columns["error"]) if not error or error == NOT_FINITE]

    def numbers(name: str) -> np.ndarray:
        return np.array([float(columns[name][row]) for row in good], dtype=np.float64)

    def positions(name: str) -> np.ndarray:
        return np.array([position[columns[name][row]] if columns[name][row] else -1 for row in good], dtype=np.int64)

    index = np.array([int(columns["index"][row]) for row in good], dtype=np.int64)
    target = np.array([position[columns["label"][row]] for row in good], dtype=np.int64)
    probabilities = np.stack([numbers(f"probability_{rank}") for rank in ranks], axis=1)
    if (index < 0).any() or (probabilities < 0).any() or (probabilities > 1).any():
        raise ValueError(f"{file.name} has an index < 0 or a probability outside 0..1")
    return Predictions(
        classes, labels, folder, evaluation, index,
        [columns["path"][row] for row in good], target, numbers("loss"), numbers("label_probability"),
        np.stack([positions(f"class_{rank}") for rank in ranks], axis=1), probabilities,
        np.array([columns["known"][row] == "yes" for row in good]) if "known" in columns else None,
    )  # fmt: skip


def _is_current(file: Path, checkpoint: Path) -> bool:
    """Return whether this evaluation is that of the checkpoint, or there is nothing to evaluate."""
    return not checkpoint.is_file() or (file.is_file() and file.stat().st_mtime >= checkpoint.stat().st_mtime)


def _options(checkpoint: Path, folder: Path) -> list[str]:
    return [quoted(f"checkpoint={checkpoint}"), quoted(f"hydra.run.dir={folder}")]


def _evaluate(run: Run, checkpoint: Path, folder: Path, why: str) -> str:
    """Evaluate a checkpoint in a process of its own. why: what is said of it. Return the reason if that failed, else
    ""."""
    draft = folder.with_name(f".{EVALUATION}")  # replaces the folder if evaluate succeeds
    if draft.is_symlink():
        draft.unlink()
    reason = ""
    if not _is_current(draft / "evaluation.json", checkpoint):  # else a user typed the line that a refusal printed
        shutil.rmtree(draft, ignore_errors=True)
        words, number = f"Evaluating {checkpoint}, {why}", run.summary.get("num_val_images")
        words += f", on {count_noun(number, 'image')}" if number else ""
        if number and run.images_per_s:
            words += f" ({duration(max(number / run.images_per_s, 1))} at the speed of its training)"
        print_message(words)
        argv = _options(checkpoint, draft)
        reason = run_other("evaluate", argv, stdout=subprocess.DEVNULL)  # its output would name the draft
    if reason:
        return (
            f"The best checkpoint could not be evaluated: {reason} With the option that this names, run "
            f"`rm -rf {shlex.quote(str(folder))}`, then `{shell_line('evaluate', _options(checkpoint, folder))}`, then "
            "report again."
        )
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(draft, folder)  # noqa: PTH105
    return ""


def of_run(run: Run, *, have_changed: bool = False) -> tuple[Predictions | None, str, bool]:
    """Return (predictions of a run's best checkpoint, "", False). If they are missing or older than the checkpoint, or
    if its images have changed since (have_changed), run evaluate in a separate process. If that is impossible, return
    (the older predictions or None, the reason, whether it is a failure). Of several labels per image, evaluate writes
    no predictions."""
    checkpoint, folder, reason = CheckpointStore.of_run(run.folder).best, run.folder / EVALUATION, ""
    file = folder / "evaluation.json"
    why = "whose images have changed since its evaluation" if have_changed else "which has no predictions yet"
    if have_changed or not _is_current(file, checkpoint):
        if run.state == "running":
            return None, "The run is still training, so it has not been evaluated image by image yet.", False
        try:
            with lock_or_wait(run.folder / f".{EVALUATION}.lock"):
                if have_changed or not _is_current(file, checkpoint):  # else another report has evaluated it meanwhile
                    reason = _evaluate(run, checkpoint, folder, why)
        except OSError as error:
            reason = f"The best checkpoint could not be evaluated ({error.strerror or error})."
    if not file.is_file():
        return None, reason or "There is no checkpoints/best.ckpt to evaluate image by image.", bool(reason)
    if run.options.get("data.labels") == "several" and read_results(file).get("predictions") is None:
        return None, "The page shows no images: its galleries are made for one label per image.", bool(reason)
    try:
        older = f"{reason} The page shows older predictions." if reason else ""
        return read(folder, "run this command again"), older, bool(reason)
    except ConfigError as error:
        return None, str(error), True
