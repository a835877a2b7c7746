"""List the formats of exported files. A further one is a class in a file of this folder and its entry here; if it
needs packages, also an extra in pyproject.toml."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imagenet_ddp.exported.formats.base import Format
from imagenet_ddp.exported.formats.html import Html
from imagenet_ddp.exported.formats.onnx import Onnx, OnnxFp16
from imagenet_ddp.exported.formats.openvino import OpenVino
from imagenet_ddp.exported.formats.safetensors import Safetensors
from imagenet_ddp.exported.formats.torch_export import TorchExport

_ALL = (Onnx(), OnnxFp16(), OpenVino(), TorchExport(), Safetensors(), Html())
FORMATS: dict[str, Format] = {each.name: each for each in _ALL}


def format_of(config: Mapping[str, Any]) -> Format:
    """Return the format that export writes. config: with the keys of ExportConfig."""
    return FORMATS[config["format"] or ("safetensors" if config["push"] else "onnx")]


def graph_format(path: Path | str | None) -> Format | None:
    """Return the format of an exported file with a graph; None for a checkpoint or another file."""
    suffix = Path(path).suffix if path is not None else ""
    return next((each for each in FORMATS.values() if each.has_graph and each.suffix == suffix), None)
