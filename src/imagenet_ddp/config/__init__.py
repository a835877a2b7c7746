"""Declare every option once (schema/), check typed values against the declarations, and find the files of conf/."""

from difflib import get_close_matches
from pathlib import Path


def conf_dir() -> Path:
    """Return the folder of YAML files: beside the modules in an installed wheel, else at the top of a checkout."""
    package = Path(__file__).resolve().parents[1]
    return next(folder for folder in (package / "conf", package.parents[1] / "conf") if folder.is_dir())


def option_of(verb: str, word: str, *, near: bool = False) -> str:
    """Return the option of a command that chooses what a word names: prepare=check, experiment=probe; "" if none does.
    near: whether the word may be misspelt."""
    name = word.lower().replace("-", "_")
    groups = [verb, "experiment"] if verb == "train" else [verb]
    names = {path.stem: f"{group}={path.stem}" for group in groups for path in (conf_dir() / group).glob("*.yaml")}
    meant = [*get_close_matches(name, names, 1, 0.75), ""][0] if near else name
    return names.get(meant, "")


def command_of(word: str, *, near: bool = False) -> list[str]:
    """Return the command and its option that are meant by a choice that is typed as a command: prepare and
    prepare=check for check; [] if it is none. near: as in option_of."""
    commands = ("prepare", "benchmark", "train")
    return next(([verb, option] for verb in commands if (option := option_of(verb, word, near=near))), list[str]())
