"""Compare two nets, such as last week's and today's, on the images that both were evaluated on and neither was trained
on, and say which to keep. A run without predictions is evaluated first."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_ddp.cli.overrides import quoted, shell_line
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.pages.render import render, way_from
from imagenet_ddp.report.accuracies import folds_of_both
from imagenet_ddp.report.compared_runs import short_names
from imagenet_ddp.report.findings import classify
from imagenet_ddp.report.pairs import Pairs, find_pairs, labels_of, predicted_by
from imagenet_ddp.report.predictions import (
    EVALUATION,
    Predictions,
    is_of_several_labels,
    net_options,
    of_run,
    read,
    several_labels_sentence,
)
from imagenet_ddp.report.run_folders import MARKER, read_run
from imagenet_ddp.report.verdict import Verdict
from imagenet_ddp.report.what_differs import run_of, what_differs
from imagenet_ddp.runs.folder import unused
from imagenet_ddp.system.files import describe_path, short_path
from imagenet_ddp.system.process import import_torch
from imagenet_ddp.system.text import alphabetical, count_noun, printable
from imagenet_ddp.system.text_table import Column, Table, text_cell

if TYPE_CHECKING:
    from imagenet_ddp.report.pictures import Pictures

PAGE = "comparison.html"
TEMPLATE = Path(__file__).with_name("comparison.html")
NUM_PICTURES = 60  # per gallery
_TIME = re.compile(r"\d{4}-\d\d-\d\d_")  # with which the folder of a run begins, in one with its name


@dataclass(frozen=True)
class Comparison:
    lines: list[str]  # to print, the verdict first
    table: Table  # to print: what was measured, and what differs
    next_steps: list[tuple[str, str]]  # (words, line to type)
    files: dict[str, bytes]
    failure: str  # why predictions are older than their net; "": they are not


def is_one_net(folder: Path) -> bool:
    return (folder / "evaluation.json").is_file() or read_run(folder) is not None


def compare(folders: Sequence[Path], out: Path) -> Comparison:
    """Return the comparison of two nets. folders: of runs or evaluations. out: that of the page. Raises ConfigError
    with a sentence and what to type if they have no images in common that count."""
    if several := [folder for folder in folders if is_of_several_labels(folder)]:
        raise ConfigError(several_labels_sentence(several))
    names = _names(folders)
    evaluated = [_evaluated(folder) for folder in folders]
    options = [
        net_options(found) if found else [quoted(f"checkpoint={folder}")]
        for folder, (found, *_) in zip(folders, evaluated, strict=True)
    ]
    reasons = [f"{name}: {reason}" for name, (_, reason, _) in zip(names, evaluated, strict=True) if reason]
    more = _more_images(names, options)
    on_new = ", ".join(f"`{line}`" for _, line in more) or "evaluate both on them, and report on these evaluations"
    hint = f" Hint: put photographs that neither has seen into TEST/<class>/, then run {on_new}."
    nets = [found for found, *_ in evaluated if found]
    if len(nets) < len(folders):
        failed = any(failed for *_, failed in evaluated)
        what = f"{' and '.join(names)} must have predictions to be compared image by image. {' '.join(reasons)}"
        raise ConfigError(what + hint * failed)
    pairs = find_pairs(*nets)
    if not len(pairs.rows[0]):
        raise ConfigError(
            f"{' and '.join(map(describe_path, folders))} must have been evaluated on common images that neither was "
            f"trained on, but there are none{pairs.left_out(names[0])}.{hint}"
        )
    return _comparison(folders, names, nets, pairs, more, reasons, out)


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the names of the nets: of their runs, if these differ, else what their paths differ in."""
    paths = [folder.resolve() for folder in folders]
    own = [[part for part in path.parts if part != EVALUATION and not _TIME.match(part)] for path in paths]
    names = [printable(parts[-1]) for parts in own]
    return names if len({*names}) == len(names) else short_names(paths)


