"""Share a list of bad images between ranks through the rendezvous store, without a collective, so no rank waits."""

import hashlib
import json
from collections.abc import Callable
from functools import cached_property
from typing import Any, cast

from torch.distributed import Store


class SharedList:
    """List of bad images that all ranks share.

    store_client: opens a new connection to the store; called on first use.
    """

    def __init__(self, store_client: Callable[[], Store]):
        self._store_client = store_client

    @cached_property
    def _store(self) -> Store:
        return self._store_client()

    def post(self, images: list[tuple[str, str]]) -> int:
        """Add images, each as (path, reason). Return the number of different paths that all ranks have added so far."""
        new = [each for each in images if self._store.add(f"bad_images/seen/{_digest(each[0])}", 1) == 1]
        lines = "".join(json.dumps(each) + "\n" for each in new)
        cast(Any, self._store).append("bad_images/lines", lines)  # torch's type stubs do not have append
        return self._store.add("bad_images/count", len(new))

    def all(self) -> list[tuple[str, str]]:
        """Return the images of all ranks, sorted."""
        if not self._store.check(["bad_images/lines"]):
            return []
        lines = cast(bytes, self._store.get("bad_images/lines")).decode().splitlines()
        return sorted(dict(json.loads(line) for line in lines).items())


def _digest(path: str) -> str:
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:16]
