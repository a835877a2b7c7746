"""The report's own command line: folders, and a few key=value words."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from imagenet_ddp.cli.suggest import closest
from imagenet_ddp.config.validators import choice, expect
from imagenet_ddp.system.paths import not_writable_reason

KEYS = ("format", "out", "sort")
FORMATS = ("text", "markdown", "csv", "html")
EXAMPLE = "python -m imagenet_ddp.report runs"


@dataclass
class Options:
    folders: list[Path] = field(default_factory=list)
    format: str = "text"
    out: Path | None = None  # None: as `folder` says
    sort: str = "top1"

    @property
    def folder(self) -> Path:
        """Where the files go."""
        return self.out or (self.folders[0] if len(self.folders) == 1 else Path("report"))


def read(argv: Sequence[str]) -> tuple[Options, list[str]]:
    """(options, mistakes). A word with = is a folder where one of that name exists: Hydra names folders so."""
    options, found, num_folders = Options(), [], 0
    for word in argv:
        key, equals, value = word.partition("=")
        if equals and key in KEYS:
            if not value:
                found.append(f"{key}= lacks its value. Hint: {_example(key)}.")
            elif key == "format":
                found += expect("format", value, choice(*FORMATS), "format=text")
                options.format = value
            elif key == "out":
                found += _out(Path(value))
                options.out = Path(value)
            else:
                options.sort = value
        elif Path(word).is_dir():
            num_folders += 1
            options.folders.append(Path(word))
        elif word.startswith("-"):
            close = closest(key.lstrip("-"), KEYS)
            hint = f"did you mean {close[0]}={value or 'VALUE'}?" if close else "options are typed as key=value."
            found.append(f"{word} is not an option. Hint: {hint}")
        elif equals and "/" not in key:
            close = closest(key, KEYS)
            hint = f"did you mean {close[0]}={value}?" if close else f"the options are {', '.join(KEYS)}."
            found.append(f"{key} is not a known key, and {word} no folder. Hint: {hint}")
        else:
            num_folders += 1
            found.append(_no_folder(Path(word)))
    if not num_folders:
        found.insert(0, f"a folder is needed, but none is given. Hint: {EXAMPLE}")
    return options, found


def _example(key: str) -> str:
    return {"format": "format=markdown", "out": "out=FOLDER", "sort": "sort=top1"}[key]


def _no_folder(path: Path) -> str:
    if path.exists():
        return f"{path} must be a folder, but is a file. Hint: {path.parent}"
    hint = "runs/<name>/<time>, a sweep or study folder, or any folder above"
    return f"{path} must be a folder, but does not exist ({path.absolute()}). Hint: {hint}."


def _out(path: Path) -> list[str]:
    if str(path).startswith("~"):  # no shell expands it behind "out="
        return [f"out={path} is a folder called {path.parts[0]}. Hint: out=$HOME{str(path)[1:]}"]
    if not (reason := not_writable_reason(path)):
        return []
    return [f"out must be a folder that can be made or written in, but {reason}. Hint: out=FOLDER."]
