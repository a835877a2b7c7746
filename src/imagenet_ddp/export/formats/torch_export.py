"""Write and read a .pt2 file of torch.export."""

import io
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile

from imagenet_ddp.export.formats.base import KEY, Format, Function

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from imagenet_ddp.export.formats.graph import Classifier


class TorchExport(Format):
    name = "torch_export"
    suffix = ".pt2"
    card_imports = ("torch",)
    card_code = """\
extra = {"{{ key }}": ""}
program = torch.export.load("{{ file }}", extra_files=extra)
metadata = json.loads(extra["{{ key }}"])
output = program.module()(torch.tensor(batch))[0].detach().numpy()
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

        with ZipFile(path) as archive:  # for any other file, torch.export.load logs a traceback before it raises
            if not any(name.endswith(f"/extra/{KEY}") for name in archive.namelist()):
                return None
        extra = {KEY: ""}
        program = torch.export.load(path, extra_files=extra)
        return program.module(), extra[KEY]
