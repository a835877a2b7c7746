"""Make the page of one run, or of one evaluation, as a single HTML file from the template page.html. A run without
predictions is evaluated first."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_ddp.cli.overrides import quoted
from imagenet_ddp.cli.photograph_lines import check_line
from imagenet_ddp.config.section import leaves
from imagenet_ddp.curation.accuracies import TITLE, uneven_sentence
from imagenet_ddp.curation.decision_lists import DECISIONS, require_readable
from imagenet_ddp.curation.wrong_labels import FILE_OF_REPORT
from imagenet_ddp.pages.render import render, way_from
from imagenet_ddp.report import error_analysis, predictions
from imagenet_ddp.report.decision_threshold import thresholds
from imagenet_ddp.report.facts import LONG, further_facts, key_figures, page_title, with_words
from imagenet_ddp.report.findings import how_to_look, listed_sentence, next_steps, sentences, training_sentence
from imagenet_ddp.report.predictions import Predictions
from imagenet_ddp.report.run_folders import MARKER, Run, read_run
from imagenet_ddp.runs import plots
from imagenet_ddp.runs.result_files import read_config
from imagenet_ddp.system.process import import_torch
from imagenet_ddp.system.text import alphabetical, count_noun, percent, shorten_list

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from imagenet_ddp.report.pictures import Pictures

PAGE = "report.html"
TEMPLATE = Path(__file__).with_name("page.html")
NUM_THUMBNAILS = 60  # per gallery
NUM_MAPS = 24
NUM_PAIRS = 20
LEAST_SURE = 6  # number of images that are shown if none is doubtful
DOUBTFUL = 0.5  # probability of the second class as a share of that of the first, from which an image is doubtful
MIN_TOP1 = 0.6  # of a net whose disagreement with a label says something about the label
USUAL_NET = {
    "model.library": "torchvision",
    "model.name": "resnet18",
    "model.weights": "DEFAULT",
}  # of experiment=own_photos


@dataclass(frozen=True)
class Page:
    summary: list[str]  # lines to print
    files: dict[str, bytes]
    is_incomplete: bool = False  # because an evaluation failed
    have_changed: bool = False  # the images, since they were evaluated


def make_page(
    folder: Path, out: Path, *, maps: bool, delimiter: str = "comma", near_copies: Path | None = None
) -> Page | None:
    """Return the page of a run or an evaluation; None if the folder is neither. out, near_copies: as for build."""
    name = str(folder if folder.name.strip(".") else folder.resolve())
    if run := read_run(folder):
        make = partial(build, name, run, out=out, maps=maps, delimiter=delimiter, near_copies=near_copies)
        found, missing, failed = predictions.of_run(run)
        page = make(found, missing)
        if page.have_changed and not failed:  # such as by prepare=relabel
            found, missing, failed = predictions.of_run(run, have_changed=True)
            page = make(found, missing)
        return replace(page, is_incomplete=failed)
    is_evaluation = (folder / "evaluation.json").is_file()
    if not is_evaluation:
        return None
    found = predictions.read(folder)
    return build(name, None, found, out=out, maps=maps, delimiter=delimiter, near_copies=near_copies)


def build(
    name: str,
    run: Run | None,
    found: Predictions | None,
    reason: str = "",
    *,
    out: Path = Path(),
    maps: bool = True,
    delimiter: str = "comma",
    near_copies: Path | None = None,
) -> Page:
    """Return the page of a run or an evaluation.

    name: name of the folder. run: None if there is only an evaluation. found: the predictions; None if there are none.
    They may come from an older evaluation; in both cases, reason explains why there is no current evaluation. out: the
    folder of the page. maps: draw class activation maps. delimiter: value of csv_delimiter. near_copies: the list of a
    check; None: that of the last pass over the images. Raises ConfigError if it is of other images.
    """
    is_held_out = run is not None  # an evaluation without its run may have used training images
    if run is None:
        assert found is not None
        options = leaves(read_config(found.folder))
        run = Run(found.folder, "finished", dict(options), {"epoch": np.empty(0)}, found.evaluation)
    if found is not None and (left_out := found.evaluation.get("left_out")):
        reason = f"{reason} {left_out}".strip()
    if run.problems:
        reason += f" Left out, because it is not what a run writes: {shorten_list(run.problems)}."
    steps = next_steps(run) if is_held_out and run.state == "finished" else []
    title, figures = page_title(run), key_figures(run, found)
    lines = [title, *(f"{name} {value}{f' ({note})' if note else ''}" for name, value, note in figures)]
    context: dict[str, Any] = {
        "marker": MARKER, "name": name, "title": title, "reason": reason, "found": found,
        "figures": [(with_words(name), value, note) for name, value, note in figures],
        "facts": further_facts(run, found), "long_facts": LONG, "is_held_out": is_held_out, "wants_maps": maps,
        "next_steps": steps,
        "curves": _curves(run.metrics, title) if len(run.metrics["epoch"]) > 1 else None, "findings": [],
        "near_copies": None, "decides": "", "expected": [], "meaning": "",
        "folder": way_from(out / PAGE, found.started_in if found else ""),
    }  # fmt: skip
    files = dict[str, bytes]()
    training = training_sentence(run)
    lines += [training]
    if found is not None and len(found):
        with import_torch():
            from imagenet_ddp.report.accuracies import accuracies_of, last_check
            from imagenet_ddp.report.label_choices import choices, decided_before
            from imagenet_ddp.report.near_copies import near_copies_of
            from imagenet_ddp.report.pictures import relabel_lines
            from imagenet_ddp.sections.section import other_classes
        check = last_check(found)
        measured, meaning = accuracies_of(found, run, check) if is_held_out else ([], "")
        judged = _what_a_check_adds(run) if is_held_out and not check and near_copies is None else ""
        few = "a check judges it by all of its photographs" if measured or judged else ""
        is_chosen = is_held_out and run.is_chosen
        file = out / FILE_OF_REPORT
        require_readable(file)
        before, is_decided = decided_before(found, file, check)
        more, verdict = _analyse(
            found, maps, judged, few, is_decided, is_held_out=is_held_out, is_chosen=is_chosen,
            is_ordered=bool(measured),
        )  # fmt: skip
        expected = [each.sentence for each in measured]
        context |= {"expected": expected, "meaning": meaning}
        lines += [f"{TITLE}:"] if expected else []
        lines += [*(f"{place}. {each}" for place, each in enumerate(expected, 1)), meaning]
        lines += [uneven_sentence(found.target, found.is_right, found.labels)]
        if copies := near_copies_of(found, near_copies, check, delimiter):
            section, said = copies
            more["findings"][1:1] = [(text, section.name if section.title else "") for text in said]
            more["near_copies"] = section if section.title else None
            files |= section.files
            lines += said
        wrong_labels, pictures = more["wrong_labels"], more["pictures"]
        is_judged = not more["inaccurate"]
        of_list, of_page = relabel_lines(found, file, out / DECISIONS) if is_judged else ("", "")
        decided = choices(found, file, of_list, before)
        relabel = of_list if len(wrong_labels.rows) else ""
        for item in (*more["worst"], *more["doubtful"], *more["unlike"]):
            classes = other_classes(item["likeliest"], found.classes, item["class"])
            item["choice"] = decided.choice(file.name, item["path"], item["class"], classes=classes)
        decides = "" if pictures.reason else of_page
        context |= {**more, "relabel": relabel, "decides": decides}
        how = f"To do what you write into its column decision: `{relabel}`" if relabel else ""
        lines += [verdict, how, reason, pictures.reason, pictures.reason_maps]
        files[file.name] = error_analysis.labels_csv(
            wrong_labels, found, delimiter, partial(decided.decided, file.name)
        )
    else:
        lines.append(reason)
    if training:
        place = 1 if run.state == "finished" else 0
        context["findings"][place:place] = [(training, "curves" if context["curves"] else "")]
    lines += [f"{words}: `{line}`" for words, line in steps]
    have_changed = "pictures" in context and context["pictures"].have_changed
    return Page([line for line in lines if line], {PAGE: render(TEMPLATE, context), **files}, have_changed=have_changed)


def _what_a_check_adds(run: Run) -> str:
    """Return a sentence about what the evaluation says nothing, or little, about."""
    options, line = run.options, "prepare=check"
    if options.get("data.name") == "imagefolder" and (root := options.get("data.root")):
        net = [quoted(f"{key}={options[key]}") for key, usual in USUAL_NET.items() if options.get(key, usual) != usual]
        line = check_line(quoted(f"data.root={root}"), *(net if options.get("model.weights") else []))
    return f"A check judges the labels of the training images, too, and by all images the accuracy to expect: `{line}`."


def _analyse(
    found: Predictions,
    maps: bool,
    judged: str,
    few: str,
    is_decided: np.ndarray,
    *,
    is_held_out: bool,
    is_chosen: bool,
    is_ordered: bool,
) -> tuple[dict[str, Any], str]:
    """Return (what page.html needs beside the facts, a sentence about the labels). judged: by whom the labels of the
    training images are. is_decided: bool (N,), whether a person has decided that the label is right. few, is_chosen,
    is_ordered: as in sentences."""
    with import_torch():
        from imagenet_ddp.report.pictures import read_pictures
    wrong_labels = error_analysis.likely_wrong(found).with_last(is_decided)
    num_decided = int(is_decided[wrong_labels.rows].sum())
    top1 = float(found.is_right.mean())
    inaccurate = f"too inaccurate (top-1 {percent(top1)}) to judge labels" if top1 < MIN_TOP1 else ""
    worst: list[int] = wrong_labels.rows[:NUM_THUMBNAILS].tolist()
    second = found.top_probability[:, 1] if found.top.shape[1] > 1 else np.zeros(len(found))
    doubts = np.where(found.prediction >= 0, second / np.maximum(found.confidence, 1e-12), 0)
    num_doubtful = int((doubts >= DOUBTFUL).sum())
    doubtful: list[int] = np.argsort(-doubts, kind="stable")[: num_doubtful or LEAST_SURE][:NUM_THUMBNAILS].tolist()
    strange = [] if found.is_known is None else np.flatnonzero(~found.is_known)
    unlike: list[int] = [*map(int, sorted(strange, key=lambda row: found.confidence[row]))]
    shown = [*worst, *doubtful, *unlike[:NUM_THUMBNAILS]]
    pictures = read_pictures(found, shown, worst[:NUM_MAPS] if maps else [])
    item = partial(_item, found, pictures)
    bins = error_analysis.calibration_bins(found.confidence, found.is_right)
    table = error_analysis.class_rows(found.target, found.prediction, found.classes, found.labels)
    matrix = error_analysis.confusion_matrix(found.target, found.prediction, len(found.classes))
    order = sorted(range(len(found.labels)), key=lambda number: alphabetical(found.labels[number]))
    pairs = _named_pairs(found, order, [row.num_images for row in table])
    # of equal accuracies, that of more images says more
    table.sort(key=lambda row: (row.accuracy is None, row.accuracy, -row.num_images, alphabetical(row.label)))
    context = {
        "pictures": pictures,
        "findings": sentences(found, table, pairs, len(wrong_labels.rows), num_decided, inaccurate, few, is_held_out,
                              is_chosen, is_ordered),
        "num_unreadable": found.evaluation["num_val_images_unreadable"],
        "checkpoint": Path(found.model).name,
        "classes": table,
        "pairs": pairs[:NUM_PAIRS],
        "matrix": None if matrix is None else matrix[np.ix_(order, order)],
        "matrix_labels": [found.labels[number] for number in order],
        "thresholds": thresholds(found),
        "worst": [item(row) for row in worst],
        "doubtful": [item(row) for row in doubtful],
        "num_doubtful": num_doubtful,
        "unlike": [item(row) for row in unlike[:NUM_THUMBNAILS]],
        "num_unlike": len(unlike),
        "maps": [{**item(row), "uri": pictures.maps[row]} for row in worst[:NUM_MAPS] if row in pictures.maps],
        "wrong_labels": wrong_labels,
        "how_to_look": how_to_look(len(wrong_labels.rows), num_decided),
        "csv_name": FILE_OF_REPORT,
        "diagram": {
            scheme: _uri(error_analysis.calibration_figure(bins, scheme))
            for scheme in ("light", "dark")
            if error_analysis.fill_diagram(bins)
        },
        "calibration": error_analysis.calibration_figures(found, bins),
        "judged": judged,
        "inaccurate": inaccurate,
    }  # fmt: skip
    total = count_noun(len(found), "validation image" if is_held_out else "image")
    listed = listed_sentence(len(wrong_labels.rows), num_decided, total)
    return context, f"The net is {inaccurate}." if inaccurate else f"{listed} {judged}".rstrip()


def _named_pairs(
    found: Predictions, order: Sequence[int], num_images: Sequence[int]
) -> list[tuple[str, str, int, float]]:
    """Return (label, label taken for it, images, share of the class) of each pair of classes that the net confuses, the
    most confused first. order: the classes as they are sorted on the page. num_images: of each class."""
    place = np.argsort(order)  # of each class in that order
    pairs = error_analysis.confused_pairs(found.target, found.prediction, len(found.classes)).tolist()
    pairs.sort(key=lambda pair: (-pair[2], place[pair[0]], place[pair[1]]))
    return [(found.labels[true], found.labels[taken], count, count / num_images[true]) for true, taken, count in pairs]


def _curves(metrics: plots.Table, title: str) -> dict[str, str]:
    """Return the curves for both colour schemes and two widths."""
    return {
        f"{'narrow_' * is_narrow}{scheme}": _uri(plots.curves(metrics, title, scheme=scheme, is_narrow=is_narrow))
        for scheme in ("light", "dark")
        for is_narrow in (False, True)
    }


def _uri(figure: "Figure") -> str:
    return f"data:image/png;base64,{base64.b64encode(plots.png(figure)).decode()}"


def _item(found: Predictions, pictures: "Pictures", row: int) -> dict[str, Any]:
    return {
        "uri": pictures.thumbnails.get(row),
        "path": found.paths[row],
        "name": found.names[row],
        "label": found.labels[found.target[row]],
        "class": found.classes[found.target[row]],
        "likeliest": [found.classes[each] for each in found.top[row].tolist()[:2]],
        "label_probability": float(found.target_probability[row]),
        "guesses": [(found.labels[each], float(probability))
                    for each, probability in zip(found.top[row], found.top_probability[row], strict=True)][:2],
        "loss": float(found.loss[row]),
        "is_right": bool(found.is_right[row]),
    }  # fmt: skip