def _evaluated(folder: Path) -> tuple[Predictions | None, str, bool]:
    """Return what of_run does, of a run or an evaluation."""
    run = read_run(folder)
    return (read(folder), "", False) if run is None else of_run(run)


def _more_images(names: Sequence[str], options: Sequence[list[str]]) -> list[tuple[str, str]]:
    """Return the lines that compare two nets on further images, each after words about it; [] if no line names one of
    them. options: those that name the nets."""
    if not all(options):
        return []
    stems = (name.replace("/", "_").removesuffix("_test") for name in names)
    folders = [str(unused(Path("runs", f"{stem}_test"))) for stem in stems]
    of_images = ("data=imagefolder", "data.root=TEST")
    evaluate = (
        shell_line("evaluate", [*net, *of_images, quoted(f"hydra.run.dir={folder}")])
        for net, folder in zip(options, folders, strict=True)
    )
    words = (
        f"To know more, put photographs that neither has seen into TEST/<class>/, and evaluate {names[0]} on them",
        f"{names[1]} on the same",
        "And compare the two",
    )
    return list(zip(words, (*evaluate, shell_line("report", folders)), strict=True))


def _comparison(
    folders: Sequence[Path],
    names: list[str],
    nets: Sequence[Predictions],
    pairs: Pairs,
    more_images: list[tuple[str, str]],
    reasons: list[str],
    out: Path,
) -> Comparison:
    """more_images: the lines for further images. reasons: why predictions are older than their net."""
    views, last = list(zip(nets, pairs.rows, strict=True)), nets[1]
    label = labels_of(*views[1])  # which may have been corrected since the first evaluation
    as_before = labels_of(*views[0]) == label
    predicted = [predicted_by(*view) for view in views]
    confidence = [found.confidence[rows] for found, rows in views]
    right = [each == label for each in predicted]
    losses = [found.loss[rows][as_before] for found, rows in views]  # a loss is that of the label it was made with
    only = [_only(*nets), _only(*nets[::-1])]
    is_fair = pairs.same_training and bool(as_before.all()) and not any(only)
    folds = folds_of_both(nets) if is_fair else []
    verdict = Verdict(names, right, losses, confidence, only, pairs.same_weights, folds)
    with import_torch():
        from imagenet_ddp.report.pictures import read_pictures
    titles = [*(f"Only {name} is right" for name in names), "Both are wrong"]
    rows = _rows(right, predicted, confidence)
    shown = [each[:NUM_PICTURES].tolist() for each in rows]
    pictures = read_pictures(last, pairs.rows[1][np.concatenate(shown).astype(int)].tolist(), [])
    item = partial(_item, names, nets, pairs, pictures)
    lines = _sentences(names, pairs, verdict)
    differing, further = what_differs(nets)
    beside = [*differing, *verdict.measured]
    steps = _next_steps(nets, verdict, more_images)
    context = {
        "marker": MARKER, "title": verdict.title, "name": f"{' and '.join(map(str, folders))} on the same images",
        "folder": way_from(out / PAGE, last.started_in), "names": names, "total": len(label),
        "lines": [*lines, *reasons], "figures": verdict.figures,
        "beside": beside, "further": further, "next_steps": steps, "reason": pictures.reason,
        "num_relabelled": int((~as_before).sum()),
        "galleries": [
            (place, title, len(each), [item(number) for number in few])
            for place, title, each, few in zip(("first", "second", "neither"), titles, rows, shown, strict=True)
        ],
        "classes": _classes(label, right, dict(zip(last.classes, last.labels, strict=True))),
    }  # fmt: skip
    table = Table(
        [Column(name, name, right=False) for name in ("", *names)],
        [[*map(text_cell, (words, *texts))] for words, texts in beside],
    )
    lines[0] = f"{verdict.title}. {lines[0]}"
    return Comparison(lines, table, steps, {PAGE: render(TEMPLATE, context)}, " ".join(reasons))


