"""Describe published archives and the sizes of files."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Archive:
    """A published archive. num_bytes: its size."""

    name: str
    num_bytes: int
    url: str = ""
    md5: str = ""

    def wrong_size(self, folder: Path) -> list[str]:
        """Return a message if the size of the file shows that it is not the archive, else an empty list."""
        path = folder / self.name
        size = path.stat().st_size
        if size == self.num_bytes:
            return []
        why = "the download or copy is incomplete" if size < self.num_bytes else "it is another file"
        return [
            f"{path} must be {self.num_bytes:,} bytes, got {size:,}: {why}. Hint: delete the file and download it "
            "again."
        ]


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
