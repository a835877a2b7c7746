"""Write a .pt2 file of torch.export."""

import io
from pathlib import Path

import torch

from imagenet_ddp.export.graph import Classifier
from imagenet_ddp.runs.checkpoint_file import KEY


def build(graph: Classifier, batch_size: int | None) -> torch.export.ExportedProgram:
    return graph.export(batch_size)


def save(program: torch.export.ExportedProgram, path: Path, metadata: str) -> None:
    buffer = io.BytesIO()  # torch's own writer of files ends the process (SIGABRT) on a full disk
    torch.export.save(program, buffer, extra_files={KEY: metadata})
    path.write_bytes(buffer.getbuffer())
