"""Of a pack that was broken off: which of its shards are there, and are of the images as they are now."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.packed.manifest import WORK
from imagenet_ddp.errors import RunError
from imagenet_ddp.prepare.pack import shards
from imagenet_ddp.prepare.pack.fingerprint import Names, states_of
from imagenet_ddp.prepare.pack.shards import Shard, Written
from imagenet_ddp.system.text import count_noun


class Unfinished:
    """states: split -> int64 (N, 3), another row when an image's file changes (fingerprint.states_of). Kept beside
    each shard in WORK, and gone when the pack is finished: times are no part of its bytes."""

    def __init__(self, out: Path, states: Mapping[str, np.ndarray]):
        self._out, self._states = out, states

    def written(self, shard: Shard) -> Written | None:
        """What an earlier run wrote; None: nothing, or its images have changed since."""
        return shards.finished(self._out, shard) if self._kept(shard) == self._now(shard) else None

    def is_outdated(self, shard: Shard) -> bool:
        kept = self._kept(shard)
        return kept is not None and kept != self._now(shard)

    def begin(self, shard: Shard) -> None:
        """What lies there is about to become other images'."""
        self._file(shard).unlink(missing_ok=True)

    def end(self, shard: Shard) -> None:
        shards.save(self._file(shard), self._now(shard))

    def expect_unchanged(self, images: Mapping[str, Images], names: Mapping[str, Names]) -> None:
        """Once all shards are written. RunError: a file that is still there has another size or time, so that what was
        packed is neither the old set nor the new."""
        changed: list[str] = []
        for split, members in images.items():
            old, new = self._states[split][:, :2], states_of(members)[:, :2]
            differ = (old != new).any(axis=1) & (old[:, 0] >= 0) & (new[:, 0] >= 0)
            changed += [f"{split}/{names[split][index]}" for index in np.flatnonzero(differ).tolist()]
        if changed:
            raise RunError(
                f"{count_noun(len(changed), 'image')} changed while all were packed, the first {changed[0]}. "
                "Hint: type the same again: only what holds changed images is made anew."
            )

    def _kept(self, shard: Shard) -> bytes | None:
        try:
            return self._file(shard).read_bytes()
        except FileNotFoundError:
            return None

    def _now(self, shard: Shard) -> bytes:
        return self._states[shard.split][shard.indices].astype("<i8").tobytes()

    def _file(self, shard: Shard) -> Path:
        return self._out / WORK / f"{shard.file}.states"
