"""python -m imagenet_ddp.report DIR...: the leaderboard of any set of run folders. Does not import torch.

Exit codes: 0 done, 1 the folder named by out= could not be written, 2 refused.
"""

import io
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence

from imagenet_ddp.cli import command
from imagenet_ddp.cli.suggest import closest
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.report.comparison import curves, write
from imagenet_ddp.report.comparison.collect import collect_runs, notes_on
from imagenet_ddp.report.comparison.differences import Differences, find_differences, labels, printable
from imagenet_ddp.report.comparison.leaderboard import SORTS, leaderboard, means_over_seeds, sort_runs
from imagenet_ddp.report.options import Options, read
from imagenet_ddp.runs import plot_style
from imagenet_ddp.system.table import Table, as_csv, as_text

HELP = """\
The leaderboard of run folders: a table, best first, with the options in which
the runs differ; their curves in one figure.

  python -m imagenet_ddp.report DIR... [format=text] [out=FOLDER] [sort=top1]

  DIR      a run folder, a sweep, a study, or any folder above them
  format=  what is printed: text, markdown, csv
  out=     where report.md, report.csv and report_curves.png are written;
           by default DIR, or ./report for several
  sort=    top1, top5, loss, epochs, images_per_s, train_s, folder,
           or an option that differs, such as optim.lr

  python -m imagenet_ddp.report runs/shapes_resnet18 format=markdown out=report
"""


def main() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    with command.run_command("report"):
        if {"-h", "--help"} & set(sys.argv[1:]):
            print(HELP, end="")
        else:
            _report(*read(sys.argv[1:]))


def _report(options: Options, mistakes: list[str]) -> None:
    collection = collect_runs(options.folders)
    differences = find_differences(collection.runs)
    sort_key, sort_mistakes = _sort_key(options.sort, differences)
    if mistakes := [*mistakes, *collection.mistakes, *(sort_mistakes if collection.runs else [])]:
        raise ConfigError(mistakes)
    runs = sort_runs(collection.runs, sort_key)
    tables = [leaderboard(runs, differences)]
    tables[0].notes.extend([*notes_on(runs, differences), *collection.notes])
    if seeds := means_over_seeds(runs, differences):
        tables.append(seeds)
    names = ", ".join(folder.resolve().name or "/" for folder in options.folders)
    title = printable(f"Run {names}" if len(runs) == 1 else f"Runs of {names}")
    document = write.markdown_document(title, tables, "report_curves.png")
    if options.format == "text":
        print(*_text(tables), sep="\n", flush=True)  # before the picture, which takes a second or two
    else:
        print(document if options.format == "markdown" else as_csv(tables[0]), end="", flush=True)
    best_first = sort_runs(runs, "top1")
    figure = curves.draw_curves(best_first, labels(best_first, differences), title)
    picture = plot_style.png(figure, Software=write.MARKER)
    contents = {"report.md": document.encode(), "report.csv": as_csv(tables[0]).encode(), "report_curves.png": picture}
    _write(options, contents)


def _write(options: Options, contents: dict[str, bytes]) -> None:
    folder = options.out_folder
    stream = sys.stdout if options.format == "text" else sys.stderr  # beside a document
    print(file=stream)
    try:
        written, foreign = write.write_files(folder, contents)
    except OSError as error:
        print(f"{folder} could not be written: {error.strerror}. Hint: out=FOLDER.", file=sys.stderr)
        sys.exit(1 if options.out is not None else 0)
    if foreign:
        print(f"Not replaced, because this command did not write them: {', '.join(foreign)}. Hint: out=FOLDER.",
              file=stream)  # fmt: skip
    if written:
        print(f"Written to {printable(str(folder))}: {', '.join(written)}", file=stream)


def _sort_key(typed: str, differences: Differences) -> tuple[str, list[str]]:
    """Return (a key for sort_runs, mistakes)."""
    keys = {**{name: name for name in (*SORTS, "folder")}, **{differences.title(key): key for key in differences.keys}}
    keys |= {key: key for key in differences.keys}
    if typed in keys:
        return keys[typed], []
    close = closest(typed, keys)
    hint = f"did you mean sort={close[0]}?" if close else "sort=top1."
    return "top1", [f"sort must be one of {', '.join(keys)}, got {typed}. Hint: {hint}"]


def _text(tables: Sequence[Table]) -> Iterator[str]:
    width = shutil.get_terminal_size().columns
    for number, table in enumerate(tables):
        rows, left_out = as_text(table, width)
        yield from [*[""] * bool(number), table.title, "", *rows, ""]
        note = [f"Not shown on this narrow terminal, but in report.csv: {', '.join(left_out)}."] if left_out else []
        for text in [*note, *table.notes]:
            yield from textwrap.wrap(text, min(width, 120), break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    main()
