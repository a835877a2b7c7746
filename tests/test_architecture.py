"""What docs/architecture.md says of the code holds."""

import ast
import re

from conftest import ROOT
from test_layers import MODULES, file_of, imports

TEXT = (ROOT / "docs" / "architecture.md").read_text()
PACKAGE = ROOT / "src" / "imagenet_ddp"
PUBLIC = {"_asdict", "_fields_"}  # of named tuples and ctypes: the underscore only avoids a clash of names


def test_the_reading_order_is_closed():
    """Each file of this package that one of the order imports is in the order, or among the leaves."""
    order, _, table = TEXT.partition("## Reading order")[2].partition("\n## ")[0].partition("| leaves in | files |")
    sheet = re.findall(r"^\d+\. `([\w/]+\.py)`", order, re.MULTILINE)
    lines = [(PACKAGE / name).read_text() for name in sheet]
    said = int(re.search(r"these (\d+) files, which have about ([\d,]+) lines", order)[2].replace(",", ""))  # type: ignore[index]
    assert abs(sum(text.count("\n") for text in lines) - said) < 0.05 * said
    leaves = {"__init__.py", "system/"}
    for folder, names in re.findall(r"^\| (?:`(\w+/)`|the top) \| (.*) \|$", table, re.MULTILINE):
        leaves |= {f"{folder}{name}" for name in re.findall(r"`([\w/]+?(?:\.py|/))`", names)}
    assert [name for name in leaves if not (PACKAGE / name).exists()] == []
    file = {
        module: "__init__.py" if path.name == "__init__.py" else str(path.relative_to(PACKAGE))
        for module, path in MODULES.items()
    }
    used = {file[file_of(name)] for _, importer, name in imports() if file[importer] in sheet}
    folders = tuple(leaf for leaf in leaves if leaf.endswith("/"))
    unnamed = {each for each in used if each not in (*sheet, *leaves) and not each.startswith(folders)}
    assert unnamed == set(), "name them in the reading order or among its leaves"


def test_every_package_is_in_the_diagram():
    packages = {
        path.parent.name for path in PACKAGE.glob("*/__init__.py") if not (path.parent / "__main__.py").exists()
    }
    diagram = TEXT.partition("```mermaid\ngraph")[2].partition("```")[0]
    assert packages == set(re.findall(r"^  (\w+)\[", diagram, re.MULTILINE)) - {"commands"}


def test_private_names_of_other_packages_are_in_the_table():
    trees = [ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("self", "cls")
    }
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    used |= {
        node.args[1].value
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "setattr")
        if isinstance(node.args[1], ast.Constant) and isinstance(node.args[1].value, str)
    }
    compared = [each for node in nodes if isinstance(node, ast.Compare) for each in node.comparators]
    names = {each.value for each in compared if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    used |= {name for name in names if not name.endswith("_")}  # _target_ is Hydra's, and public
    private = {name for name in used if re.match(r"_[^_]", name)} - own - PUBLIC - {"_exit"}
    table = TEXT.partition("## Private names")[2].partition("\n## ")[0]
    listed = {
        name
        for cell in re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)
        for name in re.findall(r"`[^`]*?(_\w+)`", cell)
    }
    assert private <= listed <= used
    tests = re.findall(r"`(tests/[\w/]+\.py)`", table)
    assert tests and all((ROOT / name).is_file() for name in tests)
