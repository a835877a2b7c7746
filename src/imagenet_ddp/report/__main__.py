"""Write the page of one run, or the leaderboard of any set of run folders: python -m imagenet_ddp.report DIR... Imports
torch only for the images of a page.

Exit codes: 0 success, 1 the folder named by out= could not be written, 2 refused.
"""

import io
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from imagenet_ddp.cli import command
from imagenet_ddp.cli.suggest import closest
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.report.comparison import curves, write
from imagenet_ddp.report.comparison.collect import collect_runs, notes_on
from imagenet_ddp.report.comparison.differences import Differences, find_differences, labels, printable
from imagenet_ddp.report.comparison.leaderboard import SORTS, leaderboard, sort_runs
from imagenet_ddp.report.options import Options, read
from imagenet_ddp.report.page.request import make_page, wants_page
from imagenet_ddp.runs import plot_style
from imagenet_ddp.system.paths import require_current_folder
from imagenet_ddp.system.text import count_noun
from imagenet_ddp.system.text_table import Table, as_csv, as_text

HELP = Path(__file__).with_name("help.txt").read_text(encoding="utf-8")


def main() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    with command.run_command("report"):
        if {"-h", "--help"} & set(sys.argv[1:]):
            print(HELP, end="")
            return
        require_current_folder()
        options, mistakes = read(sys.argv[1:])
        if not wants_page(options):
            _report(options, mistakes)
        elif mistakes:
            raise ConfigError(mistakes)
        else:
            page = make_page(options)
            print(*(printable(line) for line in page.summary), sep="\n", flush=True)
            _write(options, page.files)


def _report(options: Options, mistakes: list[str]) -> None:
    collection = collect_runs(options.folders)
    differences = find_differences(collection.runs)
    sort_key, sort_mistakes = _sort_key(options.sort, differences)
    if mistakes := [*mistakes, *collection.mistakes, *(sort_mistakes if collection.runs else [])]:
        raise ConfigError(mistakes)
    runs = sort_runs(collection.runs, sort_key)
    table = leaderboard(runs, differences)
    table.notes.extend([*notes_on(runs, differences), *collection.notes])
    names = ", ".join(folder.resolve().name or "/" for folder in options.folders)
    title = printable(f"Run {names}" if len(runs) == 1 else f"{count_noun(len(runs), 'run')} in {names}")
    document = write.markdown_document(title, table, "report_curves.png")
    if options.format == "text":
        print(*_text(table), sep="\n", flush=True)  # before the figure is drawn, which takes a second or two
    else:
        print(as_csv(table).decode() if options.format == "csv" else document, end="", flush=True)
    best_first = sort_runs(runs, "top1")
    figure = curves.draw_curves(best_first, labels(best_first, differences), title)
    picture = plot_style.png(figure, Software=write.MARKER)
    _write(options, {"report.md": document.encode(), "report.csv": as_csv(table), "report_curves.png": picture})


def _write(options: Options, contents: dict[str, bytes]) -> None:
    folder = options.out_folder
    stream = sys.stdout if options.format == "text" else sys.stderr  # other formats print a document to stdout
    print(file=stream)
    try:
        written, foreign = write.write_files(folder, contents)
    except OSError as error:
        print(f"{folder} could not be written: {error.strerror}. Hint: set out=FOLDER.", file=sys.stderr)
        sys.exit(1 if options.out is not None else 0)
    if foreign:
        print(f"Not replaced, because this command did not write them: {', '.join(foreign)}. Hint: set out=FOLDER.",
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
    hint = f"did you mean sort={close[0]}?" if close else "set sort=top1."
    return "top1", [f"sort must be one of {', '.join(keys)}, got {typed}. Hint: {hint}"]


def _text(table: Table) -> Iterator[str]:
    width = shutil.get_terminal_size().columns
    rows, left_out = as_text(table, width)
    yield from [table.title, "", *rows, ""]
    note = [f"Not shown on this narrow terminal, but in report.csv: {', '.join(left_out)}."] if left_out else []
    for text in [*note, *table.notes]:
        yield from textwrap.wrap(text, min(width, 120), break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    main()
