"""The files of a run's checkpoints: the newest whole one, its disk, and a link to another disk."""

import random
from pathlib import Path

import pytest
import torch

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs.checkpoint_store import CheckpointStore, damage, require_whole


def spoil(path: Path, position: int = 2000) -> None:
    """Flip the bits of a byte of the weights, which torch.load does not notice."""
    content = bytearray(path.read_bytes())
    content[position] ^= 255
    path.write_bytes(content)


def with_weights(path: Path, step: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"step": step, "weights": torch.arange(3000.0)}, path)
    return path


def test_a_wrong_byte_is_seen_or_harmless(tmp_path: Path) -> None:
    path = with_weights(tmp_path / "x.ckpt", 1)
    good, draw = path.read_bytes(), random.Random(0)
    assert damage(path) == ""
    num_seen = 0
    for _ in range(300):
        path.write_bytes(good)
        spoil(path, draw.randrange(len(good)))
        if damage(path):
            num_seen += 1
            continue
        loaded = torch.load(path, weights_only=True)
        assert (loaded["step"], loaded["weights"].tolist()) == (1, list(range(3000))), "not in the padding"
    assert num_seen > 250
    for length in (0, 1, 100, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:length])
        assert damage(path), length


@pytest.mark.parametrize("how", ["a wrong byte", "cut off", "gone"])
def test_the_one_before_is_taken(tmp_path: Path, how: str) -> None:
    store = CheckpointStore(tmp_path)
    with_weights(store.last, 2)
    with_weights(store.previous, 1)
    if how == "a wrong byte":
        spoil(store.last)
    elif how == "gone":
        store.last.unlink()
    else:
        store.last.write_bytes(store.last.read_bytes()[:5000])
    found, said = store.newest_whole()
    assert found == store.previous
    assert said.startswith(f"{store.last} is damaged (") == (how != "gone")


def test_else_the_best_is_taken_and_none_if_all_are_damaged(tmp_path: Path) -> None:
    """With every_n_epochs=10, best.ckpt is the only one for ten epochs: a fresh start would write over it."""
    store = CheckpointStore.of_run(tmp_path)
    with_weights(store.best, 1)
    for path in (store.last, store.previous):
        spoil(with_weights(path, 2))
        assert store.newest_whole()[0] == store.best
    spoil(store.best)
    with pytest.raises(
        ConfigError, match=r"must have an undamaged checkpoint\. .*last.* is damaged .*best.*Hint: start"
    ):
        store.newest_whole()
    with pytest.raises(ConfigError, match=r"last.ckpt must be an undamaged checkpoint, but is damaged: .* copy the"):
        require_whole(store.last, "resume")


def test_no_room_for_the_files(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "not made yet")
    store.require_room(1, resumed=False)
    said = r"for 2 checkpoints, about [\d,]{6,} MiB, but its disk has [\d,]+ MiB free. Hint"
    with pytest.raises(ConfigError, match=said):
        store.require_room(2**60, resumed=True)


@pytest.mark.parametrize(
    ("file", "run_dir"),
    [("r/checkpoints/last.ckpt", "r"), ("r/checkpoints/top3/epoch=3.ckpt", "r"), ("r/last.ckpt", None)],
)  # fmt: skip
def test_the_run_of_a_checkpoint(file: str, run_dir: str | None) -> None:
    assert CheckpointStore.run_dir_of(Path(file)) == (run_dir and Path(run_dir))
