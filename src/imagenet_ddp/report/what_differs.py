"""Say in what two nets differ: in words what a person asks first, and each option of their trainings."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from imagenet_ddp.config.figures import START
from imagenet_ddp.config.schema.keys import declared
from imagenet_ddp.config.section import leaves
from imagenet_ddp.report.differing_options import find_differences, format_option, option
from imagenet_ddp.report.predictions import Predictions
from imagenet_ddp.report.run_folders import Run, read_run
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.runs.result_files import read_config
from imagenet_ddp.system.text import printable

# Options that an evaluation may set otherwise than the training.
_OF_EVALUATION = {f"data.{key}" for key in ("image_size", "val_resize", "interpolation", "fit", "val_mirror")}
# What _facts says in words.
_IN_WORDS = {"model.name", "model._target_", "model.weights", "data.root", "data.image_size", "trainer.max_epochs",
             "seed", "name"}  # fmt: skip


def what_differs(nets: Sequence[Predictions]) -> tuple[list[tuple[str, list[str]]], list[tuple[str, str, list[str]]]]:
    """Return (what differs, as words and the text of each net; further options that differ, as key, meaning and the
    value of each net, none if a net's run is not here)."""
    runs = [run_of(found) for found in nets]
    evaluated = [leaves(read_config(found.folder)) for found in nets]
    facts = [_facts(*each) for each in zip(evaluated, runs, strict=True)]
    words = [(name, [each.get(name, "not known") for each in facts]) for name in {**facts[0], **facts[1]}]
    known = [
        replace(run, options=run.options | {key: value for key, value in options.items() if key in _OF_EVALUATION})
        for run, options in zip(runs, evaluated, strict=True)
        if run is not None
    ]
    differences, meanings = find_differences(known), declared("train")
    further = [
        (key, meanings[key].meaning if key in meanings else "", [format_option(option(run, key)) for run in known])
        for key in (*differences.keys, *differences.derived)
        if key not in _IN_WORDS and len(known) == len(nets)
    ]
    return [(name, texts) for name, texts in words if len({*texts}) > 1], further


def run_of(found: Predictions) -> Run | None:
    """Return the run that trained the net; None if its folder is not here."""
    folder = CheckpointStore.run_dir_of(found.checkpoint) if found.checkpoint else None
    return read_run(folder) if folder else None


def _facts(evaluated: dict[str, Any], run: Run | None) -> dict[str, str]:
    """Return words -> text, the most important first. evaluated: the options of the evaluation."""
    facts = {
        "Net": evaluated.get("model._target_") or evaluated.get("model.name"),
        "Image size": f"{evaluated.get('data.image_size')} pixels",
    }
    if run is not None:
        number = run.summary.get("num_train_images")
        best = ""
        if run.best_epoch == 0:
            best = f"{', none better than the start' if run.epochs else ''} ({run.summary.get('start') or START})"
        elif run.best_epoch not in (None, run.epochs):
            best = f", the best after {run.best_epoch}"
        facts |= {
            "Weights at the start": run.options.get("model.weights") or "random",
            "Recipe": run.summary.get("experiment") or ("none" if run.summary else None),
            "Images": run.options.get("data.root"),
            "Training images": None if number is None else f"{number:,}",
            "Classes": run.summary.get("num_classes"),
            "Epochs": f"{run.epochs}{best}",
            "Seed": run.options.get("seed"),
        }
    return {name: printable(str(text)) for name, text in facts.items() if text is not None}
