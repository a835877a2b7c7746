"""Read the command line: folders and key=value options."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from imagenet_ddp.cli.suggest import closest
from imagenet_ddp.config.validators import choice, expect
from imagenet_ddp.system.paths import not_writable_reason

EXAMPLES = {
    "format": "format=markdown", "out": "out=FOLDER", "sort": "sort=top1",
    "by": "by=fold", "maps": "maps=false",
}  # fmt: skip
ALLOWED = {
    "format": choice("text", "markdown", "csv"), "by": choice("run", "fold"),
    "maps": choice("true", "false"),
}  # fmt: skip

# A removed option -> what to do instead.
REMOVED = {
    "watch": "run `tail -f RUN/logs/rank0.log`",
    "by=recipe": "run `python scripts/recipe_table.py DIR`",
    "against": "run `python scripts/recipe_table.py DIR against=RECIPE`",
}


@dataclass
class Options:
    folders: list[Path] = field(default_factory=list)
    format: str = "text"
    out: Path | None = None
    sort: str = "top1"
    by: str = "run"  # a row per run; fold: one page of all folds
    maps: str = "true"  # whether a page has class activation maps

    @property
    def out_folder(self) -> Path:
        return self.out or (self.folders[0] if len(self.folders) == 1 else Path("report"))


def read(argv: Sequence[str]) -> tuple[Options, list[str]]:
    """Return (options, mistakes). A word with "=" is a folder if one of that name exists, because Hydra makes such
    names."""
    options, mistakes, num_folders = Options(), [], 0
    for word in argv:
        key, equals, value = word.partition("=")
        removed = word if word in REMOVED else key
        if removed in REMOVED:
            mistakes.append(f"{removed} was removed. Hint: {REMOVED[removed]}.")
        elif equals and key in EXAMPLES:
            if not value:
                mistakes.append(f"{key}= has no value. Hint: set {EXAMPLES[key]}.")
            elif key == "out":
                options.out = Path(value)
                if reason := not_writable_reason(options.out):
                    mistakes.append(f"out must be a writable folder, but {reason}. Hint: set out=FOLDER.")
            else:
                setattr(options, key, value)
                if key in ALLOWED:
                    mistakes += expect(key, value, ALLOWED[key], EXAMPLES[key])
        elif Path(word).is_dir():
            num_folders += 1
            options.folders.append(Path(word))
        elif word.startswith("-") or (equals and "/" not in key):
            close = closest(key.lstrip("-"), EXAMPLES)
            examples = ", ".join(EXAMPLES.values())
            hint = f"did you mean {close[0]}={value or 'VALUE'}?" if close else f"use an option such as {examples}."
            mistakes.append(f"{word} is neither an option nor a folder. Hint: {hint}")
        else:
            num_folders += 1
            reason = "is a file" if Path(word).exists() else "does not exist"
            mistakes.append(
                f"{word} must be a folder, but {reason}. Hint: pass runs/<name>/<time>, or any folder above it."
            )
    if not num_folders:
        mistakes.insert(0, "a folder must be given. Hint: run `python -m imagenet_ddp.report runs`.")
    return options, mistakes
