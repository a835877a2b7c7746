"""The title, the key figures and the facts of a run, as its page and the terminal show them."""

import math
import re
from pathlib import Path

from imagenet_ddp.config.figures import START, TOP1, TOP5, figure_of
from imagenet_ddp.curation.accuracies import share_words
from imagenet_ddp.curation.interval import interval_words
from imagenet_ddp.report.predictions import Predictions
from imagenet_ddp.report.run_folders import Run
from imagenet_ddp.system.text import count_noun, duration, percent

MANY_CLASSES = 20  # from which on the top-5 accuracy says something: with fewer, it is near 100 % for most nets
LONG = ("Command", "Checkpoint", "Versions", "Commit")  # facts that take a line of their own


def page_title(run: Run) -> str:
    """Return the title, such as "resnet18 on stl10", or "resnet18 on photos" for a folder of photographs."""
    options, data = run.options, run.summary.get("data") or {}
    name = data.get("name") or options.get("data._target_") or options.get("data.name") or "images"
    folder = data.get("folder") or Path(str(options.get("data.root") or "")).name
    model = options.get("model._target_") or options.get("model.name") or "A net"
    return f"{model} on {folder if folder and name == 'imagefolder' else f'{name} {folder}'.rstrip()}"


def key_figures(run: Run, found: Predictions | None) -> list[tuple[str, str, str]]:
    """Return the key figures at the head of the page, as (name, value, note)."""
    shown = []
    if run.best is not None:
        number, epoch = run.summary.get("num_val_images"), run.best_epoch
        at = "" if epoch is None else f"epoch {epoch}"
        if epoch == 0:
            at = f"{'the start: ' if run.is_trained else ''}{run.summary.get('start') or START}"

        def note(metric: str, value: float) -> str:
            is_counted = metric in (TOP1.name, TOP5.name) and isinstance(number, int)
            words = interval_words(value * number, number) if is_counted and number else ""
            images = count_noun(number, "validation image") if is_counted and number else ""
            return ", ".join(filter(None, (words, images, at)))

        value = run.score.text(run.best)
        if run.score == TOP1 and run.best == 1 and isinstance(number, int):
            value = share_words(number, number)
        shown.append((f"{'best ' if run.is_trained else ''}{run.score.title}", value, note(run.score.name, run.best)))
        for name, value in run.at_best.items():
            is_given = name == TOP5.name and (run.summary.get("num_classes") or MANY_CLASSES) < MANY_CLASSES
            if (figure := figure_of(name)).is_share and figure != run.score and not is_given:
                shown.append((figure.title, figure.text(value), note(name, value)))
    elif found is not None and len(found):
        num_right = int(found.is_right.sum())
        words = f"{interval_words(num_right, len(found))}, {count_noun(len(found), 'image')}"
        shown.append(("top-1", share_words(num_right, len(found), 2), words))
        if (num := found.top.shape[1]) < len(found.classes) >= MANY_CLASSES:
            is_among = (found.top == found.target[:, None]).any(axis=1)
            words = interval_words(int(is_among.sum()), len(found))
            shown.append((f"top-{num}", percent(float(is_among.mean())), words))
    if run.train_s is not None and run.is_trained:
        done, most = run.epochs, run.max_epochs
        trained = f"{done} of {count_noun(most, 'epoch')}" if most else count_noun(done or 0, "epoch")
        if (last := max(run.metrics["epoch"], default=0)) > done:
            trained += f", and a part of epoch {math.ceil(last)}"
        if run.best_epoch == 0 and last:
            trained += ", none better than the start"
        shown.append(("training time", duration(run.train_s), trained))
    return shown


def with_words(name: str) -> str:
    """Return the name of a figure with words before an abbreviation, for a person who trains for the first time."""
    found = re.search(r"top-(\d+)", name)
    if found is None:
        return name
    words = "accuracy" if found[1] == "1" else f"right class among the first {found[1]}"
    return f"{words} ({name})"


def further_facts(run: Run, found: Predictions | None) -> list[tuple[str, str]]:
    """Return the facts shown below the key figures on the page, as (name, text) pairs."""
    summary, options = run.summary, run.options
    rate, reference = options.get("optim.lr") if run.is_trained else None, options.get("optim.reference_batch")
    if rate and reference and options.get("optim.scaling") != "none":  # the curve shows the scaled rate
        rate = f"{rate} per {reference} images"
    numbers = {key: f"{value:,}" for key, value in summary.items() if isinstance(value, int)}
    splits = (("num_train_images", "training"), ("num_val_images", "validation"))
    counts = [f"{numbers[key]} {name}" for key, name in splits if key in numbers]
    wait = summary.get("data_wait_frac")
    rows = {
        "State": run.state if run.state != "finished" else "",
        "Command": summary.get("command"),
        "Finished": (summary.get("finished_at") or "").replace("T", " "),
        "Hardware": summary.get("hardware"),
        "Images": f"{' + '.join(counts)} images of {numbers.get('num_classes')} classes" if counts else "",
        "Image size": f"{options.get('data.image_size')} pixels",
        "Optimizer": f"{options.get('optim.name')}, lr {rate}" if rate else "",
        "Batch": f"{numbers['global_batch_size']} images" if "global_batch_size" in numbers and run.is_trained else "",
        "Precision": summary.get("precision"),
        "Parameters": numbers.get("num_parameters"),
        "Seed": options.get("seed"),
        "Speed": f"{run.images_per_s:,.0f} images/s" if run.images_per_s else "",
        "Waiting for the loader": "" if wait is None else f"{percent(wait, 0)} of the training steps' time",
        "Checkpoint": found.model if found is not None else "",
        "Versions": ", ".join(f"{name} {version}" for name, version in summary.get("versions", {}).items()),
        "Commit": summary.get("git_commit"),
    }
    return [(name, str(text)) for name, text in rows.items() if text not in (None, "")]
