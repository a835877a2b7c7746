"""Predict the top classes of each image: python -m imagenet_ddp.predict checkpoint=PATH images=FILE|FOLDER|PATTERN.

Exit codes: 0 on success, even if some files cannot be read (their rows contain the error); 1 after a failure, or if no
image can be read; 2 for a refused command; 128 + n after signal n.
"""

import io
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from imagenet_ddp.cli import command
from imagenet_ddp.config.figures import UNLIKE, UNSURE
from imagenet_ddp.config.schema.predict import PredictConfig
from imagenet_ddp.curation.decision_lists import require_carried_out, require_readable
from imagenet_ddp.data.sources.walk import describe_left_out, find_images, list_folder
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch.stored_config import resolved_config
from imagenet_ddp.mistakes import Mistake, setting
from imagenet_ddp.runs.disk_errors import disk_errors_as_run_error
from imagenet_ddp.system.console import Progress, print_message
from imagenet_ddp.system.cpu_cores import num_cores
from imagenet_ddp.system.files import atomic_path
from imagenet_ddp.system.table_files import MOST_ROWS, WriteRow, csv_rows, format_of, xlsx_rows
from imagenet_ddp.system.text import count_noun, printable, shorten_list
from imagenet_ddp.use.open_predictor import open_predictor
from imagenet_ddp.use.prediction_words import in_words, sure_classes

if TYPE_CHECKING:
    from imagenet_ddp.use.candidates import Candidates, Chosen
    from imagenet_ddp.use.predictor import Predictor, Result

Write = Callable[[str, "Result"], None]  # writes the prediction for the image of a path

# Images per batch at their original size: a 12-megapixel image takes 36 MB, and the same again as part of the batch.
MOST_WHOLE = 4
MOST_NAMED = 20  # classes in a message
MOST_WIDTH = 60  # columns for the path in such a line


def main() -> None:
    with command.run_command("predict"):
        request = command.request("predict")
        paths = find_images(request.config.images)  # before the checkpoint is read, which takes seconds
        kind = format_of(request.config.format, request.config.out)
        if request.config.out:
            require_carried_out(Path(request.config.out))
            if request.config.label_next and kind in ("csv", "xlsx"):
                require_readable(Path(request.config.out))
        if kind == "xlsx" and len(paths) > MOST_ROWS:
            what = f"an Excel sheet must have at most {MOST_ROWS:,} rows, but there are {len(paths):,} images"
            raise ConfigError(Mistake(what, ("out",), (setting("out=FILE.csv"),)))
        config = resolved_config(request, os.environ, PredictConfig)
        counts = _predict(config, paths)
    where = f" to {config.out}" if config.out else ""
    chosen = "" if counts.chosen is None else f"{counts.chosen}{where}, of "
    doubtful = "" if counts.unknown is None else f", {counts.unknown} {UNLIKE}"
    doubtful += f", {counts.unsure} {UNSURE}" if counts.unsure else ""
    counted = f"{count_noun(len(paths), 'image')}{'' if chosen else where}"
    print_message(f"{chosen}{counted}, {counts.unreadable} unreadable{doubtful}")
    if config.out and counts.of_label and counts.chosen is None:
        most = [f"{label} {number:,}" for label, number in counts.of_label.most_common()]
        print_message(f"Predicted: {printable(shorten_list(most, MOST_NAMED))}")
    if _is_for_people(config):
        print_message(
            "Hint: set out=classes.csv for a table with the probabilities, out=classes.html for the pictures."
        )
    if counts.first_unreadable and not _is_for_people(config):  # whose lines have said it
        more = f" Nor can {count_noun(counts.unreadable - 1, 'other')}." if counts.unreadable > 1 else ""
        print_message(f"{printable(counts.first_unreadable)}{more}")
    if Path(config.images).is_dir() and (words := describe_left_out(list_folder(Path(config.images))[1])):
        print_message(f"In {config.images}, {words}.")
    for line in counts.lines:
        print_message(printable(line))
    if counts.unreadable == len(paths):
        sys.exit(1)


