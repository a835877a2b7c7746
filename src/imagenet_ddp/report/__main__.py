"""Write the page of one run, or the leaderboard of any set of run folders: python -m imagenet_ddp.report DIR... Imports
torch only for the images of a page.

Exit codes: 0 success, 1 the folder named by out= could not be written, 2 refused.
"""

import io
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from imagenet_ddp.cli import command
from imagenet_ddp.cli.suggest import closest
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.report.comparison import curves, write
from imagenet_ddp.report.comparison.collect import collect_runs, notes_on, version_notes
from imagenet_ddp.report.comparison.differences import Differences, find_differences, labels, printable
from imagenet_ddp.report.comparison.leaderboard import SORTS, leaderboard, sort_runs
from imagenet_ddp.report.comparison.recipe_table import CODE, recipe_table
from imagenet_ddp.report.comparison.recipes import find_recipe, group_recipes
from imagenet_ddp.report.options import Options, read
from imagenet_ddp.report.page.request import make_page, wants_page
from imagenet_ddp.report.run import Run
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
    by_run = leaderboard(runs, differences)
    by_run.notes.extend([*notes_on(runs, differences), *collection.notes])
    by_recipe = _by_recipe(runs, differences, options)
    tables = [by_run, *([by_recipe] if by_recipe else [])]
    names = ", ".join(folder.resolve().name or "/" for folder in options.folders)
    title = printable(f"Run {names}" if len(runs) == 1 else f"{count_noun(len(runs), 'run')} in {names}")
    document = write.markdown_document(title, tables, "report_curves.png")
    printed = [by_recipe] if by_recipe and options.by == "recipe" else tables
    if options.format == "text":
        print(*_text(printed), sep="\n", flush=True)  # before the figure is drawn, which takes a second or two
    elif options.format == "csv":
        print(as_csv(printed[0]).decode(), end="", flush=True)
    else:
        print(document if printed == tables else write.markdown_document(title, printed, None), end="", flush=True)
    best_first = sort_runs(runs, "top1")
    figure = curves.draw_curves(best_first, labels(best_first, differences), title)
    picture = plot_style.png(figure, Software=write.MARKER)
    contents = {"report.md": document.encode(), "report.csv": as_csv(by_run), "report_curves.png": picture}
    if by_recipe:
        contents["report_recipes.csv"] = as_csv(by_recipe)
    _write(options, contents)


def _by_recipe(runs: Sequence[Run], differences: Differences, options: Options) -> Table | None:
    """Return the table of recipes, or None if it was not requested and no recipe has two seeds. Raises ConfigError if
    it was requested but cannot be made."""
    recipes = group_recipes(runs, differences)
    recipes.sort(key=lambda recipe: -median(recipe.values("best_top1")))
    is_asked = options.by == "recipe" or options.against is not None
    if not recipes and is_asked:
        raise ConfigError("by=recipe needs a finished run with validation, got none. Hint: set by=run.")
    if not is_asked and all(len(recipe.runs) == 1 for recipe in recipes):
        return None
    reference = 0 if options.against is None else find_recipe(recipes, options.against)
    if reference is None:
        names = ", ".join(recipe.label for recipe in recipes)
        raise ConfigError(
            f"against must be one of the recipes {names}, or one of their run folders, got "
            f"{printable(options.against or '')}. Hint: set {shlex.quote(f'against={recipes[0].label}')}."
        )
    recipes.insert(0, recipes.pop(reference))
    table = recipe_table(recipes, commands=options.by == "recipe")
    table.notes.extend(version_notes([run for recipe in recipes for run in recipe.runs]))
    return table


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


def _text(tables: Sequence[Table]) -> Iterator[str]:
    width = shutil.get_terminal_size().columns
    for number, table in enumerate(tables):
        rows, left_out = as_text(table, width)
        yield from [*[""] * bool(number), table.title, "", *rows, ""]
        file = "report_recipes.csv" if table.columns[0].key == "recipe" else "report.csv"
        note = [f"Not shown on this narrow terminal, but in {file}: {', '.join(left_out)}."] if left_out else []
        for text in [*note, *table.notes]:
            if text.startswith(CODE):  # whole, so that it can be copied
                yield text
            else:
                yield from textwrap.wrap(text, min(width, 120), break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    main()
