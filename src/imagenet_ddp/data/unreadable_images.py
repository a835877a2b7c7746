"""Handle images that cannot be read, according to data.on_bad_image and data.bad_image_limit.

Loader workers only report the unreadable images of a batch (Batch.unreadable). The training process decides what to do
about them, so that one decision applies to all its workers, and to all ranks if they share a board.
"""

import math
from collections.abc import Callable
from typing import Protocol

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.errors import RunError
from imagenet_ddp.system.text import count_noun

Bad = tuple[str, str]  # path, reason
SAID = 5  # number of unreadable images that each rank names in the log; bad_images.csv lists the others


class Board(Protocol):
    """Shared record of the bad images that the ranks of a run have found."""

    def post(self, images: list[Bad]) -> int:
        """Add the images, and return the number of different bad images that all ranks have found so far."""
        ...

    def all(self) -> list[Bad]:
        """Return the bad images of all ranks, sorted by path. Each path occurs once."""
        ...


class LocalBoard:
    """The board of a single process."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}

    def post(self, images: list[Bad]) -> int:
        self._found.update(images)
        return len(self._found)

    def all(self) -> list[Bad]:
        return sorted(self._found.items())


class BadImages:
    """Log unreadable images, and end the run if there are too many. num_images: number of training images. board:
    shared by the ranks; None: a board of this process alone. say: writes a line to the log."""

    def __init__(
        self,
        data: DataConfig,
        num_images: int,
        board: Board | None = None,
        say: Callable[[str], None] = print,
        hint: str | None = None,
    ):
        self._raises, self._say = data.on_bad_image == "raise", say
        limit = data.bad_image_limit
        # a share is rounded up, so that only a limit of 0 allows no unreadable image
        self.most = int(limit) if limit >= 1 else math.ceil(limit * num_images)
        self._share = f" ({limit:g} of {num_images} images)" if limit < 1 else ""
        what = ("" if data.target else f" data={data.name}") + (f" data.root={data.root}" if data.root else "")
        self._hint = hint or f"run `python -m imagenet_ddp.prepare prepare=check{what}` to list all unreadable images"
        self.board: Board = board or LocalBoard()
        self._seen: set[str] = set()

    def on_bad_images(self, images: list[Bad]) -> None:
        """Log each unreadable image that is new. Raises RunError at the first unreadable image
        (data.on_bad_image=raise), or if all ranks have found more of them than the limit allows (skip)."""
        new = [(path, reason) for path, reason in dict(images).items() if path not in self._seen]
        if not new:
            return
        if self._raises:
            path, reason = new[0]
            raise RunError(
                f"{path} must be an image, but cannot be read: {reason}. Hint: set data.on_bad_image=skip to leave out "
                f"up to {count_noun(self.most, 'unreadable image')} (data.bad_image_limit), or {self._hint}."
            )
        for path, reason in new:
            self._seen.add(path)
            if len(self._seen) <= SAID:
                self._say(f"Skipped {path}, because it cannot be read: {reason}.")
            if len(self._seen) == SAID:
                self._say("Further unreadable images found by this process are listed only in bad_images.csv.")
        found = self.board.post(new)
        if found > self.most:
            path, reason = new[-1]
            raise RunError(
                f"at most {count_noun(self.most, 'image')}{self._share} may be unreadable (data.bad_image_limit), but "
                f"{found} are, most recently {path}: {reason}. Hint: {self._hint}, or set "
                f"data.bad_image_limit={2 * found} to allow more of them."
            )
