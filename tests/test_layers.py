"""Who may import whom, read from the source: imports run downward only."""

import ast
import functools
import re
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from conftest import ROOT

SOURCE = ROOT / "src"
PROJECT = "imagenet_ddp"


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in sorted((SOURCE / PROJECT).rglob("*.py"))}

# From the ground up; a package may import those of the lines above it, and of its own line only itself.
LAYERS = (
    ("mistakes", "version"),
    ("errors",),
    ("system",),
    ("distributed",),
    ("config",),
    ("data", "models", "runs", "strategies"),
    ("curation", "pages"),
    ("exported", "sections"),
    ("callbacks", "cli"),
    ("launch",),
    ("training",),
    ("use",),
    ("__init__",),  # the package itself: `from imagenet_ddp import load`
    ("train", "evaluate", "features", "predict", "export", "demo", "submit", "prepare", "doctor", "benchmark", "report",
     "tune", "__main__"),
)  # fmt: skip
LAYER_OF = {package: number for number, packages in enumerate(LAYERS) for package in packages}
EXCEPTIONS = {("benchmark", "prepare")}  # benchmark packs images to measure how fast packed ones are read


def package_of(module: str) -> str:
    """Return the package of LAYERS that a module is in, such as "data" for imagenet_ddp.data.loader."""
    first, second = (*module.split("."), "__init__", "")[1:3]
    return f"{first}.{second}" if f"{first}.{second}" in LAYER_OF else first


@functools.cache
def imports() -> list[tuple[str, str, str]]:
    """Return (place, importing module, imported module or name) of every import in the project, at the top of a file or
    within a function."""
    found = []
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            assert not getattr(node, "level", 0), f"{path}: relative imports are not read here"
            above = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for name in (f"{above}{alias.name}" for alias in node.names):
                if name.partition(".")[0] == PROJECT:
                    found.append((f"{path}:{node.lineno}", module, name))
    return found


def file_of(name: str) -> str:
    """Return the module that holds a name: imagenet_ddp.errors for imagenet_ddp.errors.ConfigError."""
    return name if name in MODULES else name.rpartition(".")[0]


def room_of(module: str) -> str:
    """Return the folder of a module, such as "data.sources"; a file beside the folders is its own room."""
    parts = module.split(".")[1:]
    is_folder = MODULES[module].name == "__init__.py"
    return ".".join(parts if is_folder or len(parts) == 1 else parts[:-1]) or "__init__"


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the nodes of a circle, [] if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def graph_of(*, rooms: bool) -> dict[str, set[str]]:
    """Return what each file, or each room, imports of the others."""
    graph: dict[str, set[str]] = {}
    for _, importer, name in imports():
        imported = file_of(name)
        pair = room_of(importer), room_of(imported)
        if pair in EXCEPTIONS:
            continue
        one, other = pair if rooms else (importer, imported)
        if one != other:
            graph.setdefault(one, set()).add(other)
    return graph


def test_no_circle_of_files():
    assert circle(graph_of(rooms=False)) == []


def test_no_circle_of_rooms():
    assert circle(graph_of(rooms=True)) == []


def test_every_import_is_allowed():
    found = [(place, package_of(importer), package_of(name)) for place, importer, name in imports()]
    found = [(place, importer, name if name in LAYER_OF else "__init__") for place, importer, name in found]
    assert [
        each
        for each in found
        if each[1] != each[2] and each[1:] not in EXCEPTIONS and LAYER_OF[each[1]] <= LAYER_OF[each[2]]
    ] == []


def test_every_package_has_a_layer():
    top = SOURCE / PROJECT
    found = {path.stem for path in top.glob("*.py")} | {path.parent.name for path in top.glob("*/__init__.py")}
    assert found == {name for name in LAYER_OF if "." not in name}


def test_distributed_is_entered_by_the_modules_of_its_readme():
    above = f"{PROJECT}.distributed."
    rows = (SOURCE / PROJECT / "distributed" / "README.md").read_text().splitlines()
    listed = {match[1] for row in rows if (match := re.match(r"\| `([\w.]+)`", row))}
    entering = [name for _, importer, name in imports() if name.startswith(above) and not importer.startswith(above)]
    assert {file_of(name).removeprefix(above) for name in entering} == listed
