"""Write the page of one run, the leaderboard of any set of run folders, or the comparison of two nets on the same
images: python -m imagenet_ddp.report DIR... Imports torch only for the images of a page.

Exit codes: 0 success, 1 the files could not be written or the run could not be evaluated, 2 refused.
"""

import io
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagenet_ddp.cli import command, spaces
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.mistakes import Mistake, did_you_mean, must_be, setting
from imagenet_ddp.report import comparison
from imagenet_ddp.report.compared_runs import ComparedRuns
from imagenet_ddp.report.leaderboard import leaderboard, markdown_document, seeds_table
from imagenet_ddp.report.page import make_page
from imagenet_ddp.report.predictions import is_of_several_labels
from imagenet_ddp.report.run_curves import draw_curves
from imagenet_ddp.report.run_folders import MARKER, find_runs, read_run
from imagenet_ddp.runs import plots
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.files import atomic_write, below, beside, describe_path, exists, not_writable_reason
from imagenet_ddp.system.table_files import BOM, DELIMITERS
from imagenet_ddp.system.text import as_typed, count_noun, printable, shorten_list
from imagenet_ddp.system.text_table import Table, as_csv, as_text

HELP = Path(__file__).with_name("help.txt").read_text(encoding="utf-8")
CSV_HEADERS = (
    b"place,run,best/val/",
    b"path,label,suggested,score",
    b"group,path,label,split,cosine",
)  # by which own CSV files are recognised
OPTIONS = ("out", "maps", "csv_delimiter", "near_copies")
UNLIMITED = 10_000  # columns, if there is no terminal
NOT_FOLDERS = (".csv", ".xlsx", ".html", ".md")


@dataclass(frozen=True)
class Options:
    folders: list[Path]
    out: Path
    maps: bool  # whether a page has class activation maps
    delimiter: str  # value of csv_delimiter
    near_copies: Path | None = None  # the list of a check, for the page of one run


def main() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    with command.run_command("report", read):
        if {"-h", "--help"} & set(sys.argv[1:]):
            print(as_typed(HELP), end="")
            return
        options = read(sys.argv[1:])
        page = None
        if len(options.folders) == 1:
            page = make_page(
                options.folders[0], options.out, maps=options.maps, delimiter=options.delimiter,
                near_copies=options.near_copies,
            )  # fmt: skip
        if page is None and options.near_copies is not None:
            what = "near_copies is for the page of one run, got a folder of runs"
            raise ConfigError(Mistake(what, ("near_copies",), hint="name one run"))
        if page is None:
            files, failure = _several(options.folders, options.out, options.delimiter)
            _write(options.out, files)
            if failure:
                raise RunError(failure)
        else:
            _say(page.summary)
            _write(options.out, page.files)
            if page.is_incomplete:
                sys.exit(1)


def _is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file()


def _has_runs(folder: Path) -> bool:
    return _is_run(folder) or bool(below(folder, _is_run))


def read(argv: Sequence[str]) -> Options:
    """Return the options. A word with "=" is a folder if one of that name exists, because Hydra makes such names.
    Raises ConfigError with every mistake."""
    typed: dict[str, str] = {}
    named, mistakes = dict[Path, Path](), list[Mistake]()  # resolved -> folder, because one net is not two
    rest = [*argv]
    while rest:
        if words := spaces.of_one_path(rest):
            mistakes.append(spaces.in_quotes(words))
            del rest[: len(words)]
            continue
        word = rest.pop(0)
        key, equals, value = word.partition("=")
        path = Path(value if key == "checkpoint" and equals else word)  # as the other commands name a run folder
        if path.is_dir():
            named.setdefault(path.resolve(), path)
        elif equals and key in OPTIONS and value:
            typed[key] = value
        elif equals and key != "checkpoint":
            hint = "the options are out=FOLDER, maps=false, near_copies=FILE and csv_delimiter=semicolon"
            mistakes.append(Mistake(f"{word} is neither a folder nor an option", hint=hint))
        else:
            hint = "type a run folder, such as runs/NAME/TIME, or a folder above run folders"
            what = f"must be a folder, but {'is a file' if exists(str(path)) else 'does not exist'}"
            if runs := below(path.parent, _is_run):
                hint = f"name a run that exists, such as {shorten_list([*map(str, runs)], 3)}"
            near = path.parent if path.name != str(path) and _is_run(path.parent) else beside(path, _has_runs)
            fixes = (did_you_mean(str(near)),) if near else ()
            mistakes.append(Mistake(f"{describe_path(path)} {what}", (), fixes, "" if near else hint, (word,)))
    folders = [*named.values()]
    if (maps := typed.get("maps", "false")) not in ("true", "false"):
        mistakes.append(must_be("maps", "true or false", maps, setting("maps=false")))
    if (delimiter := typed.get("csv_delimiter", "comma")) not in DELIMITERS:
        fix = setting("csv_delimiter=semicolon")
        mistakes.append(must_be("csv_delimiter", ", ".join(DELIMITERS), delimiter, fix))
    near_copies = Path(typed["near_copies"]) if "near_copies" in typed else None
    if near_copies is not None and not near_copies.is_file():
        fix = setting("near_copies=checked/near_copies.csv")
        mistakes.append(must_be("near_copies", "the list of near-copies of a check", typed["near_copies"], fix))
    elif near_copies is not None and len(folders) > 1:
        what = "near_copies is for the page of one run, got several folders"
        mistakes.append(Mistake(what, ("near_copies",), hint="name one run folder"))
    if Path(typed.get("out", "")).suffix.lower() in NOT_FOLDERS:
        allowed = "a folder for the files of the report"
        mistakes.append(must_be("out", allowed, typed["out"], setting("out=FOLDER")))
    elif "out" in typed and (reason := not_writable_reason(Path(typed["out"]))):
        what = f"out must be a writable folder, but {reason}"
        mistakes.append(Mistake(what, ("out",), (setting("out=FOLDER"),)))
    if not folders and not mistakes:
        mistakes.append(Mistake("a folder must be given", hint="run `python -m imagenet_ddp.report runs`"))
    if mistakes:
        raise ConfigError(mistakes)
    default = folders[0] if len(folders) == 1 else "report"
    return Options(folders, Path(typed.get("out", default)), typed.get("maps") != "false", delimiter, near_copies)