@dataclass
class Counts:
    """Numbers of images. unknown: None without a reference. unsure: of those that are known, without a class that is
    more likely than not. chosen: to label next; None without label_next. lines: to print at the end about those.
    of_label: of all others, by their predicted class. If images have several labels, unsure and of_label are empty.
    first_unreadable: a sentence on the first image that cannot be read."""

    unreadable: int = 0
    unknown: int | None = None
    unsure: int = 0
    chosen: int | None = None
    lines: Sequence[str] = ()
    of_label: Counter[str] = field(default_factory=Counter[str])
    first_unreadable: str = ""

    def add(self, path: str, result: "Result", labels: Sequence[str], *, has_several: bool) -> None:
        if result.reason:
            self.unreadable += 1
            self.first_unreadable = self.first_unreadable or f"{path} cannot be read: {result.reason.rstrip('.')}."
        elif result.is_known is False:
            self.unknown = (self.unknown or 0) + 1
        elif not has_several:
            sure = sure_classes(result, has_several=False)
            self.unsure += not sure
            self.of_label.update(labels[index] for index in sure)


def _predict(config: PredictConfig, paths: list[str]) -> Counts:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may not be UTF-8
    predictor = open_predictor(config, keep_features=config.label_next is not None)
    from imagenet_ddp.use.candidates import Candidates, about, next_step
    from imagenet_ddp.use.prediction_page import predictions_page
    from imagenet_ddp.use.predictor import read_in_order

    has_several, of_page, reasons, tail = config.data.labels == "several", dict[str, Any](), None, ""
    top_k = min(max(config.top_k, 1 if config.label_next is None else 2), len(predictor.classes))
    batch_size, option = config.data.val_batch_size or config.data.batch_size, config.data.num_workers
    num_threads = option if isinstance(option, int) and option else num_cores()
    if predictor.reads_whole:
        batch_size = min(batch_size, MOST_WHOLE)
    counts, rest = Counts(unknown=None if predictor.threshold is None else 0), iter(paths)
    disk_errors = disk_errors_as_run_error(Path(config.out)) if config.out else nullcontext()
    with disk_errors, ExitStack() as stack:
        batches = stack.enter_context(closing(read_in_order(predictor.read, paths, batch_size, num_threads)))
        output = _open_output(config, stack)
        candidates = Candidates(predictor) if config.label_next is not None else None
        if candidates is not None:
            write = candidates.add
        elif _is_for_people(config):
            write = _lines(predictor, paths, has_several=has_several)
        elif output.kind == "html":
            write = of_page.__setitem__
        else:
            write = _writer(output, predictor, top_k)
        progress = Progress("predict", len(paths), "images") if config.out else None
        if progress is not None:
            stack.enter_context(closing(progress))
        for images in batches:
            results = predictor.predict(images, top_k)
            for result, path in zip(results, rest, strict=False):
                counts.add(path, result, predictor.labels, has_several=has_several)
                write(path, result)
            if progress is not None:
                progress.add(len(images))
        if candidates is not None and config.label_next is not None:
            chosen = candidates.choose(config.label_next)
            said = about(chosen, len(paths) - counts.unreadable, counts.unknown or 0, config)
            if output.kind == "html":
                of_page, reasons = {each.path: each.result for each in chosen}, [each.why for each in chosen]
                tail = " ".join(said)
            else:
                _write_chosen(candidates, chosen, output)
            counts.chosen, counts.lines = len(chosen), [*said, *next_step(chosen, config)]
        if output.kind == "html":
            page = predictions_page(predictor, config, of_page, reasons, tail, has_several=has_several)
            output.stream.write(page.decode())
    return counts


@dataclass(frozen=True)
class Output:
    """Where the results are written. kind: result of format_of. write_row: None for jsonl and html. is_text: numbers
    are written as text. path: of the file; None for a stream such as standard output."""

    kind: str
    write_row: WriteRow | None
    stream: IO[str]
    is_text: bool
    path: Path | None

    def number(self, value: float) -> Any:
        return f"{value:.6f}" if self.is_text else round(value, 6)


