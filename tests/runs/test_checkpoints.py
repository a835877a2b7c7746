"""What resume= leads to, and damaged checkpoints."""

import json
import os
import random
from pathlib import Path

import pytest
import torch

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs.checkpoints import damage, find_own, find_resume, require_whole
from imagenet_ddp.runs.folder import previous_checkpoint


def finished(folder: Path, age: int, epochs: int | None) -> Path:
    """A run folder; epochs None: not finished. Higher age: older."""
    checkpoint = folder / "checkpoints/last.ckpt"
    checkpoint.parent.mkdir(parents=True)
    torch.save({"age": age}, checkpoint)
    os.utime(checkpoint, (1_000_000 - age, 1_000_000 - age))
    if epochs is not None:
        (folder / "summary.json").write_text(json.dumps({"finished": True, "epochs": epochs}))
    return checkpoint


def test_auto_is_the_newest_unfinished_run(tmp_path: Path) -> None:
    runs = tmp_path / "runs/n"
    assert "no run in" in find_resume("auto", None, runs).sentence
    done = finished(runs / "a", 1, 3)
    assert "that has a checkpoint is unfinished" in find_resume("auto", None, runs).sentence
    finished(runs / "b", 30, None)
    newer = finished(runs / "c", 20, None)
    found = find_resume("auto", None, runs)
    assert (found.folder, found.checkpoint) == (runs / "c", newer)
    assert "the newest unfinished run" in found.sentence

    found = find_resume("auto", runs / "a", runs)
    assert (found.checkpoint, found.finished_epochs) == (done, 3)
    assert find_resume("auto", tmp_path / "new", runs).checkpoint is None


def test_a_restarted_job(tmp_path: Path) -> None:
    assert find_own(tmp_path) is None
    checkpoint = finished(tmp_path, 0, None)
    found = find_own(tmp_path)
    assert found is not None
    assert (found.checkpoint, found.sentence) == (checkpoint, f"Restarted: continuing from {checkpoint}.")


def test_a_path(tmp_path: Path) -> None:
    checkpoint = finished(tmp_path / "r", 0, None)
    for asked in (tmp_path / "r", checkpoint):
        found = find_resume(str(asked), None, tmp_path)
        assert (found.folder, found.checkpoint) == (tmp_path / "r", checkpoint)
    with pytest.raises(ConfigError, match="is not a file"):
        find_resume(str(tmp_path), None, tmp_path)


# ---- damaged files -------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("option", ["auto", "folder", "again"])
@pytest.mark.parametrize("how", ["a wrong byte", "cut off", "empty", "gone"])
def test_the_one_before_is_taken(tmp_path: Path, option: str, how: str) -> None:
    run = tmp_path / "runs/r"
    last = with_weights(run / "checkpoints/last.ckpt", 2)
    previous = with_weights(previous_checkpoint(last), 1)
    if how == "a wrong byte":
        spoil(last)
    elif how == "gone":
        last.unlink()
    else:
        last.write_bytes(last.read_bytes()[: 5000 * (how == "cut off")])
    found = find_own(run) if option == "again" else find_resume(
        "auto" if option == "auto" else str(run), None, tmp_path / "runs"
    )  # fmt: skip
    assert found is not None
    assert (found.folder, found.checkpoint) == (run, previous)
    assert found.sentence.startswith(f"{last} is damaged (") == (how != "gone")


def test_both_damaged_is_refused(tmp_path: Path) -> None:
    last = with_weights(tmp_path / "r/checkpoints/last.ckpt", 2)
    previous = with_weights(previous_checkpoint(last), 1)
    for path in (last, previous):
        spoil(path)
    with pytest.raises(ConfigError, match="must have an undamaged checkpoint, but these are damaged") as caught:
        find_resume("auto", None, tmp_path)
    assert all(f"{path} (its part " in str(caught.value) for path in (last, previous))
    assert str(caught.value).endswith("Hint: start the training again in another folder, without resume=.")


@pytest.mark.parametrize("how", ["damaged", "not written yet"])
def test_else_the_best_is_taken(tmp_path: Path, how: str) -> None:
    """With every_n_epochs=10 it is the only one for ten epochs: a fresh start would write over it."""
    best = with_weights(tmp_path / "r/checkpoints/best.ckpt", 1)
    for name in ("last.ckpt", "previous.ckpt"):
        if how == "damaged":
            spoil(with_weights(best.with_name(name), 2))
    for option, run_dir in (("auto", None), ("auto", tmp_path / "r"), (str(tmp_path / "r"), None)):
        found = find_resume(option, run_dir, tmp_path)
        assert (found.folder, found.checkpoint) == (tmp_path / "r", best)
        assert found.sentence.count("is damaged") == (2 if how == "damaged" else 0)


def test_a_named_file_is_refused_and_the_whole_one_beside_it_named(tmp_path: Path) -> None:
    last = with_weights(tmp_path / "r/checkpoints/last.ckpt", 2)
    spoil(last)
    with pytest.raises(
        ConfigError, match=f"{last} must be an undamaged checkpoint, but is damaged: its part .* another chec"
    ):
        find_resume(str(last), None, tmp_path)
    best = with_weights(last.with_name("best.ckpt"), 1)
    with pytest.raises(ConfigError, match=f"Hint: set checkpoint={best}"):
        require_whole(last, "checkpoint")
    require_whole(best, "checkpoint")
