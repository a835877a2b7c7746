"""Read the command line: folders and key=value options."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from imagenet_ddp.cli.suggest import closest, removed
from imagenet_ddp.config.validators import choice, expect, kind
from imagenet_ddp.system.paths import not_writable_reason

_ANY = kind("any text", lambda value: True)  # checked elsewhere
# Option -> (allowed values, example).
OPTIONS = {
    "format": (choice("text", "markdown", "csv"), "format=markdown"),
    "out": (_ANY, "out=FOLDER"),
    "sort": (_ANY, "sort=top1"),
    "by": (choice("run", "fold"), "by=fold"),
    "maps": (choice("true", "false"), "maps=false"),
}


@dataclass
class Options:
    folders: list[Path] = field(default_factory=list)
    format: str = "text"
    out: Path | None = None
    sort: str = "top1"
    by: str = "run"  # a row per run; fold: one page of all folds
    maps: bool = True  # whether a page has class activation maps

    @property
    def out_folder(self) -> Path:
        return self.out or (self.folders[0] if len(self.folders) == 1 else Path("report"))


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
