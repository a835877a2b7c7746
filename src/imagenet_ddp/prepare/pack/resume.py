"""Resume an interrupted pack: find the shards that were written from the images as they are now."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.names import Names
from imagenet_ddp.data.sources.packed.manifest import WORK
from imagenet_ddp.errors import RunError
from imagenet_ddp.prepare.pack import shards
from imagenet_ddp.prepare.pack.fingerprint import file_states
from imagenet_ddp.prepare.pack.shards import Shard, WrittenShard
from imagenet_ddp.system.text import count_noun


class Resume:
    """Compares shards with the images they were made from. states: split -> file_states(). They are stored next to each
    shard in WORK, and deleted with it when the pack is finished."""

    def __init__(self, out: Path, states: Mapping[str, np.ndarray]):
        self._out, self._states = out, states

    def find(self, shard: Shard) -> WrittenShard | None:
        """Return what an earlier run wrote; None if it wrote nothing, or its images have changed since."""
        return shards.find(self._out, shard) if self._stored(shard) == self._current(shard) else None

    def is_outdated(self, shard: Shard) -> bool:
        stored = self._stored(shard)
        return stored is not None and stored != self._current(shard)

    def begin(self, shard: Shard) -> None:
        """Invalidate the stored states, before the shard is overwritten."""
        self._file(shard).unlink(missing_ok=True)

    def finish(self, shard: Shard) -> None:
        shards.save(self._file(shard), self._current(shard))

    def validate_unchanged(self, images: Mapping[str, Images], names: Mapping[str, Names]) -> None:
        """Raise RunError if a file changed while the shards were written: the pack would mix old and new images."""
        changed: list[str] = []
        for split, members in images.items():
            old, new = self._states[split][:, :2], file_states(members)[:, :2]
            differ = (old != new).any(axis=1) & (old[:, 0] >= 0) & (new[:, 0] >= 0)
            changed += [f"{split}/{names[split][index]}" for index in np.flatnonzero(differ).tolist()]
        if changed:
            raise RunError(
                f"{count_noun(len(changed), 'image')} changed during packing, the first {changed[0]}. Hint: run the "
                "same command again, which rebuilds only the shards with changed images."
            )

    def _stored(self, shard: Shard) -> bytes | None:
        try:
            return self._file(shard).read_bytes()
        except FileNotFoundError:
            return None

    def _current(self, shard: Shard) -> bytes:
        return self._states[shard.split][shard.indices].astype("<i8").tobytes()

    def _file(self, shard: Shard) -> Path:
        return self._out / WORK / f"{shard.file}.states"
