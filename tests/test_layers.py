"""Who may import whom, read from the source: imports run downward only."""

import ast
from collections.abc import Iterator

from conftest import ROOT

SOURCE = ROOT / "src"
PROJECT = "imagenet_ddp"

# From the ground up; a package may import those of the lines above it, and of its own line only itself.
LAYERS = (
    ("__init__",),  # the package itself, which holds the version
    ("mistakes",),
    ("errors",),
    ("system",),
    ("distributed",),
    ("config",),
    ("data", "models", "runs", "strategies"),
    ("export.graph",),
    ("export.formats",),
    ("callbacks", "cli"),
    ("launch",),
    ("training",),
    ("use",),
    ("train", "evaluate", "predict", "export", "demo", "submit", "prepare", "doctor", "benchmark", "report", "tune",
     "__main__"),
)  # fmt: skip
LAYER_OF = {package: number for number, packages in enumerate(LAYERS) for package in packages}
# benchmark packs images to measure how fast packed ones are read; `from imagenet_ddp import load` imports when used
EXCEPTIONS = {("benchmark", "prepare"), ("__init__", "use")}


def package_of(module: str) -> str:
    """Return the package of LAYERS that a module is in, such as "data" for imagenet_ddp.data.loader."""
    first, second = (*module.split("."), "__init__", "")[1:3]
    return f"{first}.{second}" if f"{first}.{second}" in LAYER_OF else first


def imports() -> Iterator[tuple[str, str, str]]:
    """Yield (place, importing package, imported package) of every import in the project."""
    for path in sorted((SOURCE / PROJECT).rglob("*.py")):
        importer = package_of(".".join(path.relative_to(SOURCE).with_suffix("").parts))
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            assert not getattr(node, "level", 0), f"{path}: relative imports are not read here"
            above = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for name in (f"{above}{alias.name}" for alias in node.names):
                if name.partition(".")[0] == PROJECT:
                    imported = package_of(name)
                    yield f"{path}:{node.lineno}", importer, imported if imported in LAYER_OF else "__init__"


def test_every_import_is_allowed():
    assert [
        each
        for each in imports()
        if each[1] != each[2] and each[1:] not in EXCEPTIONS and LAYER_OF[each[1]] <= LAYER_OF[each[2]]
    ] == []


def test_every_package_has_a_layer():
    top = SOURCE / PROJECT
    found = {path.stem for path in top.glob("*.py")} | {path.parent.name for path in top.glob("*/__init__.py")}
    assert found == {name for name in LAYER_OF if "." not in name}