def _rows(
    right: Sequence[np.ndarray], predicted: Sequence[np.ndarray], confidence: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Return the images that only the first net, only the second, and neither predicts correctly. Of the last, those
    come first for which both are sure of the same class, then those for which one is sure of another class than the
    label, because their labels are the likeliest to be wrong."""
    one, other = right
    sure = [np.nan_to_num(each) for each in confidence]
    order = np.where(predicted[0] == predicted[1], np.minimum(*sure), np.maximum(*sure) - 1)
    wrong = np.flatnonzero(~one & ~other)
    return [
        np.flatnonzero(one & ~other),
        np.flatnonzero(other & ~one),
        wrong[np.argsort(-order[wrong], kind="stable")],
    ]


def _sentences(names: Sequence[str], pairs: Pairs, verdict: Verdict) -> list[str]:
    """Return what the page says first."""
    first, second, wrong = (f"{number:,}" if number else "none" for number in verdict.counts[1:])
    unknown = [name for name, says_nothing in zip(names, pairs.says_nothing, strict=True) if says_nothing]
    neither = "" if unknown else " and neither was trained on"
    which = f"{count_noun(len(pairs.rows[0]), 'image')} that both were evaluated on{neither}{pairs.left_out(names[0])}"
    lines = [
        verdict.reason,
        *verdict.other_classes,
        f"Of the {which}, only {names[0]} is right for {first}, only {names[1]} for {second}, and both are wrong for "
        f"{wrong}.",
    ]
    if unknown:
        lines.append(
            f"{' and '.join(unknown)} may have been trained on them, and would then look better than on new images: "
            f"{'its checkpoint does' if len(unknown) == 1 else 'their checkpoints do'} not say."
        )
    return lines


def _only(found: Predictions, other: Predictions) -> list[str]:
    """Return the labels of the classes that only the first net knows."""
    known = {*other.classes}
    return [label for name, label in zip(found.classes, found.labels, strict=True) if name not in known]


def _next_steps(
    nets: Sequence[Predictions], verdict: Verdict, more_images: list[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return what can be done next, as (words, line to type)."""
    kept = nets[verdict.used]
    steps = classify(net_options(kept), kept.checkpoint if kept.is_own else None)
    if verdict.kept is None and not verdict.is_same:
        steps = [(f"{words}, here with {verdict.names[verdict.used]}", line) for words, line in steps]
    if verdict.counts[3] and (run := run_of(kept)):
        line = shell_line("report", [str(short_path(run.folder))])
        steps.append(("If a label is wrong, correct it below its picture, on the page that this makes", line))
    return [*steps, *(more_images if verdict.is_open else [])]


def _classes(label: np.ndarray, right: Sequence[np.ndarray], labels: dict[str, str]) -> list[dict[str, Any]]:
    """Return a row for each class, those that the nets differ in most first."""
    rows = []
    for name in {*label.tolist()}:
        here = label == name
        shares = [float(each[here].mean()) for each in right]
        difference = shares[1] - shares[0]
        rows.append({"label": labels[name], "num": int(here.sum()), "shares": shares, "difference": difference})
    return sorted(rows, key=lambda row: (-abs(row["difference"]), alphabetical(row["label"])))


def _item(
    names: Sequence[str], nets: Sequence[Predictions], pairs: Pairs, pictures: "Pictures", number: int
) -> dict[str, Any]:
    last, row = nets[1], int(pairs.rows[1][number])
    guesses = []
    for name, found, rows in zip(names, nets, pairs.rows, strict=True):
        predicted = int(found.prediction[rows[number]])
        guess = "no class" if predicted < 0 else found.labels[predicted]
        guesses.append((name, guess, float(found.confidence[rows[number]])))
    return {
        "uri": pictures.thumbnails.get(row), "path": last.paths[row], "name": last.names[row],
        "label": last.labels[last.target[row]], "guesses": guesses,
    }  # fmt: skip
