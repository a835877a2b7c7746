"""Define what an export format consists of. registry.py lists the formats.

A command line is checked with these classes before torch is imported. Their methods therefore import torch, and the
packages that the format needs, themselves.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from imagenet_ddp.export.formats.graph import Classifier

KEY = "imagenet_ddp"  # of the metadata of this project in a file
Function = Callable[["Tensor"], "Tensor"]  # (B, 3, H, W) -> (B, num_classes)


class Format(ABC):
    """One value of format=. `built` is whatever `build` returns."""

    name: str
    suffix: str
    packages: tuple[str, ...] = ()  # that write and read a file
    reader_packages: tuple[str, ...] = ()  # those that predict needs
    requirement: str = ""  # what to install for them
    has_graph = True  # False: the file has the weights alone
    has_int8 = False
    library_name = "pytorch"  # in the header of the model card
    card_imports: tuple[str, ...]  # of the card's program
    card_code: str  # lines of that program, a Jinja template: batch -> metadata, and output (num_classes,)

    def check(self, config: Mapping[str, Any]) -> list[str]:
        """Return the mistakes in options of export that only this format has."""
        return []

    @abstractmethod
    def build(self, graph: "Classifier", batch_size: int | None) -> Any:
        """Convert the graph. batch_size: None for any size. Raises ConfigError or RunError if it cannot be
        converted."""

    @abstractmethod
    def save(self, built: Any, path: Path, metadata: str) -> None: ...

    def quantise(self, path: Path, batches: "Iterable[Tensor]") -> Any:
        """Return the model of a file, converted to 8 bits. batches: inputs for the calibration."""
        raise NotImplementedError(f"{self.name} has no 8-bit files")

    def open(self, path: Path) -> "tuple[Function, str] | None":
        """Return (the graph on the CPU, the metadata); None if export did not write the file. Raises any exception for
        a file of another kind."""
        raise NotImplementedError(f"{self.name} has no graph")

    def read_weights(self, path: Path) -> "dict[str, Tensor]":
        """Return the weights of a file without a graph."""
        raise NotImplementedError(f"{self.name} has a graph")
