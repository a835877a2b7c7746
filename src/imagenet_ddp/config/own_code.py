"""Find a misspelt _target_ before anything is imported: a module or class of one's own, or of a package.

Only files are read, because importing them may take long and runs their code. What cannot be told from the files is
left to the import: C extensions, `import *`, names that are made while a module runs.
"""

import ast
import hashlib
import importlib.util
import pkgutil
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from imagenet_ddp.config.section import OF_ENTRIES, WITH_ARGS, leaves
from imagenet_ddp.mistakes import Fix, Mistake
from imagenet_ddp.system.packages import extra_with, missing_package
from imagenet_ddp.system.text import near_names, shorten_list

DYNAMIC = re.compile(r"import \*|__getattr__|globals\(|setattr\(|exec\(|lazy")  # names that no reader can find
SURE = 0.75  # of get_close_matches: a submodule, where the package may have more names than its source
MOST_SHOWN = 8  # names in a message


# Groups of which an object is made -> the number of words before its _target_: the group, or one of its entries.
_MADE = dict.fromkeys(WITH_ARGS, 1) | dict.fromkeys(OF_ENTRIES, 2)


def validate_targets(config: Mapping[str, Any]) -> list[Mistake]:
    """Return a mistake for each _target_ that does not exist, and for each in the arguments of a class, of which no
    object is made."""
    found: list[Mistake] = []
    for path, value, entry in _targets(config):
        if path == f"{entry}._target_":
            found += validate(path, value)
            continue
        what = f"{path} has no effect, because the arguments of a class are plain values"
        hint = f"set {entry}._target_ to a function of your own, which makes that object, too"
        found.append(Mistake(what, (path,), hint=hint))
    return found


