"""Say what the predictions of a run mean: the sentences at the head of its page."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from imagenet_ddp.cli.overrides import quoted, shell_line
from imagenet_ddp.cli.photograph_lines import untrained_sentence
from imagenet_ddp.config.figures import START, UNLIKE
from imagenet_ddp.curation.accuracies import FEW, uneven_sentence
from imagenet_ddp.curation.interval import interval_words, without_words
from imagenet_ddp.curation.wrong_labels import FILE_OF_REPORT
from imagenet_ddp.report import error_analysis
from imagenet_ddp.report.predictions import Predictions
from imagenet_ddp.report.run_folders import Run
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.runs.result_files import known_file
from imagenet_ddp.system.files import short_path
from imagenet_ddp.system.text import count_noun, percent

UNSURE = 0.2  # difference of the accuracy and the mean probability from which on a beginner should know of it


def sentences(
    found: Predictions,
    table: list[error_analysis.ClassRow],
    pairs: list[tuple[str, str, int, float]],
    num_wrong: int,
    num_decided: int,
    inaccurate: str,
    few: str,
    is_held_out: bool,
    is_chosen: bool,
    is_ordered: bool,
) -> list[tuple[str, str]]:
    """Return what the page says first, as (sentence, section). table, pairs: sorted as on the page. num_wrong: images
    whose prediction is another class than the label. num_decided: of these, with a label that a person has decided to
    be right. few: what tells more about a class of few images; "": nothing. is_chosen: whether the best epoch was
    chosen by these images. is_ordered: whether the page says elsewhere what accuracy to expect, by more than these
    images."""
    num_right, total = int(found.is_right.sum()), len(found)
    expect = (
        f" For new images like these, expect {interval_words(num_right, total)} (95 % interval)"
        f"{'.' if is_held_out else ', if the net was not trained on them.'}"
        f"{' The best epoch was chosen by these images: new ones may do a little worse.' if is_chosen else ''}"
    )
    said = [(
        f"{num_right:,} of {count_noun(total, 'validation image' if is_held_out else 'image')} "
        f"{'is' if num_right == 1 else 'are'} predicted correctly: {percent(num_right / total, 1)}."
        f"{'' if is_ordered else expect}",
        "classes",
    )]  # fmt: skip
    if uneven := uneven_sentence(found.target, found.is_right, found.labels):
        said.append((uneven, "classes"))
    if found.is_known is not None and (number := int((~found.is_known).sum())):
        are = f"of {total:,} images is" if number == 1 else f"of {total:,} images are"
        words = _without(found, ~found.is_known)
        new = interval_words(number, len(found))
        text = f"{number:,} {are} {UNLIKE} ({new} of new images like these): {words}."
        said.append((text, "unlike"))
    mean = float(np.mean(found.confidence))
    if abs(gap := num_right / total - mean) > UNSURE:
        more, how = ("less", "; longer training usually makes it surer") if gap > 0 else ("more", "")
        said.append((f"The net is {more} sure than it should be: the mean probability of its predictions is "
                     f"{percent(mean, 0)}, and {percent(num_right / total, 0)} of them are right{how}.",
                     "calibration"))  # fmt: skip
    rated = [row for row in table if row.accuracy is not None]
    if len(rated) > 1 and (worst := rated[0]).accuracy is not None and worst.accuracy < 1:
        num = worst.num_images
        num_same = sum((row.accuracy, row.num_images) == (worst.accuracy, num) for row in rated) - 1
        others, each = (f" and {count_noun(num_same, 'other')} are", " each") if num_same else (" is", "")
        share = f"{percent(worst.accuracy, 0)} of {count_noun(num, 'image')}{each}"
        text = f"{worst.label}{others} recognised worst: {share} ({interval_words(worst.accuracy * num, num)})."
        if num < FEW:
            text += f" So few say little about a class: take more photographs{f'; {few}' if few else ''}."
        said.append((text, "classes"))
    if pairs and pairs[0][2] > 1:  # of single mistakes, none is frequent
        true, taken, count, _ = pairs[0]
        num_same = sum(pair[2] == count for pair in pairs) - 1
        others = f", as often as {count_noun(num_same, 'other pair')}" if num_same else ""
        said.append((f"{true} is most often taken for {taken}: {count_noun(count, 'image')}{others}.", "confusion"))
    if inaccurate:
        said.append((f"The net is {inaccurate}.", "mistakes"))
    elif num_wrong:
        are = "is" if num_wrong == 1 else "are"
        text = f"{count_noun(num_wrong, 'image')} {are} predicted as another class than the label says"
        if num_decided == num_wrong:
            text += f". {how_to_look(num_wrong, num_decided)}"
        elif num_decided:
            text += f". Of {num_decided:,}, you have decided that the label is right: look for wrong labels among the "
            text += "others."
        else:
            text += ": is its label right?" if num_wrong == 1 else ": look for wrong labels among them."
        said.append((text, "mistakes"))
    return said


def how_to_look(num_wrong: int, num_decided: int) -> str:
    """Return what images are whose prediction is another class than the label, as for sentences."""
    if num_decided == num_wrong:
        those = "its label is right: it is a mistake" if num_wrong == 1 else "their labels are right: they are mistakes"
        return f"You have decided that {those} of the net."
    if num_wrong == 1:
        return "It is a mistake of the net or a wrong label: look at it before you relabel it."
    text = "Some are mistakes of the net, others are wrong labels: look at an image before you relabel it."
    last = "which comes last" if num_decided == 1 else "which come last"
    return text + (f" Of {num_decided:,}, {last}, you have decided that the label is right." if num_decided else "")


def listed_sentence(number: int, num_decided: int, total: str) -> str:
    """Return what the list of doubtful labels holds. number: of images in it. num_decided: as for sentences. total: all
    images, "800 images"."""
    if not number:
        return f"The net predicts the label of each of {total}."
    order = ", most doubtful first" if number > 1 else ""
    return (
        f"{FILE_OF_REPORT} lists the {number:,} of {total} whose prediction differs from the label{order}. "
        f"{how_to_look(number, num_decided)}"
    )


def training_sentence(run: Run) -> str:
    """Return that the training has not ended, that nothing was trained, or what it means that no epoch was
    better than the start; "" if none of these holds."""
    if run.state != "finished":
        of_all = f"{run.epochs:,} of {count_noun(run.max_epochs, 'epoch')}" if run.max_epochs else ""
        done = of_all or count_noun(run.epochs, "epoch")
        line = shell_line("train", [quoted(f"resume={short_path(run.folder)}")])
        more = f"To continue it: `{line}`." if run.state == "interrupted" else "It is still running."
        return f"The training has not ended: this page shows what it had reached after {done}. {more}"
    if least_min := run.summary.get("least_budget_min"):
        return untrained_sentence(run.folder, run.summary.get("start") or START, least_min)
    if run.best_epoch != 0 or not max(run.metrics["epoch"], default=0):
        return ""
    return (
        "More training did not help: no epoch made the net better than it was before. The net from before the first "
        "epoch is the one that was kept, so nothing is lost."
    )


def next_steps(run: Run) -> list[tuple[str, str]]:
    """Return what can be done with the best net of a run, as (words, line to type); [] if it has none."""
    if not CheckpointStore.of_run(run.folder).best.is_file():
        return []
    option, has_several = quoted(f"checkpoint={short_path(run.folder)}"), run.options.get("data.labels") == "several"
    steps = classify([option], None if has_several else run.folder)
    if not has_several:
        line = shell_line("predict", [option, "images=FOLDER", "label_next=50", "out=next.html"])
        steps.append(("Find what to label next", line))
    return [
        *steps,
        ("Use the net elsewhere; add format=html for one page that needs no network", shell_line("export", [option])),
    ]


def classify(net: Sequence[str], path: Path | None) -> list[tuple[str, str]]:
    """Return how other images are classified, as (words, line to type). net: the options that name it; [] if none do.
    path: its run folder or checkpoint, if it can still learn what its training images are like."""
    if not net:
        return []
    line = shell_line("predict", [*net, "images=FOLDER", "out=classes.html"])
    if path is None or known_file(path).exists():
        return [("Classify other images", line)]
    return [
        (f"Let this net tell which images are {UNLIKE}, and show none of the classes", shell_line("features", [*net])),
        ("Classify other images", line),
    ]


def copies_sentence(found: Predictions, rows: np.ndarray) -> str:
    """Return a sentence about the images of which a near-copy was not evaluated. rows: bool (N,)."""
    if not (number := int(rows.sum())):
        return "No evaluated image is a near-copy of a training image."
    are = "images is a near-copy" if number == 1 else "images are near-copies"
    return f"{number:,} of {len(found):,} {are} of training images: {_without(found, rows)}."


def _without(found: Predictions, rows: np.ndarray) -> str:
    """Return the accuracy without and with some of the images, in words. rows: bool (N,)."""
    rest = found.is_right[~rows]
    return without_words((int(rest.sum()), int(found.is_right.sum())), (len(rest), len(found)))
