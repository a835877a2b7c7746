"""Write the page of one run, or the leaderboard of any set of run folders: python -m imagenet_ddp.report DIR... Imports
torch only for the images of a page.

Exit codes: 0 success, 1 the folder named by out= could not be written, 2 refused.
"""

import io
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from imagenet_ddp.cli import command
from imagenet_ddp.cli.known_terms import closest, removed
from imagenet_ddp.config.validators import choice, expect, kind
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.report import leaderboard
from imagenet_ddp.report.differences import Differences, find_differences, labels
from imagenet_ddp.report.page import is_run_or_evaluation, make_page
from imagenet_ddp.report.run import MARKER
from imagenet_ddp.runs import plots
from imagenet_ddp.system.files import atomic_write, not_writable_reason, require_current_folder
from imagenet_ddp.system.text import count_noun, printable
from imagenet_ddp.system.text_table import Table, as_csv, as_text

HELP = Path(__file__).with_name("help.txt").read_text(encoding="utf-8")
CSV_HEADERS = (b"place,run,best/val/top1,", b"path,label,suggested,score")  # by which own CSV files are recognised
_ANY = kind("any text", lambda value: True)  # checked elsewhere
# Option -> (allowed values, example).
OPTIONS = {
    "format": (choice("text", "markdown", "csv"), "format=markdown"),
    "out": (_ANY, "out=FOLDER"),
    "sort": (_ANY, "sort=top1"),
    "maps": (choice("true", "false"), "maps=false"),
}


@dataclass
class Options:
    folders: list[Path] = field(default_factory=list)
    format: str = "text"
    out: Path | None = None
    sort: str = "top1"
    maps: bool = True  # whether a page has class activation maps

    @property
    def out_folder(self) -> Path:
        return self.out or (self.folders[0] if len(self.folders) == 1 else Path("report"))


def main() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    with command.run_command("report"):
        if {"-h", "--help"} & set(sys.argv[1:]):
            print(HELP, end="")
            return
        require_current_folder()
        options, mistakes = read(sys.argv[1:])
        if not (len(options.folders) == 1 and options.format == "text" and is_run_or_evaluation(options.folders[0])):
            _compare(options, mistakes)
        elif mistakes:
            raise ConfigError(mistakes)
        else:
            page = make_page(options.folders[0], maps=options.maps)
            print(*(printable(line) for line in page.summary), sep="\n", flush=True)
            _write(options, page.files)


def read(argv: Sequence[str]) -> tuple[Options, list[str]]:
    """Return (options, mistakes). A word with "=" is a folder if one of that name exists, because Hydra makes such
    names."""
    typed: dict[str, str] = {}
    folders, mistakes, names_folder = [], [], False
    for word in argv:
        key, equals, value = word.partition("=")
        if Path(word).is_dir():
            folders.append(Path(word))
        elif equals and (instead := removed(word) or removed(key)):
            mistakes.append(f"{word if removed(word) else key} was removed. Hint: {instead}.")
        elif equals and key in OPTIONS:
            typed[key] = value
            allowed, example = OPTIONS[key]
            if not value:
                mistakes.append(f"{key}= has no value. Hint: set {example}.")
            elif key == "out" and (reason := not_writable_reason(Path(value))):
                mistakes.append(f"out must be a writable folder, but {reason}. Hint: set {example}.")
            mistakes += expect(key, value, allowed, example) if value else []
        elif word.startswith("-") or (equals and "/" not in key):
            close = closest(key.lstrip("-"), OPTIONS)
            examples = ", ".join(example for _, example in OPTIONS.values())
            hint = f"did you mean {close[0]}={value or 'VALUE'}?" if close else f"use an option such as {examples}."
            mistakes.append(f"{word} is neither an option nor a folder. Hint: {hint}")
        else:
            names_folder = True
            reason = "is a file" if Path(word).exists() else "does not exist"
            mistakes.append(
                f"{word} must be a folder, but {reason}. Hint: pass runs/<name>/<time>, or any folder above it."
            )
    if not folders and not names_folder:
        mistakes.insert(0, "a folder must be given. Hint: run `python -m imagenet_ddp.report runs`.")
    converted = {"out": Path(typed["out"])} if typed.get("out") else {}
    converted |= {"maps": typed["maps"] != "false"} if "maps" in typed else {}
    return Options(folders, **{**typed, **converted}), mistakes


def _compare(options: Options, mistakes: list[str]) -> None:
    collection = leaderboard.collect_runs(options.folders)
    differences = find_differences(collection.runs)
    sort_key, sort_mistakes = _sort_key(options.sort, differences)
    if mistakes := [*mistakes, *collection.mistakes, *(sort_mistakes if collection.runs else [])]:
        raise ConfigError(mistakes)
    runs = leaderboard.sort_runs(collection.runs, sort_key)
    table = leaderboard.leaderboard(runs, differences)
    table.notes.extend([*leaderboard.notes_on(runs, differences), *collection.notes])
    names = ", ".join(folder.resolve().name or "/" for folder in options.folders)
    title = printable(f"Run {names}" if len(runs) == 1 else f"{count_noun(len(runs), 'run')} in {names}")
    document = leaderboard.markdown_document(title, table, "report_curves.png")
    if options.format == "text":
        print(*_text(table), sep="\n", flush=True)  # before the figure is drawn, which takes a second or two
    else:
        print(as_csv(table).decode() if options.format == "csv" else document, end="", flush=True)
    best_first = leaderboard.sort_runs(runs, "top1")
    figure = leaderboard.draw_curves(best_first, labels(best_first, differences), title)
    picture = plots.png(figure, Software=MARKER)
    _write(options, {"report.md": document.encode(), "report.csv": as_csv(table), "report_curves.png": picture})


def _sort_key(typed: str, differences: Differences) -> tuple[str, list[str]]:
    """Return (a key for sort_runs, mistakes)."""
    keys = {name: name for name in (*leaderboard.SORTS, "folder")}
    keys |= {differences.title(key): key for key in differences.keys} | {key: key for key in differences.keys}
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


def _write(options: Options, contents: dict[str, bytes]) -> None:
    folder = options.out_folder
    stream = sys.stdout if options.format == "text" else sys.stderr  # other formats print a document to stdout
    print(file=stream)
    try:
        written, foreign = write_files(folder, contents)
    except OSError as error:
        print(f"{folder} could not be written: {error.strerror}. Hint: set out=FOLDER.", file=sys.stderr)
        sys.exit(1 if options.out is not None else 0)
    if foreign:
        print(f"Not replaced, because this command did not write them: {', '.join(foreign)}. Hint: set out=FOLDER.",
              file=stream)  # fmt: skip
    if written:
        print(f"Written to {printable(str(folder))}: {', '.join(written)}", file=stream)


def write_files(folder: Path, contents: Mapping[str, bytes]) -> tuple[list[str], list[str]]:
    """Write the files, except over those that this command did not write. Return (names of the written files, names of
    the files that were not replaced). Raises OSError if a file cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    foreign = [name for name in contents if _is_foreign(folder / name)]
    written = [name for name in contents if name not in foreign]
    for name in written:
        atomic_write(folder / name, contents[name])
    return written, foreign


def _is_foreign(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return path.is_symlink() or path.exists()
    with path.open("rb") as file:
        start = file.read(4096)
    return MARKER.encode() not in start and not (path.suffix == ".csv" and start.startswith(CSV_HEADERS))


if __name__ == "__main__":
    main()
