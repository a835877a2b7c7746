"""Handle images that cannot be read, according to data.on_bad_image and data.bad_image_limit.

Loader workers only report what they found (Batch.unreadable). The training process decides here, so that the decision
is the same for all workers, and for all ranks if they share a board.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from imagenet_ddp.errors import RunError
from imagenet_ddp.system.text import count_noun

Bad = tuple[str, str]  # path, reason
SAID = 5  # images of a rank that the log names; the others are in bad_images.csv


class LoadError(RunError):
    """Raised when images cannot be loaded. If a loader process raises it, torch prepends that process's traceback to
    the message; this class removes it again."""

    def __init__(self, text: str):
        super().__init__(text.rpartition(f"{type(self).__name__}: ")[2].strip())


class Board(Protocol):
    """Where the ranks of a run report the bad images they found."""

    def post(self, images: list[Bad]) -> int:
        """Return how many different bad images all ranks have found so far."""
        ...

    def all(self) -> list[Bad]:
        """Return the bad images of all ranks, each path once, sorted."""
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


def max_bad_images(limit: float, num_images: int) -> int:
    """Return the number of images that may be unreadable. limit: data.bad_image_limit, a number of images or, below 1,
    a share of num_images; for a small set at least one image, so that only 0 allows none."""
    return int(limit) if limit >= 1 else math.ceil(limit * num_images)


def check_command(data: Mapping[str, Any]) -> str:
    """Return the command that lists all such images. data: the resolved data.* keys."""
    what = "" if data["_target_"] else f" data={data['name']}"
    root = f" data.root={data['root']}" if data["root"] else ""
    return f"`python -m imagenet_ddp.prepare prepare=check{what}{root}`"


class BadImages:
    """data: the resolved data.* keys. num_images: number of training images."""

    def __init__(
        self,
        data: Mapping[str, Any],
        num_images: int,
        board: Board | None = None,
        say: Callable[[str], None] = print,
    ):
        self._data, self._num_images, self._say = data, num_images, say
        self.most = max_bad_images(data["bad_image_limit"], num_images)
        self._check = check_command(data)
        self.board: Board = board or LocalBoard()
        self._seen: set[str] = set()

    def on_bad_images(self, images: list[Bad]) -> None:
        """Raise RunError at the first one (raise), or when there are more than the limit (skip)."""
        if self._data["on_bad_image"] == "raise" and images:
            path, reason = images[0]
            raise RunError(
                f"{path} must be an image, but cannot be read: {reason}. Hint: data.on_bad_image=skip "
                f"leaves out up to {self.most} such images (data.bad_image_limit); {self._check} lists them all."
            )
        new = [(path, reason) for path, reason in dict(images).items() if path not in self._seen]
        if not new:
            return
        for number, (path, reason) in enumerate(new, len(self._seen) + 1):
            if number <= SAID:
                self._say(f"Skipped, because it cannot be read: {path}: {reason}.")
            if number == SAID:
                self._say("Further ones found by this process are only listed in bad_images.csv.")
        self._seen.update(path for path, _ in new)
        found = self.board.post(new)
        if found > self.most:
            limit = self._data["bad_image_limit"]
            share = f" ({limit:g} of {self._num_images} training images)" if limit < 1 else ""
            raise RunError(
                f"at most {count_noun(self.most, 'image')}{share} may be unreadable (data.bad_image_limit), but "
                f"{found} are, the last one {new[-1][0]}: {new[-1][1]}. Hint: {self._check} lists them all; "
                f"data.bad_image_limit={2 * found} allows more."
            )