def _open_output(config: PredictConfig, stack: ExitStack) -> Output:
    """Open out=, or standard output. The stack closes the file."""
    out, kind, path = Path(config.out or ""), format_of(config.format, config.out), None
    if config.out and not out.is_symlink() and (out.is_file() or not out.exists()):  # no device, pipe or /dev/stdout
        out.parent.mkdir(parents=True, exist_ok=True)
        out, path = stack.enter_context(atomic_path(out)), out
    if kind == "xlsx":
        return Output(kind, stack.enter_context(xlsx_rows(out)), sys.stdout, False, path)
    stream: IO[str] = sys.stdout
    if config.out:
        stream = stack.enter_context(out.open("w", newline="", encoding="utf-8", errors="backslashreplace"))
    if kind in ("jsonl", "html"):
        return Output(kind, None, stream, False, path)
    return Output(kind, csv_rows(stream, config.csv_delimiter, has_bom=path is not None), stream, True, path)


def _write_chosen(candidates: "Candidates", chosen: Sequence["Chosen"], output: Output) -> None:
    """Write the images to label next, and, beside a file, a sheet with their pictures."""
    from imagenet_ddp.use.candidates import HEADER

    rows = [
        (rank, each.path, each.suggested, output.number(each.result.top[0][1]), each.why, "")
        for rank, each in enumerate(chosen, 1)
    ]
    if output.write_row is None:
        for row in rows:
            _write_json(output.stream, dict(zip(HEADER, row, strict=True)))
    else:
        for row in (HEADER, *rows):
            output.write_row(row)
    if output.path is not None:
        sheet = output.path.with_name(f"{output.path.stem}_sheet.png")
        if candidates.write_sheet(sheet, chosen):
            print_message(f"Pictures of the images to label next: {printable(str(sheet))}")


def _is_for_people(config: PredictConfig) -> bool:
    """Return whether a person reads the predictions on a terminal, not a program."""
    return not (config.out or config.label_next) and config.format == "auto" and sys.stdout.isatty()


def _lines(predictor: "Predictor", paths: list[str], *, has_several: bool) -> Write:
    """Return the function that prints a line of words for each image. has_several: labels per image."""
    width = min(max(len(printable(path)) for path in paths), MOST_WIDTH)

    def write(path: str, result: "Result") -> None:
        words = in_words(result, predictor.labels, has_several=has_several)
        print_message(f"{printable(path):{width}}  {printable(words)}", sys.stdout)

    return write


def _writer(output: Output, predictor: "Predictor", top_k: int) -> Write:
    if output.write_row is None:
        return _json_lines(output.stream, predictor)
    return _table(output, output.write_row, predictor, top_k)


def _table(output: Output, write_row: WriteRow, predictor: "Predictor", top_k: int) -> Write:
    """Write the header path, class_1, probability_1, ..., error, and return the function that writes the rows. Classes
    are written as labels."""
    columns = [f"{what}_{rank}" for rank in range(1, top_k + 1) for what in ("class", "probability")]
    has_known = predictor.threshold is not None
    write_row(["path", *columns, *["known", "familiarity"] * has_known, "error"])

    def write(path: str, result: "Result") -> None:
        cells = [cell for index, share in result.top for cell in (predictor.labels[index], output.number(share))]
        cells += [""] * (2 * top_k - len(cells))
        if result.familiarity is not None:
            cells += ["yes" if result.is_known else "no", output.number(result.familiarity)]
        elif has_known:
            cells += ["", ""]
        write_row([path, *cells, result.reason])

    return write


def _json_lines(stream: IO[str], predictor: "Predictor") -> Write:
    """Return a function that writes one JSON object per line: path, classes (class, label, probability), known and
    familiarity if there is a reference, and error, which is null if the image was read."""
    has_known = predictor.threshold is not None

    def write(path: str, result: "Result") -> None:
        rows = [
            {"class": predictor.classes[index], "label": predictor.labels[index], "probability": round(share, 6)}
            for index, share in result.top
        ]
        score = result.familiarity
        found = {"known": result.is_known, "familiarity": None if score is None else round(score, 6)}
        entry = {"path": path, "classes": rows, **(found if has_known else {}), "error": result.reason or None}
        _write_json(stream, entry)

    return write


def _write_json(stream: IO[str], entry: Mapping[str, Any]) -> None:
    line = json.dumps(entry, ensure_ascii=False)
    stream.write((printable(line) if stream.isatty() else line) + "\n")


if __name__ == "__main__":
    main()
