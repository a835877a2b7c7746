"""List the export formats. A further format is its file in this folder and a row here; if it needs packages, also an
extra in pyproject.toml."""

from pathlib import Path

from imagenet_ddp.export.formats.base import Format
from imagenet_ddp.export.formats.onnx import Onnx
from imagenet_ddp.export.formats.safetensors import Safetensors
from imagenet_ddp.export.formats.torch_export import TorchExport

FORMATS: dict[str, Format] = {each.name: each for each in (Onnx(), TorchExport(), Safetensors())}


def graph_format(path: Path | str | None) -> Format | None:
    """Return the format of an exported file that predict can read; None for a checkpoint or another file."""
    suffix = Path(path).suffix if path is not None else ""
    return next((each for each in FORMATS.values() if each.has_graph and each.suffix == suffix), None)
