"""Make a page of predictions: the pictures with their classes, the doubtful ones first, or those to label next."""

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_ddp.cli.overrides import quoted, shell_line
from imagenet_ddp.config.figures import UNLIKE, UNSURE
from imagenet_ddp.config.schema.predict import PredictConfig
from imagenet_ddp.curation.wrong_labels import REMOVE
from imagenet_ddp.data.sources.base import Names
from imagenet_ddp.data.sources.image_files import FileImages
from imagenet_ddp.data.sources.walk import map_concurrently
from imagenet_ddp.exported.formats.check_model_file import PAGE
from imagenet_ddp.pages.render import render, way_from
from imagenet_ddp.pages.thumbnails import thumbnail
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.runs.folder import is_being_trained
from imagenet_ddp.sections.section import MOST_CLASSES
from imagenet_ddp.system.files import short_path
from imagenet_ddp.system.table_files import as_text_cell, csv_line
from imagenet_ddp.system.text import alphabetical
from imagenet_ddp.use.labelling import can_label, decisions_of, relabel_line, train_again_line
from imagenet_ddp.use.prediction_words import in_words, sure_classes

if TYPE_CHECKING:
    from imagenet_ddp.use.predictor import Predictor, Result

TEMPLATE = Path(__file__).with_name("predictions.html")
MOST_PICTURES = 2000  # of a page, about 20 MB
LEAST_PICTURES = 6  # of a class
STRANGE = UNLIKE.capitalize()  # title of the part


def predictions_page(
    predictor: "Predictor",
    config: PredictConfig,
    found: Mapping[str, "Result"],
    reasons: Sequence[str] | None = None,
    tail: str = "",
    *,
    has_several: bool,
) -> bytes:
    """Return the page. found: path -> result. reasons: why each is to be labelled next, in this order; None: all images
    are there. tail: sentences about the list. has_several: labels per image."""
    paths, results, images = [*found], [*found.values()], config.images
    doubtful, strange, without, classes = list[int](), list[int](), list[int](), defaultdict[str, list[int]](list)
    for number, result in enumerate(results):
        names = [predictor.labels[index] for index in sure_classes(result, has_several=has_several)]
        for name in names:
            classes[name].append(number)
        if not names:
            (without if result.reason else strange if result.is_known is False else doubtful).append(number)
    unsure = "none of the labels" if has_several else UNSURE
    if reasons is not None:
        rows = [("Label next", [number for number in range(len(paths)) if number not in strange]), (STRANGE, strange)]
    else:
        ordered = [*sorted(classes.items(), key=lambda each: alphabetical(each[0]))]
        rows = [(unsure.capitalize(), doubtful), (STRANGE, strange), ("Without a class", without), *ordered]
        for _, numbers in rows:
            numbers.sort(key=lambda number: _doubt(results[number]))
    rows = [(name, numbers) for name, numbers in rows if numbers]
    most = max(MOST_PICTURES // max(len(rows), 1), LEAST_PICTURES)
    shown = sorted({number for _, numbers in rows for number in numbers[:most]})
    folder = Path(os.path.commonpath([Path(path).parent for path in paths])) if paths else Path()
    files = FileImages(Path(), Names.of(paths), np.zeros(len(paths), np.int64), predictor.read.reading)
    uris = dict(zip(shown, map_concurrently(lambda number: thumbnail(files, number), shown), strict=True))
    is_trainable = predictor.explain is not None  # an exported file is not
    decides = can_label(config.data) and is_trainable and bool(paths)

    def item(number: int) -> dict[str, Any]:
        path, result = paths[number], results[number]
        return {
            "uri": uris[number], "path": path, "name": str(Path(path).relative_to(folder)),
            "label": in_words(result, predictor.labels, has_several=has_several),
            "choice": _choice(predictor, path, result) if decides else None,
            # the words about a doubtful image say why
            "why": reasons[number] if reasons and sure_classes(result, has_several=has_several) else "",
        }  # fmt: skip

    what = "Predictions for" if reasons is None else "What to label next in"
    return render(TEMPLATE, {
        "marker": PAGE, "title": f"{what} {Path(images).name or images}", "name": images,
        "folder": way_from(Path(config.out) if config.out else None),
        "net": predictor.title,
        "is_being_trained": config.checkpoint is not None and is_being_trained(Path(config.checkpoint)),
        "is_next": reasons is not None, "tail": tail, "total": len(paths),
        "num_doubtful": len(doubtful), "unsure": unsure, "num_without": len(without),
        "num_strange": len(strange), "strange": STRANGE, "num_classes": len(classes),
        "has_known": predictor.threshold is not None, "has_several": has_several,
        "sections": [
            (name, len(numbers), [item(number) for number in numbers[:most]], numbers is strange)
            for name, numbers in rows
        ],
        "next_steps": _next_steps(config, paths) if decides else [],
    })  # fmt: skip


def _doubt(result: "Result") -> float:
    """Return what sorts the least sure first; of images that are unlike the training images, the least unlike."""
    if result.is_known is False:
        return -(result.familiarity or 0.0)
    return result.top[0][1] if result.top else 0.0


def _choice(predictor: "Predictor", path: str, result: "Result") -> dict[str, Any]:
    """Return what the macro `choose` shows of an image: the classes that it may get, the likeliest first."""
    is_few = len(predictor.classes) <= MOST_CLASSES and not result.reason  # a reason: it cannot be read
    every = range(len(predictor.classes) if is_few else 0)
    order = dict.fromkeys([*(index for index, _ in result.top), *every])
    words = {as_text_cell(predictor.classes[index]): f"move to {predictor.labels[index]}" for index in order}
    row, words = csv_line([path, "", "", ""]), words | {REMOVE: REMOVE}
    return {"row": row, "chosen": "", "words": words, "is_proposed": False}


def _next_steps(config: PredictConfig, paths: Sequence[str]) -> list[tuple[str, str]]:
    """Return how the net learns from these images, as (words, line to type)."""
    steps = [
        ("Choose below a picture what it shows, where the net is wrong or not sure. Download decisions.csv with the "
         "button that then appears, put it into the folder of this page, and move the images into the class folders "
         "of the training images (undo=true takes it back)",
         relabel_line(config, paths, decisions_of(config))),
    ]  # fmt: skip
    if config.checkpoint is None:
        return steps
    net = short_path(CheckpointStore.run_dir_of(Path(config.checkpoint)) or Path(config.checkpoint))
    options = [quoted(f"checkpoint={net}"), quoted(f"images={config.images}"), "label_next=50", "out=next.html"]
    steps.append(("Then train again, from this net", train_again_line(config, net)))
    if config.label_next is None:
        steps.append(("Of many images, show those that are worth labelling", shell_line("predict", options)))
    return steps
