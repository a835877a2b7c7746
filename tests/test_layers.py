"""Who may import whom, read from the source: imports run downward only."""

import ast
from dataclasses import dataclass
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
    ("export.graph",),
    ("export.formats",),
    ("callbacks", "cli"),
    ("engine",),
)
COMMANDS = (
    "train", "evaluate", "predict", "export", "demo", "submit", "prepare", "doctor", "benchmark", "report", "tune",
    "__main__",
)  # fmt: skip
BETWEEN_COMMANDS = {("benchmark", "prepare")}  # it packs images to measure how fast packed ones are read

# Parts of a command that rooms below it import; elsewhere, the first word of a module is its room.
SHARED_PARTS = ("export.graph", "export.formats")


@dataclass(frozen=True)
class Edge:
    importer: str  # module inside the project, "data.loader"; "" is the package
    imported: str
    line: int


def modules(package: Path) -> dict[str, Path]:
    """Dotted name inside the project -> file; a folder's name stands for its __init__.py."""
    names = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def edges(package: Path) -> list[Edge]:
    """Return every import of one module of the project by another."""
    known = modules(package)
    found = []
    for importer, path in known.items():
        here = [PROJECT, *importer.split(".")] if importer else [PROJECT]
        package_parts = here if path.name == "__init__.py" else here[:-1]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                above = package_parts[: len(package_parts) - node.level + 1] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                names = [f"{base}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                project, _, inner = name.partition(".")
                while inner and inner not in known:  # "data.loader.Batch" is a name in data.loader
                    inner = inner.rpartition(".")[0]
                if project == PROJECT:
                    found.append(Edge(importer, inner, node.lineno))
    return found


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


def test_every_import_is_allowed():
    rooms = {room(name) for name in modules(PACKAGE)}
    assert {name for name in rooms if layer(name) is None} == set(), "each has a place in the layers"
    assert [each for each in edges(PACKAGE) if not allowed(room(each.importer), room(each.imported))] == []


def test_every_room_is_there():
    there = modules(PACKAGE)
    assert [name for name in [*(name for names in LAYERS for name in names), *COMMANDS] if name not in there] == []
