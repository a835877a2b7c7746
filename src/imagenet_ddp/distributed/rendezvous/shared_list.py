"""What any rank finds and all are to know, kept at the rendezvous store: no collective, and no rank waits for it."""

import hashlib
import json
from collections.abc import Callable
from typing import Any, cast

from torch.distributed import Store


class SharedList:
    """key: of this board. store_client: a new connection; made when there is something to say or to read."""

    def __init__(self, store_client: Callable[[], Store], key: str):
        self._store_client, self._key = store_client, key
        self._store: Store | None = None

    @property
    def _open(self) -> Store:
        if self._store is None:
            self._store = self._store_client()
        return self._store

    def post(self, images: list[tuple[str, str]]) -> int:
        """(path, reason) of each; how many different paths all ranks have posted so far."""
        new = [each for each in images if self._open.add(f"{self._key}/seen/{_digest(each[0])}", 1) == 1]
        lines = "".join(json.dumps(each) + "\n" for each in new)
        cast(Any, self._open).append(f"{self._key}/lines", lines)  # unknown to torch's stubs
        return self._open.add(f"{self._key}/count", len(new))

    def all(self) -> list[tuple[str, str]]:
        """Of all ranks, sorted."""
        if not self._open.check([f"{self._key}/lines"]):
            return []
        lines = cast(bytes, self._open.get(f"{self._key}/lines")).decode().splitlines()
        return sorted(dict(json.loads(line) for line in lines).items())


def _digest(path: str) -> str:
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:16]
