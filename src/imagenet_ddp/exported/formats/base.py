"""Define what a format of exported files is.

A command line is checked before torch is imported. The methods of the formats therefore import torch, and the packages
that the format needs, themselves.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagenet_ddp.mistakes import Mistake
from imagenet_ddp.system.packages import missing_package

if TYPE_CHECKING:
    from torch import Tensor

    from imagenet_ddp.exported.graph import Classifier

KEY = "imagenet_ddp"  # of the metadata of this project in a file
CARD = "README.md"
CONFIG = "config.json"  # timm's, in a repository of the hub
# (B, 3, H, W) -> [(B, num_classes)], followed by the familiarity, (B,), if the file has it
Function = Callable[["Tensor"], "Sequence[Tensor]"]


class Format(ABC):
    """One value of format=. `built` is whatever `build` returns."""

    name: str
    suffix: str
    also: tuple[str, ...] = ()  # suffixes of further files of the same name, which belong to it
    packages: tuple[str, ...] = ()  # that write and read a file
    reader_packages: tuple[str, ...] = ()  # those that predict needs
    requirement: str = ""  # what to install for them
    has_graph = True  # False: the file has the weights alone
    only: Mapping[str, Any] = {}  # options of export of which it allows a single value
    is_safe = True  # False: reading a file runs code of its author, so predict and demo do not
    library_name = "pytorch"  # in the header of the model card
    script_imports: tuple[str, ...]  # of the program beside the file
    # lines of that program, a Jinja template: batch -> metadata, output (B, num_classes), familiarity [(B,)] or []
    script_code: str

    def max_difference(self, preprocessing: str | None) -> float:
        """Return the largest difference of a probability from the checkpoint's that export accepts by default."""
        return 1e-3

    def missing(self) -> list[Mistake]:
        """Return a mistake if something that export needs is not installed."""
        return missing_package(f"format={self.name}", *self.packages, requirement=self.requirement)

    @abstractmethod
    def build(self, graph: "Classifier", batch_size: int | None) -> Any:
        """Convert the graph. batch_size: None for any size. Raises RunError if it cannot be converted."""

    def candidates(self, graph: "Classifier", batch_size: int | None) -> Iterator[Any]:
        """Yield what may be saved. Export keeps the first that agrees with the checkpoint."""
        yield self.build(graph, batch_size)

    @abstractmethod
    def save(self, built: Any, path: Path, metadata: str) -> None: ...

    def paths(self, path: Path) -> list[Path]:
        """Return the files that `save` writes. path: the first of them."""
        return [path, *(path.with_suffix(suffix) for suffix in self.also)]

    def open(self, path: Path) -> "tuple[Function, str] | None":
        """Return (the graph on the CPU, the metadata); None if export did not write the file. Raises any exception for
        a file of another kind."""
        raise NotImplementedError(f"{self.name} has no graph")

    def read_weights(self, path: Path) -> "dict[str, Tensor]":
        """Return the weights of a file without a graph."""
        raise NotImplementedError(f"{self.name} has a graph")
