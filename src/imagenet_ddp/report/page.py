"""Make the page of one run, or of one evaluation, as a single HTML file from the template page.html. A run without
predictions is evaluated first."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_ddp.config.keys import leaves
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.report import analysis, evaluation, facts
from imagenet_ddp.report.evaluation import Predictions
from imagenet_ddp.report.run import MARKER, RUN_FILES, NotARunError, Run, read_run
from imagenet_ddp.runs import plots
from imagenet_ddp.system.files import describe_path
from imagenet_ddp.system.process import import_torch
from imagenet_ddp.system.text import count_noun, first_line, format_loss, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = "report.html"
NUM_THUMBNAILS = 60  # per gallery
NUM_MAPS = 24
NUM_PAIRS = 20
MIN_TOP1 = 0.6  # of a net whose disagreement with a label says something about the label


@dataclass(frozen=True)
class Page:
    summary: list[str]  # lines to print
    files: dict[str, bytes]


@dataclass
class Pictures:
    """Thumbnails and maps of the images; empty if the data is not available."""

    thumbnails: dict[int, str] = field(default_factory=dict)  # row of the predictions -> data URI
    maps: dict[int, str] = field(default_factory=dict)
    reason: str = ""  # why there are no pictures
    reason_maps: str = ""  # why there are no class activation maps


def is_run_or_evaluation(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (*RUN_FILES, "evaluation.json"))


def make_page(folder: Path, *, maps: bool) -> Page:
    """Make the page of a run or an evaluation. Raises ConfigError if the folder is neither."""
    name = str(folder if folder.name.strip(".") else folder.resolve())
    if (folder / "evaluation.json").is_file() and not (folder / "metrics.csv").exists():
        return build(name, None, evaluation.read(folder), maps=maps)
    try:
        run = read_run(folder)
    except NotARunError as reason:
        raise ConfigError(
            f"{folder} must be a run folder, but has {reason}. Hint: pass runs/<name>/<time>, or a folder above it."
        ) from reason
    found, missing = evaluation.of_run(folder, is_running=run.state == "running")
    return build(name, run, found, missing, maps=maps)


def build(name: str, run: Run | None, found: Predictions | None, reason: str = "", *, maps: bool = True) -> Page:
    """Return the page of a run or an evaluation.

    name: name of the folder. run: None if there is only an evaluation. found: the predictions; None if there are none.
    They may come from an older evaluation; in both cases, reason explains why there is no current evaluation. maps:
    draw class activation maps.
    """
    is_held_out = run is not None  # an evaluation without its run may have used training images
    if run is None:
        assert found is not None
        title = facts.title(leaves(evaluation.config_of(found.folder)), {})
        run = Run(found.folder, "finished", None, {"epoch": np.empty(0)}, found.evaluation)
    else:
        title = facts.title(run.options or {}, run.summary)
    figures = facts.figures(run, found)
    lines = [title, *(f"{each.name} {each.value}{f' ({each.note})' if each.note else ''}" for each in figures)]
    lines += [f"Incomplete: {'; '.join(run.problems)}."] if run.problems else []
    context: dict[str, Any] = {
        "marker": MARKER, "name": name, "title": title, "reason": reason, "found": found, "figures": figures,
        "facts": facts.facts(run, found), "long_facts": facts.LONG, "problems": run.problems,
        "curves": _uri(plots.curves(run.metrics, title)) if len(run.metrics["epoch"]) else None,
        "time": facts.time_spent(run),
    }  # fmt: skip
    if found is None or not len(found):
        return Page([*lines, reason] if reason else lines, {PAGE: render(context)})
    wrong_labels = analysis.likely_wrong(found)
    top1 = float(found.is_right.mean())
    inaccurate = f"too inaccurate (top-1 {percent(top1)}) to judge labels" if top1 < MIN_TOP1 else ""
    by_loss = np.argsort(np.where(found.is_right | (found.prediction < 0), -np.inf, found.loss))[::-1]
    worst: list[int] = by_loss[: min(NUM_THUMBNAILS, len(wrong_labels.rows))].tolist()
    num_classified = int((found.prediction >= 0).sum())
    margin = found.confidence - (found.top_probability[:, 1] if found.top.shape[1] > 1 else 0)
    doubtful: list[int] = np.argsort(margin, kind="stable")[
        : min(NUM_THUMBNAILS, num_classified)
    ].tolist()  # NaN is last
    suspects: list[int] = wrong_labels.rows[:NUM_THUMBNAILS].tolist()
    pictures = read_pictures(found, [*worst, *doubtful, *suspects], worst[:NUM_MAPS] if maps else [])
    item = partial(_item, found, pictures)
    bins = analysis.calibration_bins(found.confidence, found.is_right)
    table = analysis.class_rows(found.target, found.prediction, found.classes, found.labels)
    pairs = analysis.pairs(found.target, found.prediction, len(found.classes))[:NUM_PAIRS].tolist()
    context |= {
        "pictures": pictures,
        "is_held_out": is_held_out,
        "num_unreadable": found.evaluation["num_val_images_unreadable"],
        "checkpoint": Path(found.model).name,
        "classes": sorted(table, key=lambda row: (row.accuracy is None, row.accuracy)),
        "pairs": [(found.labels[true], found.labels[taken], count, count / table[true].num_images)
                  for true, taken, count in pairs],
        "matrix": analysis.matrix(found.target, found.prediction, found.labels),
        "worst": [item(row) for row in worst],
        "doubtful": [item(row) for row in doubtful],
        "maps": [{**item(row), "uri": pictures.maps[row]} for row in worst[:NUM_MAPS] if row in pictures.maps],
        "wants_maps": maps,
        "wrong_labels": wrong_labels,
        "suspects": [item(row) for row in suspects],
        "csv_name": analysis.LABELS_FILE,
        "diagram": _uri(analysis.calibration_figure(bins)),
        "calibration": {"ece": analysis.calibration_error(bins), **found.evaluation.get("calibration", {})},
        "num_wrong": int((~found.is_right).sum()),
        "inaccurate": inaccurate,
    }  # fmt: skip
    num_likely_wrong = int(wrong_labels.is_confident.sum())
    counted = f"{num_likely_wrong:,} of {len(found):,} labels look wrong; they include mistakes of the net"
    lines.append(f"the net is {inaccurate}" if inaccurate else counted)
    lines += [text for text in (reason, pictures.reason, pictures.reason_maps) if text]
    return Page(lines, {PAGE: render(context), analysis.LABELS_FILE: wrong_labels.as_csv(found)})


def _uri(figure: "Figure") -> str:
    return f"data:image/png;base64,{base64.b64encode(plots.png(figure)).decode()}"


def _item(found: Predictions, pictures: Pictures, row: int) -> dict[str, Any]:
    return {
        "uri": pictures.thumbnails.get(row),
        "path": found.paths[row],
        "label": found.labels[found.target[row]],
        "label_probability": float(found.target_probability[row]),
        "guesses": [(found.labels[each], float(probability))
                    for each, probability in zip(found.top[row], found.top_probability[row], strict=True)][:2],
        "loss": float(found.loss[row]),
        "is_right": bool(found.is_right[row]),
    }  # fmt: skip


def read_pictures(found: Predictions, rows: Sequence[int], for_maps: Sequence[int]) -> Pictures:
    """Read thumbnails of the images in `rows`, and class activation maps of those in `for_maps`. The
    reasons in the result explain what is not available."""
    with import_torch():
        from imagenet_ddp.data.decode import UnreadableImage
        from imagenet_ddp.report.example_images import EvaluatedImages
    pictures = Pictures()
    try:
        images = EvaluatedImages(found)
        pictures.thumbnails = images.thumbnails(rows)
    except KeyError as error:  # an older or newer version of this program wrote the folder
        pictures.reason = f"config.yaml of the evaluation has no {error}."
        return pictures
    except (ConfigError, RunError, OSError) as error:
        pictures.reason = first_line(error)
        if isinstance(error, OSError) and error.filename:
            pictures.reason = f"{describe_path(Path(error.filename))} cannot be read: {error.strerror}."
        return pictures
    if for_maps:
        try:
            pictures.maps = images.activation_maps(for_maps)
        except (ConfigError, RunError, RuntimeError, OSError, UnreadableImage) as error:
            pictures.reason_maps = first_line(error)
    return pictures


def render(context: Mapping[str, Any]) -> bytes:
    """Return the page as HTML in UTF-8. Every value is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"percent": percent, "count_noun": count_noun, "format_loss": format_loss}
    # file names may contain bytes that are not valid text
    return environment.get_template("page.html").render(context).encode(errors="backslashreplace")
