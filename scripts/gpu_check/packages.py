"""Carry the pure Python packages that training needs to a machine without a network. Needs only the standard library
there."""

import importlib
import os
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WHEELS = ROOT / "build" / "gpu_check"
TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "timm")  # of the tests, and of ViT-S
HAS_OWN = ("torch", "torchvision")  # of the machine, with what they require
SMALL_BYTES = 16 * 2**20


def required() -> list[str]:
    """Return the names of the packages that the project requires, torch first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [re.split(r"[<>=!~;\[ ]", line, maxsplit=1)[0] for line in project["dependencies"]]


def pack(folder: Path = WHEELS) -> list[Path]:
    """Write each pure Python package that the project or its tests require, in the version of this environment, as a
    wheel. Return the files."""
    for old in folder.glob("*.whl"):
        old.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    return [_write_wheel(each, folder) for each in _closure([*required(), *TOOLS])]


def _closure(names: list[str]) -> Iterator[metadata.Distribution]:
    """Yield the installed pure packages among these and those that they require, without those of HAS_OWN."""
    from packaging.requirements import Requirement

    seen = {*HAS_OWN}
    while names:
        name = re.sub(r"[-_.]+", "-", names.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # another platform's
        needed = map(Requirement, found.requires or ())
        names += [each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
        is_pure = "Root-Is-Purelib: true" in (found.read_text("WHEEL") or "")
        if is_pure and sum(file.size or 0 for file in found.files or ()) < SMALL_BYTES:
            yield found


def _write_wheel(found: metadata.Distribution, folder: Path) -> Path:
    name = re.sub(r"[-_.]+", "_", found.metadata["Name"])
    path = folder / f"{name}-{found.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file in found.files or ():
            source = Path(str(found.locate_file(file)))
            if ".." not in file.parts and file.suffix != ".pyc" and source.is_file():  # not its programs in bin/
                wheel.write(source, str(file))
    return path


def provide(folder: Path) -> list[str]:
    """Unpack the carried wheels of packages that this machine lacks into the folder, and put it on the search path of
    this process and of those that it starts. Return the names of the packages that are added."""
    added: list[str] = []
    for path in sorted(WHEELS.glob("*.whl")):
        name, version = path.name.split("-")[:2]
        if version_of(name) is None:
            with zipfile.ZipFile(path) as wheel:
                wheel.extractall(folder)
            added.append(f"{name} {version}")
    here = [str(ROOT / "src"), str(Path(__file__).parent), *[str(folder)] * bool(added)]
    sys.path += here
    searched = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*here, *filter(None, searched)]))
    importlib.invalidate_caches()
    return added


def version_of(name: str) -> str | None:
    """Return the installed version of a package; None if it is missing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
