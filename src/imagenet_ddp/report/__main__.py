"""python -m imagenet_ddp.report DIR...: the leaderboard of any set of run folders. No torch.

Exit codes: 0 done, 1 the folder named by out= could not be written in, 2 refused.
"""

import io
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from imagenet_ddp.cli import command
from imagenet_ddp.cli.suggest import closest
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.report import figures, files, scaling
from imagenet_ddp.report.collection import collect, notes
from imagenet_ddp.report.differences import Differences, differences, labels, printable
from imagenet_ddp.report.html import page
from imagenet_ddp.report.leaderboard import SORTS, Leaderboard, in_place, leaderboard
from imagenet_ddp.report.options import Options, read
from imagenet_ddp.report.table import Table, as_csv, as_markdown, as_text, markdown
from imagenet_ddp.runs import plot_style

HELP = """\
The leaderboard of run folders: a table, best first, with the options in which
the runs differ; their curves over each other; how they scale with the devices.

  python -m imagenet_ddp.report DIR... [format=text] [out=FOLDER] [sort=top1]

  DIR      a run folder, a sweep, a study, or any folder above them
  format=  what is printed: text, markdown, csv, html
  out=     where report.md, report.csv, report.html, report_curves.png and, for
           runs on different numbers of devices, report_scaling.png are written;
           by default into DIR, into ./report where several are given
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
    collection = collect(options.folders)
    found = differences(collection.runs)
    sort, more = _sort(options.sort, found)
    if mistakes := [*mistakes, *collection.mistakes, *(more if collection.runs else [])]:
        raise ConfigError(mistakes)
    board = leaderboard(collection.runs, found, sort)
    board.table.notes.extend([*notes(board.runs, found), *collection.notes])
    series = scaling.scaling(board.runs, found)
    tables = [board.table, *([board.seeds] if board.seeds else []), *([scaling.as_table(series)] if series else [])]
    if options.format == "text":
        print(*_text(tables), sep="\n", flush=True)  # the pictures take a second or two
    contents = _contents(_title(options.folders, len(board.runs)), board, tables, found, series)
    if options.format != "text":
        name = {"markdown": "report.md", "csv": "report.csv", "html": "report.html"}[options.format]
        print((contents[name] or b"").decode(), end="", flush=True)
    outcome = files.write(options.folder, contents)
    _say(options.folder, outcome, aside=options.format != "text")
    if outcome.error and options.out is not None:
        sys.exit(1)


def _sort(asked: str, found: Differences) -> tuple[str, list[str]]:
    """(one of SORTS or the whole key path, mistakes)."""
    meant = {**{name: name for name in SORTS}, **{found.title(key): key for key in found.keys}}
    meant |= {key: key for key in found.keys}
    if asked in meant:
        return meant[asked], []
    close = closest(asked, meant)
    hint = f"did you mean sort={close[0]}?" if close else "sort=top1."
    return "top1", [f"sort must be one of {', '.join(meant)}, but is {asked}. Hint: {hint}"]


def _title(folders: Sequence[Path], num_runs: int) -> str:
    return ("Run " if num_runs == 1 else "Runs of ") + printable(
        ", ".join(folder.resolve().name or "/" for folder in folders)
    )


def _text(tables: Sequence[Table]) -> list[str]:
    width = shutil.get_terminal_size().columns
    lines = []
    for table in tables:
        rows, left_out = as_text(table, width)
        lines += ["", table.title, "", *rows, ""]
        told = [f"No room here, but in the files: {', '.join(left_out)}."] if left_out else []
        for note in [*told, *table.notes]:
            lines += textwrap.wrap(note, min(width, 120), break_long_words=False, break_on_hyphens=False)
    return lines[1:]


def _contents(
    title: str, board: Leaderboard, tables: Sequence[Table], found: Differences, series: Sequence[scaling.Series]
) -> dict[str, bytes | None]:
    best_first = in_place(board.runs, "top1")
    curves = plot_style.png(figures.curves(best_first, labels(best_first, found), title), Software=files.MARKER)
    speed = plot_style.png(figures.speed(series, title), Software=files.MARKER) if series else None
    pictures = [("Validation top-1 and training loss over the epochs", "report_curves.png", curves)]
    pictures += [("Training speed and efficiency over the number of devices", "report_scaling.png", speed)] * bool(
        speed
    )
    text = [f"<!-- {files.MARKER} -->", f"# {markdown(title)}", ""]
    for table in tables:
        text += [f"## {markdown(table.title)}", "", *as_markdown(table), ""]
        text += [line for note in table.notes for line in (markdown(note), "")]
    text += [line for words, name, _ in pictures for line in (f"![{words}]({name})", "")]
    embedded = [(words, picture) for words, _, picture in pictures if picture]
    return {
        "report.md": "\n".join(text).encode(),
        "report.csv": as_csv(board.table).encode(),
        "report.html": page(title, tables, embedded, files.MARKER).encode(),
        "report_curves.png": curves,
        "report_scaling.png": speed,
    }


def _say(folder: Path, outcome: files.Outcome, *, aside: bool) -> None:
    """aside: the screen holds a document, and nothing else may stand in it."""
    stream = sys.stderr if aside else sys.stdout
    print(file=stream)
    if outcome.foreign:
        names = ", ".join(outcome.foreign)
        print(f"Not written, files of another origin are there: {names}. Hint: out=FOLDER.", file=stream)
    if outcome.error:
        print(f"{folder} could not be written in: {outcome.error}. Hint: out=FOLDER.", file=sys.stderr)
    if outcome.written:
        print(f"Written to {printable(str(folder))}: {', '.join(outcome.written)}", file=stream)


if __name__ == "__main__":
    main()
