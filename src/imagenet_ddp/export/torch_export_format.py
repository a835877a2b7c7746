"""Write a .pt2 file of torch.export."""

from pathlib import Path

import torch

from imagenet_ddp.export.graph import Classifier
from imagenet_ddp.runs.checkpoint_file import KEY


def build(graph: Classifier, batch_size: int | None) -> torch.export.ExportedProgram:
    return graph.export(batch_size)


def save(program: torch.export.ExportedProgram, path: Path, metadata: str) -> None:
    torch.export.save(program, path, extra_files={KEY: metadata})
