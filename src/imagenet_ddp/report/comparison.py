"""Compare two nets, such as last week's and today's, on the images that both were evaluated on and neither was trained
on. An image is recognised by its content, so the two may have been evaluated on different folders."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_ddp.cli.overrides import quoted, shell_line
from imagenet_ddp.curation.interval import interval_words
from imagenet_ddp.data.sources.base import Names
from imagenet_ddp.data.sources.validation_split import NO_KEY, content_keys
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.pages.render import render, way_from
from imagenet_ddp.report.findings import classify
from imagenet_ddp.report.predictions import (
    EVALUATION,
    Predictions,
    is_of_several_labels,
    net_options,
    read,
    several_labels_sentence,
)
from imagenet_ddp.report.run_folders import MARKER, read_run
from imagenet_ddp.report.verdict import Verdict
from imagenet_ddp.runs.folder import unused
from imagenet_ddp.system.process import import_torch
from imagenet_ddp.system.text import alphabetical, count_noun, percent, printable, shorten_list

if TYPE_CHECKING:
    from torch import Tensor

    from imagenet_ddp.report.pictures import Pictures

PAGE = "comparison.html"
TEMPLATE = Path(__file__).with_name("comparison.html")
NUM_PICTURES = 60  # per gallery


@dataclass(frozen=True)
class Pairs:
    """The N images that count. old, new: int64 (N,), their rows in the predictions of each net. num_trained: of the
    images in both evaluations, those left out because a net was trained on them. num_foreign: because the old net does
    not know their class. num_single: images in only one. unknown: names of the nets that do not say which images they
    were trained on. same_weights: the two are one net."""

    old: np.ndarray
    new: np.ndarray
    num_trained: int
    num_foreign: int
    num_single: int
    unknown: list[str]
    same_weights: bool


def is_one_net(folder: Path) -> bool:
    return evaluation_of(folder) is not None or read_run(folder) is not None


def evaluation_of(folder: Path) -> Path | None:
    """Return the evaluation of a run, or the folder itself if evaluate wrote it; None if there is none."""
    return next((each for each in (folder, folder / EVALUATION) if (each / "evaluation.json").is_file()), None)


def compare(old: Path, new: Path, out: Path) -> tuple[list[str], dict[str, bytes]]:
    """Return (lines to print, the files). old, new: folders of runs or evaluations. out: that of the page. Raises
    ConfigError with a sentence and what to type if they have no images in common that count."""
    if several := [folder for folder in (old, new) if is_of_several_labels(folder)]:
        raise ConfigError(several_labels_sentence(several))
    found = [evaluation_of(folder) for folder in (old, new)]
    if missing := [folder for folder, each in zip((old, new), found, strict=True) if each is None]:
        names = " and ".join(printable(str(folder)) for folder in missing)
        lines = " and ".join(f"`{shell_line('report', [str(folder), 'maps=false'])}`" for folder in missing)
        raise ConfigError(
            f"Two nets are compared on the images that both were evaluated on, but {names} "
            f"{'has' if len(missing) == 1 else 'have'} no evaluation. Hint: run {lines}, then this command again. If "
            f"the classes of the data have changed since, "
            f"{_on_new_images(*map(_options_of, (old, new), found))}."
        )
    one, other = (read(each) for each in found if each is not None)
    pairs = _pairs(one, other, (str(old), str(new)))
    if not len(pairs.old):
        how = _on_new_images(net_options(one), net_options(other))
        raise ConfigError(
            f"{printable(str(old))} and {printable(str(new))} must have been evaluated on common images that neither "
            f"was trained on, but there are none{_left_out(pairs)}. Hint: {how}."
        )
    return _page((str(old), str(new)), one, other, pairs, out)


def _options_of(folder: Path, evaluation: Path | None) -> list[str]:
    """Return the options that name the net of a run or an evaluation. evaluation: None if a run has none."""
    return net_options(read(evaluation)) if evaluation else [quoted(f"checkpoint={folder}")]


def _on_new_images(old: Sequence[str], new: Sequence[str]) -> str:
    put = "put photographs that neither has seen into TEST/<class>/"
    lines = [f"`{line}`" for _, line in _more_images(old, new)]
    if not lines:
        return f"{put}, evaluate both nets on them, and compare the folders of these evaluations"
    return f"{put}, run {lines[0]} and {lines[1]}, then {lines[2]}"


def _more_images(old: Sequence[str], new: Sequence[str]) -> list[tuple[str, str]]:
    """Return the lines that compare two nets on further images, each after words about it; [] if no line names one of
    them. old, new: the options that name the nets."""
    if not (old and new):
        return []
    folders = [str(unused(Path("runs", name))) for name in ("old_test", "new_test")]
    evaluate = (
        shell_line("evaluate", [*options, "data=imagefolder", "data.root=TEST", f"hydra.run.dir={name}"])
        for options, name in zip((old, new), folders, strict=True)
    )
    words = (
        "To know more, put photographs that neither net has seen into TEST/<class>/, and evaluate the old net on them",
        "The new net on the same",
        "And compare the two",
    )
    return list(zip(words, (*evaluate, shell_line("report", folders)), strict=True))


def _pairs(old: Predictions, new: Predictions, names: Sequence[str]) -> Pairs:
    keys, trained, unknown, nets = [], np.empty(0, np.uint64), list[str](), []
    for found, name in zip((old, new), names, strict=True):
        keys.append(content_keys(found.evaluation.get("folder") or ".", Names.of(found.paths)))
        of_net, weights = _net(found)
        nets.append(weights)
        if of_net is None:
            unknown.append(printable(name))
        else:
            trained = np.union1d(trained, of_net)
    common, in_old, in_new = np.intersect1d(*keys, return_indices=True)  # of copies, the first
    is_file = common != np.uint64(NO_KEY)
    is_trained = np.isin(common, trained) & is_file
    num_single = sum(len(np.unique(each[each != np.uint64(NO_KEY)])) - int(is_file.sum()) for each in keys)
    is_foreign = ~np.isin(_labels(new, in_new), np.array(old.classes, dtype=object)) & is_file & ~is_trained
    counts = is_file & ~is_trained & ~is_foreign
    order = np.argsort(in_new[counts])
    same = bool(nets[0]) and nets[0].keys() == nets[1].keys()
    same = same and all(nets[0][name].equal(nets[1][name]) for name in nets[0])
    rows = in_old[counts][order], in_new[counts][order]
    return Pairs(*rows, int(is_trained.sum()), int(is_foreign.sum()), num_single, unknown, same)


def _net(found: Predictions) -> "tuple[np.ndarray | None, dict[str, Tensor]]":
    """Return (the content keys of the images that a net was trained on, uint64, or None if it does not say; its
    weights, or an empty dict if they are not in a checkpoint of this project)."""
    with import_torch():
        from imagenet_ddp.runs import checkpoint_file
        from imagenet_ddp.training.held_out import ImageKeys
    if found.checkpoint is None or not checkpoint_file.is_own(found.checkpoint):
        return None, {}
    stored = checkpoint_file.read(found.checkpoint)
    keys = ImageKeys.stored_in(stored[checkpoint_file.KEY])
    return None if keys is None else keys.trained, stored["state_dict"]


def _left_out(pairs: Pairs) -> str:
    parts = [f"{count_noun(pairs.num_trained, 'image')} that one of them was trained on"] if pairs.num_trained else []
    foreign = f"{count_noun(pairs.num_foreign, 'image')} of classes that the old net does not know"
    parts += [foreign] if pairs.num_foreign else []
    parts += [f"{count_noun(pairs.num_single, 'image')} that only one was evaluated on"] if pairs.num_single else []
    return f" (left out: {' and '.join(parts)})" if parts else ""


def _page(
    names: tuple[str, str], old: Predictions, new: Predictions, pairs: Pairs, out: Path
) -> tuple[list[str], dict[str, bytes]]:
    total = len(pairs.old)
    label = _labels(new, pairs.new)  # which may have been corrected since
    as_before = _labels(old, pairs.old) == label
    right = [_predicted(each, rows) == label for each, rows in ((old, pairs.old), (new, pairs.new))]
    is_mended, is_spoiled = ~right[0] & right[1], right[0] & ~right[1]
    num_right = [int(each.sum()) for each in right]
    losses = (
        old.loss[pairs.old][as_before],
        new.loss[pairs.new][as_before],
    )  # a loss is that of the label it was made with
    confidence = old.confidence[pairs.old], new.confidence[pairs.new]
    verdict = Verdict(right, losses, confidence, pairs.same_weights)
    difference, ends = f"{100 * verdict.difference:+.1f}", " to ".join(f"{100 * end:+.1f}" for end in verdict.ends)
    accuracies = [f"{percent(num / total, 1)} ({interval_words(num, total)})" for num in num_right]
    kept = {"old": names[0], "new": names[1]}.get(verdict.kept)
    doubt = kept is not None and printable(kept) in pairs.unknown
    only = [_only(new, old), _only(old, new)]
    known = [f"{which} knows {shorten_list(each)}." for which, each in _known(only)]
    lines = [
        f"On {count_noun(total, 'image')} that both were evaluated on{_but_not_trained(pairs)}: old {accuracies[0]}, "
        f"new {accuracies[1]}{_left_out(pairs)}.",
        f"Difference {difference} points ({ends}): {verdict.words}. Newly right: {is_mended.sum():,}, "
        f"newly wrong: {is_spoiled.sum():,}. {verdict.probabilities}",
        f"{'Of the classes that both know: ' if known else ''}{verdict.advice}"
        f"{' This holds if that net was not trained on these images.' * doubt}",
        *known,
    ]
    steps = _next_steps(old, new, verdict)
    with import_torch():
        from imagenet_ddp.report.pictures import read_pictures
    changed = {
        name: np.flatnonzero(mask)[:NUM_PICTURES].tolist()
        for name, mask in (("mended", is_mended), ("spoiled", is_spoiled))
    }
    shown = [int(pairs.new[number]) for each in changed.values() for number in each]
    pictures = read_pictures(new, shown, [])
    item = partial(_item, old, new, pairs, pictures)
    context = {
        "marker": MARKER, "title": "Old and new net on the same images", "name": f"{names[0]} → {names[1]}",
        "folder": way_from(out / PAGE, new.started_in), "total": total, "accuracies": [
            (which, percent(num / total, 1), interval_words(num, total))
            for which, num in zip(("old", "new"), num_right, strict=True)
        ],
        "difference": difference, "ends": ends, "lines": lines, "next_steps": steps, "unknown": pairs.unknown,
        "num_relabelled": int((~as_before).sum()),
        "num_mended": int(is_mended.sum()), "num_spoiled": int(is_spoiled.sum()), "reason": pictures.reason,
        "classes": _classes(label, right, dict(zip(new.classes, new.labels, strict=True))),
        **{name: [item(number) for number in rows] for name, rows in changed.items()},
    }  # fmt: skip
    return [*lines, *(f"{words}: `{line}`" for words, line in steps)], {PAGE: render(TEMPLATE, context)}


def _next_steps(old: Predictions, new: Predictions, verdict: Verdict) -> list[tuple[str, str]]:
    """Return what can be done next, as (words, line to type)."""
    kept = old if verdict.kept == "old" else new
    steps = classify(net_options(kept), kept.checkpoint if kept.is_own else None)
    return [*steps, *(_more_images(net_options(old), net_options(new)) if verdict.is_open else [])]


def _but_not_trained(pairs: Pairs) -> str:
    if not pairs.unknown:
        return " and neither was trained on"
    return f" ({' and '.join(pairs.unknown)} may have been trained on them: its checkpoint does not say)"


def _labels(found: Predictions, rows: np.ndarray) -> np.ndarray:
    """Return the names of the classes of the images."""
    return np.array(found.classes, dtype=object)[found.target[rows]]


def _predicted(found: Predictions, rows: np.ndarray) -> np.ndarray:
    """Return the names of the predicted classes; "" for an output that is NaN or inf, which is no class's name."""
    return np.array([*found.classes, ""], dtype=object)[found.prediction[rows]]


