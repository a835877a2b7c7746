"""Write the text of --help: what a command does, examples, choices, the most used keys, and links to the rest."""

import functools
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from imagenet_ddp.config import conf_dir
from imagenet_ddp.config.schema.keys import declared
from imagenet_ddp.system import console
from imagenet_ddp.system.text import as_typed
from imagenet_ddp.version import __version__

WIDTH = 80
_COLUMN = 25  # where the descriptions begin
# Options that are not declared keys -> their description.
_OTHER = {
    "hydra.run.dir": "Run folder to use instead of runs/<name>/<time>.",
    "-m_KEY=A,B": "Start one run for each value, in hydra.sweep.dir.",
    "search.KEY": "Values to search for a key: {low:A,high:B} or [A,B].",
}


@functools.cache
def guides() -> dict[str, Any]:
    """Return the content of help.yaml: summary, details, examples, groups and keys of each command."""
    content = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    lists = content.pop("lists")
    for guide in content.values():
        for key in ("groups", "keys"):
            guide[key] = " ".join(lists.get(word, word) for word in guide[key].split()).split()
    return content


def commands() -> str:
    rows = {command: guide["summary"] for command, guide in guides().items()}
    rows["report"] = "Show what a run gets wrong, or compare runs."
    lines = ["Usage: python -m imagenet_ddp COMMAND [KEY=VALUE ...]", ""]
    lines += [line for command, summary in rows.items() for line in _row(command, summary)]
    return as_typed("\n".join([*lines, "", "python -m imagenet_ddp COMMAND --help shows its options."]))


def versions() -> str:
    """Return the line of --version, without importing the packages."""
    names = ("torch", "torchvision", "lightning", "hydra-core")
    python = ".".join(map(str, sys.version_info[:3]))
    return f"imagenet_ddp {__version__} ({', '.join(f'{name} {version(name)}' for name in names)}, Python {python})"


def text(verb: str) -> str:
    """Return the --help text of a command."""
    guide = guides()[verb]
    lines = [*console.wrap_text(f"{guide['summary']} {guide['details']}", WIDTH, indent=""), ""]
    for options, what in guide["examples"].items():
        lines += _example(verb, options, what)
    if guide["groups"]:
        lines += ["", "Choices, typed like data=stl10 (the first of each is the default):"]
        lines += [line for group in guide["groups"] for line in _row(group, _choices(group))]
    lines += ["", "The most used keys, typed as KEY=VALUE:"]
    for key in guide["keys"]:
        lines += _row(key.replace("_", " ") if key[0] == "-" else key, _OTHER.get(key) or declared(verb)[key].meaning)
    lines += ["", "Where to find the rest:"]
    lines += _row("--cfg job", "every key with its value for the typed options")
    lines += _row("--hydra-help", "options that begin with -")
    lines += _row("docs/reference.md", "every key: allowed values, default, meaning")
    lines += _row("docs/configuration.md", "how to combine keys and use your own code")
    lines += _row("docs/coming-from.md", "equivalents of other programs' options")
    return "\n".join(lines)


def choices(group: str) -> list[str]:
    """Return the files of conf/GROUP, the default first."""
    names = sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
    default = _defaults().get(group)
    return sorted(names, key=lambda name: name != default)


def _choices(group: str) -> str:
    names = choices(group)
    if group == "recipe":
        return "same names as for data; by default, the same choice"
    if group == "experiment":
        return f"(none), own_photos, probe and {len(names) - 2} more: docs/recipes.md"
    return ", ".join(names if _defaults().get(group) or group == "prepare" else ["(none)", *names])


def _defaults() -> dict[str, str | None]:
    """Return group -> the option chosen by default, None if there is none."""
    found: dict[str, str | None] = {}
    for name in ("base", "tune", "benchmark"):
        entries = yaml.safe_load((conf_dir() / f"{name}.yaml").read_text(encoding="utf-8"))["defaults"]
        for entry in entries:
            found |= entry if isinstance(entry, dict) else {}
    return found


def _example(verb: str, options: str, what: str) -> list[str]:
    line = as_typed(f"  python -m imagenet_ddp.{verb} {options}").rstrip()
    if what:
        line += f"  # {what}"
    if len(line) <= WIDTH:
        return [line]
    if what:  # a comment after a backslash would break the command when pasted
        return [f"  # {what}", *_example(verb, options, "")]
    first, *rest = console.wrap_text(line, WIDTH - 2, indent="      ")
    return [f"{first} \\", *rest]


def _row(name: str, meaning: str) -> list[str]:
    if len(name) > _COLUMN - 3:
        return [f"  {name}", *_row("", meaning)]
    return console.wrap_text(meaning, WIDTH, f"  {name:{_COLUMN - 2}}", " " * _COLUMN)