def _several(folders: Sequence[Path], out: Path, delimiter: str) -> tuple[dict[str, bytes], str]:
    """Print the comparison of two nets, else the leaderboard. Return (the files, what failed in comparing two runs).
    Raises ConfigError if there is nothing to show."""
    are_nets = len(folders) == 2 and all(map(comparison.is_one_net, folders))
    are_runs = all(map(read_run, folders))
    if not are_nets or (are_runs and any(map(is_of_several_labels, folders))):
        return _leaderboard(folders, delimiter), ""
    try:
        found = comparison.compare(folders, out)
    except ConfigError as refusal:
        if not are_runs:
            raise
        return _leaderboard(folders, delimiter), str(refusal)
    _say([*found.lines, ""])
    _print_rows(found.table)
    _say(["", *(f"{words}: `{line}`" for words, line in found.next_steps)])
    return (_leaderboard(folders, delimiter, is_printed=False) if are_runs else {}) | found.files, found.failure


def _leaderboard(folders: Sequence[Path], delimiter: str, *, is_printed: bool = True) -> dict[str, bytes]:
    """Print the leaderboard, and return its files. Raises ConfigError if a folder contains no run."""
    found = {folder: find_runs(folder) for folder in folders}
    if mistakes := [
        f"{printable(str(folder))} must be or contain a run folder, but no config.yaml in it is that of a training. "
        "Hint: pass runs/<name>/<time>, or a folder above it."
        for folder, own in found.items()
        if not own
    ]:
        raise ConfigError(mistakes)
    compared = ComparedRuns.of([*{run.folder: run for own in found.values() for run in own}.values()])
    tables = [table for table in (leaderboard(compared), seeds_table(compared)) if table]
    for number, table in enumerate(tables * is_printed):  # before the figure is drawn, which takes a second or two
        _say([""] if number else [])
        _print_table(table)
    names = ", ".join(folder.resolve().name for folder in folders)
    title = printable(f"{count_noun(len(compared.runs), 'run')} in {names}")
    with plots.colors("light"):
        figure = draw_curves(compared, title)
    return {
        "report.md": markdown_document(title, tables, "report_curves.png").encode(),
        "report.csv": as_csv(tables[0], delimiter),
        "report_curves.png": plots.png(figure, Software=MARKER),
    }


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        print_message(printable(line), sys.stdout)


def _print_table(table: Table) -> None:
    _say([table.title, "", *([table.lead, ""] if table.lead else [])])
    left_out = _print_rows(table)
    note = [f"Not shown on this narrow terminal, but in report.csv: {', '.join(left_out)}."] if left_out else []
    _say(["", *note, *table.notes])


def _print_rows(table: Table) -> list[str]:
    """Print the rows, in groups by a first column of places. Return the titles of the columns that are left out."""
    width = shutil.get_terminal_size((UNLIMITED, 24)).columns  # a file is no narrow terminal
    (head, rule, *rows), left_out = as_text(table, width)
    parts = [f"\n{row}" if cells[0].value == 1 else row for row, cells in zip(rows, table.rows, strict=True)]
    print_message("\n".join([head, rule, parts[0].lstrip("\n"), *parts[1:]]), sys.stdout)
    return left_out


def _write(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write the files, except over those that this command did not write, and print their names."""
    foreign = [name for name in contents if _is_foreign(folder / name)]
    written = [name for name in contents if name not in foreign]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in written:
            atomic_write(folder / name, contents[name])
    except OSError as error:
        print_message(f"{folder} could not be written: {error.strerror}. Hint: set out=FOLDER.")
        sys.exit(1)
    _say([""])
    if foreign:
        _say([f"Not replaced, because this command did not write them: {', '.join(foreign)}. Hint: set out=FOLDER."])
    if written:
        _say([f"Written to {folder}: {', '.join(written)}"])


def _is_foreign(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return path.is_symlink() or path.exists()
    with path.open("rb") as file:
        start = file.read(4096)
    header = start.removeprefix(BOM.encode()).replace(b";", b",").replace(b"\t", b",")
    return MARKER.encode() not in start and not (path.suffix == ".csv" and header.startswith(CSV_HEADERS))


if __name__ == "__main__":
    main()
