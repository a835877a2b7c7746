"""Who may import whom, read from the source: imports run downward only, and nothing before training costs torch."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "imagenet_ddp"
PROJECT = "imagenet_ddp"

# From the ground up; a package may import those of the lines above it, and of its own line only itself.
LAYERS = (
    ("",),  # the package itself, which holds the version
    ("errors",),
    ("system",),
    ("config",),
    ("data", "distributed", "models", "runs"),
    ("export.formats",),
    ("callbacks", "cli", "performance"),
    ("engine",),
)
COMMANDS = (
    "train", "evaluate", "predict", "export", "demo", "submit", "prepare", "doctor", "benchmark", "report", "tune",
    "__main__",
)  # fmt: skip
BETWEEN_COMMANDS = {("benchmark", "prepare")}  # it packs images to measure how fast packed ones are read

# Parts of a command that rooms below it import; elsewhere, the first word of a module is its room.
SHARED_PARTS = ("export.formats",)

# Not imported before a command line is found good: each takes seconds.
HEAVY = {"torch", "torchvision", "lightning", "pytorch_lightning", "torchmetrics"}
# What runs before: the commands themselves, and with them all that they import.
EARLY = [
    *(name if (PACKAGE / f"{name}.py").is_file() else f"{name}.__main__" for name in COMMANDS),
    *(f"{package}.validate" for package in ("data", "distributed", "models", "runs")),
    *(f"data.sources.{name}" for name in ("folder", "imagenet", "table", "stl10", "packed", "streamed", "shapes")),
    "engine.worker",
    "report.leaderboard",
    "report.page",
    "runs.plots",
]


@dataclass(frozen=True)
class Edge:
    importer: str  # module inside the project, "data.loader"; "" is the package
    imported: str  # the same, or the name of another project's module
    inside: bool  # imported is one of the project's modules
    at_start: bool  # runs when the importer is imported: not in a function
    line: int


def modules(package: Path) -> dict[str, Path]:
    """Dotted name inside the project -> file; a folder's name stands for its __init__.py."""
    names = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


@cache
def edges(package: Path) -> list[Edge]:
    known = modules(package)
    found = []
    for importer, path in known.items():
        here = [PROJECT, *importer.split(".")] if importer else [PROJECT]
        package_parts = here if path.name == "__init__.py" else here[:-1]
        for name, at_start, line in _imports(ast.parse(path.read_text()), package_parts, True):
            project, _, inner = name.partition(".")
            if project == PROJECT:
                while inner and inner not in known:  # "data.loader.Batch" is a name in data.loader
                    inner = inner.rpartition(".")[0]
                found.append(Edge(importer, inner, True, at_start, line))
            else:
                found.append(Edge(importer, name, False, at_start, line))
    return found


def _imports(node: ast.AST, package_parts: list[str], at_start: bool) -> Iterator[tuple[str, bool, int]]:
    """(full dotted name, not in a function, line); of `from a import b` the name is a.b."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, at_start, child.lineno) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            above = package_parts[: len(package_parts) - child.level + 1] if child.level else []
            base = ".".join([*above, *([child.module] if child.module else [])])
            yield from ((f"{base}.{alias.name}", at_start, child.lineno) for alias in child.names)
        else:
            deferred = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            deferred |= isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)  # for pyright alone
            yield from _imports(child, package_parts, at_start and not deferred)


def room(module: str) -> str:
    shared = next((part for part in SHARED_PARTS if f"{module}.".startswith(f"{part}.")), None)
    return shared or module.partition(".")[0]


def layer(package: str) -> int | None:
    """Its number from the ground up; commands are above all; None: it has no place."""
    if package in COMMANDS:
        return len(LAYERS)
    return next((number for number, packages in enumerate(LAYERS) if package in packages), None)


def allowed(importer: str, imported: str) -> bool:
    above, below = layer(importer), layer(imported)
    assert above is not None and below is not None
    return importer == imported or below < above or (importer, imported) in BETWEEN_COMMANDS


def mistakes(package: Path) -> list[str]:
    """One sentence for every room without a place, forbidden edge, circle, and early import of a heavy library."""
    found = []
    all_edges = edges(package)
    rooms = {room(name) for name in modules(package)}
    unknown = {name for name in rooms if layer(name) is None}
    found += [f"{name} has no place in tests/test_layers.py" for name in sorted(unknown)]
    for edge in all_edges:
        importer, imported = room(edge.importer), room(edge.imported)
        if edge.inside and not {importer, imported} & unknown and not allowed(importer, imported):
            found.append(f"{edge.importer} line {edge.line}: must not import {edge.imported}")
    graph = {name: set[str]() for name in modules(package)}
    heavy = {name: set[str]() for name in graph}
    for edge in all_edges:
        if edge.at_start and edge.inside:
            graph[edge.importer].add(edge.imported)
        elif edge.at_start and edge.imported.partition(".")[0] in HEAVY:
            heavy[edge.importer].add(edge.imported)
    for name in graph:
        if path := _path(graph, name, {name}):  # an __init__.py that imports one of its own files is such a circle too
            found.append(f"{name} imports itself: {' -> '.join(path)}")
    loaded = {name for name in graph if heavy[name]}
    for name in EARLY:
        if path := [name] if name in loaded else _path(graph, name, loaded):
            library = min(heavy[path[-1]])
            found.append(f"{name} must start without {library}, but: {' -> '.join([*path, library])}")
    return list(dict.fromkeys(found))


def _path(graph: dict[str, set[str]], start: str, goals: set[str]) -> list[str]:
    """Shortest way of one import or more from start to one of the goals; empty where there is none."""
    ways, seen = [[start]], {start}
    for way in ways:
        wing = way[-1].rpartition(".")[0]  # whose __init__.py runs before the file itself
        for step in sorted(graph[way[-1]] | ({wing} if wing else set())):
            if step in goals:
                return [*way, step]
            if step not in seen:
                seen.add(step)
                ways.append([*way, step])
    return []


def test_every_import_is_allowed():
    assert mistakes(PACKAGE) == []


def test_every_room_and_early_file_is_there():
    there = modules(PACKAGE)
    assert not [
        name for name in [*(name for packages in LAYERS for name in packages), *COMMANDS, *EARLY] if name not in there
    ]
