"""Make a page of predictions: the pictures with their classes, the doubtful ones first."""

import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_ddp.data.sources.base import Names
from imagenet_ddp.data.sources.image_files import FileImages
from imagenet_ddp.data.sources.walk import map_concurrently
from imagenet_ddp.exported.formats.check_model_file import PAGE
from imagenet_ddp.pages.render import render
from imagenet_ddp.pages.thumbnails import JUDGED_SIDE, thumbnail
from imagenet_ddp.system.text import alphabetical
from imagenet_ddp.use.prediction_words import in_words, sure_classes

if TYPE_CHECKING:
    from imagenet_ddp.use.predictor import Predictor, Result

TEMPLATE = Path(__file__).with_name("predictions.html")
MOST_PICTURES = 2000  # of a page, about 20 MB
LEAST_PICTURES = 6  # of a class


def predictions_page(
    predictor: "Predictor",
    images: str,
    found: Mapping[str, "Result"],
    *,
    has_several: bool,
) -> bytes:
    """Return the page. images: the option of that name. found: path -> result. has_several: labels per image."""
    paths, results = [*found], [*found.values()]
    doubtful, without, classes = list[int](), list[int](), defaultdict[str, list[int]](list)
    for number, result in enumerate(results):
        names = [predictor.labels[index] for index in sure_classes(result, has_several=has_several)]
        for name in names:
            classes[name].append(number)
        if not names:
            (without if result.reason else doubtful).append(number)
    rows = [("Not sure", doubtful), ("Without a class", without)]
    rows += sorted(classes.items(), key=lambda each: alphabetical(each[0]))
    rows = [(name, sorted(numbers, key=lambda number: _doubt(results[number]))) for name, numbers in rows if numbers]
    most = max(MOST_PICTURES // max(len(rows), 1), LEAST_PICTURES)
    shown = sorted({number for _, numbers in rows for number in numbers[:most]})
    folder = Path(os.path.commonpath([Path(path).parent for path in paths]))
    files = FileImages(Path(), Names.of(paths), np.zeros(len(paths), np.int64), predictor.read.reading)
    uris = dict(zip(shown, map_concurrently(lambda number: thumbnail(files, number, JUDGED_SIDE), shown), strict=True))

    def item(number: int) -> dict[str, Any]:
        path, words = paths[number], in_words(results[number], predictor.labels, has_several=has_several)
        return {"uri": uris[number], "path": path, "name": str(Path(path).relative_to(folder)), "label": words}

    return render(TEMPLATE, {
        "marker": PAGE, "title": f"Predictions for {Path(images).name or images}", "name": images,
        "net": predictor.title, "total": len(paths), "num_doubtful": len(doubtful), "num_without": len(without),
        "num_classes": len(classes), "has_known": predictor.threshold is not None, "has_several": has_several,
        "sections": [(name, len(numbers), [item(number) for number in numbers[:most]]) for name, numbers in rows],
    })  # fmt: skip


def _doubt(result: "Result") -> tuple[bool, float]:
    """Return what sorts the least sure first, and after those images that are unlike the training images."""
    return result.is_known is False, result.top[0][1] if result.top else 0.0
