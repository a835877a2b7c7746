"""Find out whether a package is installed, and say how to install one that is missing."""

import importlib.util
import os
import re
import shlex
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from imagenet_ddp.mistakes import Fix, Mistake
from imagenet_ddp.system.text import UV

PROJECT = Path(__file__).resolve().parents[3]  # where it is a checkout


def is_installed(package: str) -> bool:
    """Return whether importing the package would load a file. Any folder in the current folder is a package for Python,
    an empty one, if no installed package has its name."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def install(requirement: str, otherwise: str = "") -> str:
    """Return the command that installs a package into the running environment. Under `uv run` in the folder of this
    project, it is the one in docs/getting-started.md. `uv pip` is told which environment, because it prefers the
    activated one to that of `uv run`. An environment created by uv has no pip.

    requirement: a package, or an extra, such as "imagenet_ddp[onnx]", of which the packages are installed. otherwise:
    the package to install where those of the extra are not known.
    """
    of_project = UV in os.environ and (PROJECT / "uv.lock").is_file() and Path(sys.prefix) == PROJECT / ".venv"
    if of_project and Path.cwd() == PROJECT and (extra := _extra(requirement)):
        return f"uv sync --inexact --extra {extra}"
    quoted = " ".join(f"'{each}'" for each in requirements(requirement) or [otherwise or requirement])
    if UV not in os.environ and is_installed("pip"):
        return f"python -m pip install {quoted}"
    prefix = Path(sys.prefix)
    shown = prefix.relative_to(Path.cwd()) if prefix.is_relative_to(Path.cwd()) else prefix
    return f"uv pip install -p {shlex.quote(str(shown))} {quoted}"


def _extra(requirement: str) -> str | None:
    """Return the extra that a requirement names, or that has the name of the package; None if there is none."""
    extra = requirement.removesuffix("]").rpartition("[")[2]
    return extra if requirements(f"imagenet_ddp[{extra}]") else None


def extra_with(package: str) -> str:
    """Return the extra of this project that installs a package, such as "imagenet_ddp[slurm]" for submitit; "" if none
    or several do. One that has the name of the package comes first."""
    if requirements(f"imagenet_ddp[{package}]"):
        return f"imagenet_ddp[{package}]"
    begins = re.compile(rf"{package.replace('_', '-')}\b(?!-).*; extra == '(\w+)'$")
    try:
        found = {match[1] for each in requires("imagenet_ddp") or () if (match := begins.match(each))}
    except PackageNotFoundError:
        return ""
    return f"imagenet_ddp[{found.pop()}]" if len(found) == 1 else ""


def requirements(requirement: str) -> list[str]:
    """Return what to install: of "imagenet_ddp[NAME]", the packages that this extra requires, because an index may have
    another project under that name, or none. [] if this project is not installed, such as a build on PYTHONPATH."""
    project, bracket, extra = requirement.removesuffix("]").partition("[")
    if not bracket:
        return [requirement]
    suffix = f"; extra == '{extra}'"
    try:
        return [each.removesuffix(suffix) for each in requires(project) or () if each.endswith(suffix)]
    except PackageNotFoundError:
        return []


def missing_package(what: str, *packages: str, requirement: str = "", instead: Fix | None = None) -> list[Mistake]:
    """Return the mistake that a package is not installed; [] if all are.

    what: the option that needs them. requirement: what to install, by default the extra that installs the package, or
    else the package; of "imagenet_ddp[NAME]", the packages of that extra. instead: another way out.
    """
    missing = next((package for package in packages if not is_installed(package)), None)
    if missing is None:
        return []
    fixes = Fix(run=install(requirement or extra_with(missing) or missing, missing)), *([instead] if instead else [])
    sentence = f"{what} needs the package {missing}, which is not installed"
    return [Mistake(sentence, (what.partition("=")[0],), fixes)]
