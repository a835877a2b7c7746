"""Predict the top classes of each image: python -m imagenet_ddp.predict checkpoint=PATH images=FILE|FOLDER|PATTERN.

Exit codes: 0 on success, even if some files cannot be read (their rows contain the error); 1 after a failure; 2 for a
refused command.
"""

import io
import json
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING

from imagenet_ddp.cli import command
from imagenet_ddp.config.schema.commands import PredictConfig
from imagenet_ddp.data.sources.walk import describe_left_out, find_images, list_folder
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch.stored_config import resolved_config
from imagenet_ddp.runs.folder import disk_errors_as_run_error
from imagenet_ddp.system.console import Progress
from imagenet_ddp.system.cpu_cores import num_cores
from imagenet_ddp.system.files import atomic_path
from imagenet_ddp.system.table_files import MOST_ROWS, WriteRow, csv_rows, format_of, xlsx_rows
from imagenet_ddp.system.text import count_noun, printable
from imagenet_ddp.use.open_predictor import open_predictor

if TYPE_CHECKING:
    from imagenet_ddp.use.predictor import Predictor

# A function (path, top, error) that writes one image's prediction. top: pairs (class index, probability), most
# likely first. If the image could not be read, top is empty and error is the reason; otherwise error is empty.
Write = Callable[[str, list[tuple[int, float]], str], None]

# Images per batch at their original size: a 12-megapixel image takes 36 MB, and the same again as part of the batch.
MOST_WHOLE = 4


def main() -> None:
    with command.run_command("predict"):
        request = command.request("predict")
        paths = find_images(request.configs[0].images)  # before the checkpoint is read, which takes seconds
        if format_of(request.configs[0].format, request.configs[0].out) == "xlsx" and len(paths) > MOST_ROWS:
            raise ConfigError(
                f"an Excel sheet must have at most {MOST_ROWS:,} rows, but there are {len(paths):,} images. "
                "Hint: set out=FILE.csv."
            )
        config = resolved_config(request, os.environ, PredictConfig)
        num_images, num_unreadable = _predict(config, paths)
    where = f" to {config.out}" if config.out else ""
    print(f"{count_noun(num_images, 'image')}{where}, {num_unreadable} unreadable", file=sys.stderr)
    if Path(config.images).is_dir() and (words := describe_left_out(list_folder(Path(config.images))[1])):
        print(f"In {config.images}, {words}.", file=sys.stderr)


def _predict(config: PredictConfig, paths: list[str]) -> tuple[int, int]:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may not be UTF-8
    predictor = open_predictor(config)
    from imagenet_ddp.use.predictor import read_in_order

    top_k = min(config.top_k, len(predictor.classes))
    batch_size, option = config.data.val_batch_size or config.data.batch_size, config.data.num_workers
    num_threads = option if isinstance(option, int) and option else num_cores()
    if predictor.reads_whole:
        batch_size = min(batch_size, MOST_WHOLE)
    num_unreadable, rest = 0, iter(paths)
    disk_errors = disk_errors_as_run_error(Path(config.out)) if config.out else nullcontext()
    with disk_errors, ExitStack() as stack:
        batches = stack.enter_context(closing(read_in_order(predictor.read, paths, batch_size, num_threads)))
        write = _writer(config, top_k, predictor, stack)
        progress = Progress("predict", len(paths), "images") if config.out else None
        if progress is not None:
            stack.enter_context(closing(progress))
        for images in batches:
            results = predictor.predict(images, top_k)
            for (top, error), path in zip(results, rest, strict=False):
                num_unreadable += bool(error)
                write(path, top, error)
            if progress is not None:
                progress.add(len(images))
    return len(paths), num_unreadable


def _writer(config: PredictConfig, top_k: int, predictor: "Predictor", stack: ExitStack) -> Write:
    """Return the function that writes each prediction to out=, or to standard output. The stack closes the file."""
    out, kind, is_file = Path(config.out or ""), format_of(config.format, config.out), False
    if config.out and not out.is_symlink() and (out.is_file() or not out.exists()):  # no device, pipe or /dev/stdout
        out.parent.mkdir(parents=True, exist_ok=True)
        out, is_file = stack.enter_context(atomic_path(out)), True
    if kind == "xlsx":
        return _table(stack.enter_context(xlsx_rows(out)), predictor, top_k)
    stream: IO[str] = sys.stdout
    if config.out:
        stream = stack.enter_context(out.open("w", newline="", encoding="utf-8", errors="backslashreplace"))
    if kind == "jsonl":
        return _json_lines(stream, predictor)
    return _table(csv_rows(stream, config.csv_delimiter, has_bom=is_file), predictor, top_k, text=True)


def _table(write_row: WriteRow, predictor: "Predictor", top_k: int, *, text: bool = False) -> Write:
    """Write the header path, class_1, probability_1, ..., error, and return the function that writes the rows. Classes
    are written as labels. text: write probabilities with six digits."""
    columns = [f"{what}_{rank}" for rank in range(1, top_k + 1) for what in ("class", "probability")]
    write_row(["path", *columns, "error"])

    def write(path: str, top: list[tuple[int, float]], error: str) -> None:
        shares = [f"{share:.6f}" if text else round(share, 6) for _, share in top]
        cells = [
            cell for (index, _), share in zip(top, shares, strict=True) for cell in (predictor.labels[index], share)
        ]
        write_row([path, *cells, *[""] * (2 * top_k - len(cells)), error])

    return write


def _json_lines(stream: IO[str], predictor: "Predictor") -> Write:
    """Return a function that writes one JSON object per line: path, classes (class, label, probability), and error,
    which is null if the image was read."""
    is_terminal = stream.isatty()

    def write(path: str, top: list[tuple[int, float]], error: str) -> None:
        rows = [
            {"class": predictor.classes[index], "label": predictor.labels[index], "probability": round(share, 6)}
            for index, share in top
        ]
        line = json.dumps({"path": path, "classes": rows, "error": error or None}, ensure_ascii=False)
        stream.write((printable(line) if is_terminal else line) + "\n")

    return write


if __name__ == "__main__":
    main()
