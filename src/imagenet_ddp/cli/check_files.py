"""Find text in the files of --config-dir that YAML reads as something else: 2024_11_26 as 20241126, 1.10 as 1.1."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from yaml.nodes import MappingNode, Node, ScalarNode

from imagenet_ddp.cli.options import Files
from imagenet_ddp.config import conf_dir
from imagenet_ddp.config.schema.keys import Key
from imagenet_ddp.mistakes import Mistake


def validate(files: Files, choices: Iterable[Mapping[str, str]], keys: Mapping[str, Key]) -> list[Mistake]:
    """Return the mistakes in the files of --config-dir that are chosen. choices: of each job, group -> name of its
    file."""
    named = [(f"{files.config_name}.yaml", "")]
    named += [(f"{group}/{name}.yaml", group.replace("/", ".")) for each in choices for group, name in each.items()]
    folder = files.own_folder or conf_dir()
    # if both folders have a file of the same name, Hydra reads that of conf/
    read = [(folder / file, package) for file, package in dict.fromkeys(named) if not (conf_dir() / file).is_file()]
    return [mistake for file, package in read if file.is_file() for mistake in _of_file(file, package, keys)]


def _of_file(file: Path, package: str, keys: Mapping[str, Key]) -> Iterator[Mistake]:
    text = file.read_text(encoding="utf-8")
    header = next((line for line in text.splitlines() if line.startswith("# @package")), f"# @package {package}")
    package = header.split()[-1] if len(header.split()) == 3 else ""
    for path, node in _scalars(yaml.compose(text), "" if package == "_global_" else package):
        key = keys.get(path)
        if key is None or key.type is not str or node.style is not None:
            continue
        read: Any = OmegaConf.to_container(OmegaConf.create(f"value: {node.value}"), resolve=False)
        value = read["value"]
        if value is not None and str(value) != node.value:
            yield Mistake(
                f"{path} must be text in quotes in {file} (line {node.start_mark.line + 1}), because YAML reads "
                f"{node.value} as {value}",
                (path,),
                hint=f"write {path.rpartition('.')[2]}: '{node.value}' there",
            )


def _scalars(node: Node | None, path: str) -> Iterator[tuple[str, ScalarNode]]:
    """Yield (key path, value) of each value in a mapping and in those that it contains."""
    if isinstance(node, ScalarNode):
        yield path, node
    elif isinstance(node, MappingNode):
        for name, value in node.value:
            yield from _scalars(value, f"{path}.{name.value}".lstrip("."))