def _only(found: Predictions, other: Predictions) -> list[str]:
    """Return the labels of the classes that only the first net knows."""
    known = {*other.classes}
    labels = (label for name, label in zip(found.classes, found.labels, strict=True) if name not in known)
    return sorted(labels, key=alphabetical)


def _known(only: Sequence[list[str]]) -> list[tuple[str, list[str]]]:
    return [(f"Only the {which} net", each) for which, each in zip(("new", "old"), only, strict=True) if each]


def _classes(label: np.ndarray, right: Sequence[np.ndarray], labels: dict[str, str]) -> list[dict[str, Any]]:
    """Return a row for each class, the largest loss of accuracy first."""
    rows = []
    for name in {*label.tolist()}:
        here = label == name
        old, new = (float(each[here].mean()) for each in right)
        rows.append({"label": labels[name], "num": int(here.sum()), "old": old, "new": new, "difference": new - old})
    return sorted(rows, key=lambda row: (row["difference"], alphabetical(row["label"])))


def _item(old: Predictions, new: Predictions, pairs: Pairs, pictures: "Pictures", number: int) -> dict[str, Any]:
    rows = int(pairs.old[number]), int(pairs.new[number])
    guesses = []
    for found, row in zip((old, new), rows, strict=True):
        predicted = int(found.prediction[row])
        guesses.append(("no class" if predicted < 0 else found.labels[predicted], float(found.confidence[row])))
    return {
        "uri": pictures.thumbnails.get(rows[1]), "path": new.paths[rows[1]], "name": new.names[rows[1]],
        "label": new.labels[new.target[rows[1]]],
        "guesses": guesses,
    }  # fmt: skip
