"""Declare every option once (schema/), check typed values against the declarations, and find the files of conf/."""

from pathlib import Path


def conf_dir() -> Path:
    """Return the folder of YAML files: beside the modules in an installed wheel, else at the top of a checkout."""
    package = Path(__file__).resolve().parents[1]
    return next(folder for folder in (package / "conf", package.parents[1] / "conf") if folder.is_dir())


def option_of(verb: str, word: str) -> str:
    """Return the option of a command that chooses what a word names: prepare=check, experiment=probe; "" if none
    does."""
    name = word.lower().replace("-", "_")
    groups = [verb, "experiment"] if verb == "train" else [verb]
    is_name = name.isidentifier()
    return next((f"{each}={name}" for each in groups if is_name and (conf_dir() / each / f"{name}.yaml").is_file()), "")


def command_of(word: str) -> list[str]:
    """Return the command and its option that are meant by a choice that is typed as a command: prepare and
    prepare=check for check; [] if it is none."""
    commands = ("prepare", "benchmark", "train")
    return next(([verb, option] for verb in commands if (option := option_of(verb, word))), list[str]())
