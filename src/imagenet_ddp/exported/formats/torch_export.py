"""The graph as torch.export stores it."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagenet_ddp.exported.formats.base import KEY, Format, Function

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram

    from imagenet_ddp.exported.graph import Classifier


class TorchExport(Format):
    """A .pt2 file of torch.export."""

    name = "torch_export"
    suffix = ".pt2"
    is_safe = False  # torch.export.load unpickles, and evaluates expressions
    script_imports = ("torch",)
    script_code = """\
extra = {"{{ key }}": ""}
program = torch.export.load(Path(__file__).with_name("{{ file }}"), extra_files=extra)
metadata = json.loads(extra["{{ key }}"])
found = program.module()(torch.tensor(batch))
output, *familiarity = (each.detach().numpy() for each in (found if isinstance(found, tuple) else [found]))
"""

    def build(self, graph: "Classifier", batch_size: int | None) -> "ExportedProgram":
        return graph.export(batch_size)

    def save(self, built: "ExportedProgram", path: Path, metadata: str) -> None:
        import torch

        buffer = io.BytesIO()  # torch's own writer of files ends the process (SIGABRT) on a full disk
        torch.export.save(built, buffer, extra_files={KEY: metadata})
        path.write_bytes(buffer.getbuffer())

    def open(self, path: Path) -> tuple[Function, str] | None:
        import torch

        extra = {KEY: ""}
        program = torch.export.load(path, extra_files=extra)
        module: Any = program.module()

        def run(batch: "Tensor") -> "Sequence[Tensor]":
            found = module(batch)
            return found if isinstance(found, tuple) else (found,)

        return (run, extra[KEY]) if extra[KEY] else None