def _targets(config: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Yield (key path, value, path of the group or entry that it is in) of each _target_, also in arguments."""
    for group, num_words in _MADE.items():
        for path, value in leaves(config[group], f"{group}.").items():
            if path.endswith("._target_"):
                yield path, value, ".".join(path.split(".")[:num_words])


def digests(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a hash of each file of the user's own code that the _target_s of a config name, or that such a file
    imports, as {"the code of mypkg.nets": hash}. Code that is installed is left out."""
    found: dict[str, str] = {}
    waiting = [str(target) for path, target, entry in _targets(config) if path == f"{entry}._target_"]
    while waiting:
        words, folders = waiting.pop().split("."), None
        for number in range(1, len(words) + 1):
            module = ".".join(words[:number])
            spec = PathFinder.find_spec(module, folders)
            if spec is None or _is_installed(spec):
                break
            name = f"the code of {module}"
            if name not in found and (spec.origin or "").endswith(".py"):
                content = Path(str(spec.origin)).read_bytes()
                found[name] = hashlib.sha256(content).hexdigest()[:12]
                waiting += _imported(content, spec.name if spec.submodule_search_locations else spec.parent or "")
            if spec.submodule_search_locations is None:
                break
            folders = list(spec.submodule_search_locations)
    return found


def _is_installed(spec: ModuleSpec) -> bool:
    """Return whether a module belongs to Python, to a library or to this package, which are compared by themselves."""
    folder = Path(next(iter(spec.submodule_search_locations or ()), spec.origin or "")).resolve()
    is_library = any(folder.is_relative_to(each) for each in map(Path, sysconfig.get_paths().values()))
    return is_library or spec.name.partition(".")[0] == "imagenet_ddp"


def _imported(source: bytes, package: str) -> list[str]:
    """Return the names that a source file imports, each with its module. package: in which the file is."""
    try:
        tree = ast.parse(source)
    except (ValueError, SyntaxError):
        return []
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (package or not node.level):
            module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            found += [f"{module}.{alias.name}" for alias in node.names]
    return found


def validate(key: str, target: object) -> list[Mistake]:
    """Return a mistake if no module, or nothing in its module, has the name of a _target_. key: its config key."""
    if not isinstance(target, str) or not target:
        return []
    words = target.split(".")
    if not all(map(str.isidentifier, words)) or len(words) == 1:
        what = f"{key} must be MODULE.NAME, such as mymodule.MyClass, got {target}"
        return [Mistake(what, (key,), _fixes(key, [f"{module}.{target}" for module in _own_modules(target)]))]
    folders: Sequence[str] | None = None  # those that Python searches
    for number, word in enumerate(words):
        before = "".join(f"{each}." for each in words[:number])
        spec = PathFinder.find_spec(before + word, folders)
        if spec is None and number == 0:
            return _no_module(key, target, folders)
        if spec is None:
            return []
        if spec.submodule_search_locations is None or not _has_module(spec, words[number + 1 :]):
            return _in_module(key, target, before + word, spec, words[number + 1 :])
        folders = list(spec.submodule_search_locations)
    return []


def _has_module(spec: ModuleSpec, rest: Sequence[str]) -> bool:
    folders = list(spec.submodule_search_locations or ())
    return bool(rest) and PathFinder.find_spec(f"{spec.name}.{rest[0]}", folders) is not None


def _no_module(key: str, target: str, folders: Sequence[str] | None) -> list[Mistake]:
    module, _, rest = target.partition(".")
    if module in sys.builtin_module_names:
        return []
    if extra_with(module) and (missing := missing_package(f"{key}={target}", module)):
        return missing
    own = _modules([str(Path.cwd())])
    near = near_names(module, own, 1) or near_names(module, _modules(folders), 1)
    what = f"{key} must name a class or function that can be imported, but there is no module {module}, got {target}"
    hint = "" if near else f"put {module}.py into the current folder, or its folder into PYTHONPATH"
    return [Mistake(what, (key,), _fixes(key, [f"{each}.{rest}" for each in near]), hint)]


def _in_module(key: str, target: str, module: str, spec: ModuleSpec, rest: Sequence[str]) -> list[Mistake]:
    """Return a mistake if the source of a module surely lacks a name. rest: the words of the target after it."""
    try:
        text = Path(spec.origin or "").read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError):  # a mistake in the module itself is reported with its place
        return []
    if spec.origin is None or not spec.origin.endswith(".py"):
        return []
    defined = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    if not rest:
        what = f"{key} must be MODULE.NAME, got the module {target}"
        return [Mistake(what, (key,), _fixes(key, [f"{target}.{name}" for name in defined])[:1])]
    folders = list(spec.submodule_search_locations or ())
    near = get_close_matches(rest[0], _modules(folders, empty=True), 1, SURE) if len(rest) > 1 else []
    if re.search(rf"\b{re.escape(rest[0])}\b", text) or (DYNAMIC.search(text) and not near):
        return []
    imported = [
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    near = near or near_names(rest[0], [*defined, *imported], 1)
    end = "".join(f".{word}" for word in rest[1:])
    has = f", which has {shorten_list(defined, MOST_SHOWN)}" if defined else ""
    what = f"{key} must name a class or function that exists, but {module} has no {rest[0]}, got {target}"
    hint = "" if near else f"correct the name in {module}{has}"
    return [Mistake(what, (key,), _fixes(key, [f"{module}.{name}{end}" for name in near]), hint)]


def _fixes(key: str, targets: Sequence[str]) -> tuple[Fix, ...]:
    return tuple(Fix((f"{key}={target}",), is_meant=len(targets) == 1) for target in targets)


def _modules(folders: Sequence[str] | None, *, empty: bool = False) -> list[str]:
    """Return the names of the modules in these folders; None: in all that Python searches."""
    return [] if empty and not folders else [each.name for each in pkgutil.iter_modules(folders)]


def _own_modules(name: str) -> list[str]:
    """Return the module in the current folder that defines this class or function."""
    define = re.compile(rf"^(class|def) {re.escape(name)}\b", re.MULTILINE)
    files = sorted(Path().glob("*.py"))
    return [file.stem for file in files if define.search(file.read_text(encoding="utf-8", errors="replace"))][:1]
