"""Write classify.py, a short program that uses an exported file without this project."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from imagenet_ddp.data.transforms import mean_colour
from imagenet_ddp.exported.formats.base import KEY, Format
from imagenet_ddp.system.files import contains

NAME = "classify.py"
_MADE_BY = "Written by python -m imagenet_ddp.export."  # identifies it
_STANDARD_LIBRARY = ("base64", "re")  # modules that formats name


def text(metadata: Mapping[str, Any], kind: Format, file: str, name: str) -> str:
    """Return the program; "" for weights of a net that no library makes. metadata, file: of the exported file. name: of
    the program."""
    seen, model, net, libraries = metadata["eval_transform"], metadata["model"], "", {*kind.script_imports}
    if not kind.has_graph:
        if model["_target_"] or model["blur_pool"] or model["args"]:
            return ""
        maker = {"torchvision": "torchvision.models.get_model", "timm": "timm.create_model"}[model["library"]]
        net = f"{maker}({json.dumps(model['name'])}, num_classes={len(metadata['classes'])})"
        libraries.add(model["library"])
    modules, libraries = libraries & {*_STANDARD_LIBRARY}, libraries - {*_STANDARD_LIBRARY}
    environment, file = templates(), _quoted(file)
    return environment.get_template(f"{NAME}.jinja").render(
        file=file, name=name, metadata=metadata, seen=seen, size=seen["image_size"],
        fill=mean_colour(tuple(seen["mean"])), has_graph=kind.has_graph,
        normalised=metadata["preprocessing"] not in ("inside", "normalise"),
        resizes=metadata["preprocessing"] != "inside", packages=sorted({"numpy", "pillow", *libraries}),
        modules=sorted({"json", "sys", *modules}), imports=sorted({"numpy as np", *libraries}), made_by=_MADE_BY,
        code=environment.from_string(kind.script_code).render(file=file, key=KEY, net=net),
    )  # fmt: skip


def templates() -> Environment:
    """Return the environment of the templates in this folder, whose results are no HTML."""
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip


def is_program(path: Path) -> bool:
    """Return whether the file is a program that export wrote."""
    return contains(path, _MADE_BY)


def is_of(path: Path, file: str) -> bool:
    """Return whether a program that export wrote is that of a model file of this name."""
    return contains(path, f"Classify a picture with {_quoted(file)}: python ")


def _quoted(name: str) -> str:
    """Return a name as it stands between quotes of Python."""
    return json.dumps(name)[1:-1]
