"""Share the list of bad images between the ranks of a run."""

import hashlib
from collections.abc import Callable
from functools import cached_property

from imagenet_ddp.distributed.connection import Messages, as_posted


class SharedBoard:
    """The board of several ranks, which share it through the store, without a collective, so that no rank waits.

    store_client: opens a new connection to the store; called on first use.
    """

    def __init__(self, store_client: Callable[[], Messages]):
        self._store_client = store_client

    @cached_property
    def _store(self) -> Messages:
        return self._store_client()

    def post(self, images: list[tuple[str, str]]) -> int:
        """Add images, each as (path, reason). Return the number of different paths that all ranks have added so far."""

        def key(path: str) -> str:
            return f"bad_images/seen/{hashlib.sha256(path.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"

        new = [each for each in images if self._store.add(key(each[0]), 1) == 1]
        self._store.append("bad_images/lines", new)
        return self._store.add("bad_images/count", len(new))

    def all(self) -> list[tuple[str, str]]:
        """Return the images of all ranks, sorted."""
        if not self._store.has("bad_images/lines"):
            return []
        with as_posted("bad_images/lines"):
            reasons = {str(path): str(reason) for path, reason in self._store.get_lines("bad_images/lines")}
        return sorted(reasons.items())
