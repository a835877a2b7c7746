"""Check that training can resume from a checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imagenet_ddp.engine.build import Run
from imagenet_ddp.engine.job import Job, changes, changes_end
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs.checkpoint_file import KEY, read
from imagenet_ddp.runs.folder import last_checkpoint
from imagenet_ddp.system.text import count_noun


def require_same_data(parts: Run, checkpoint: Path, max_epochs: int | None, run_dir: Path) -> dict[str, Any]:
    """Return this package's entry in the checkpoint. Raises ConfigError if the images are not those of the checkpoint,
    or if no epochs are left to train."""
    if parts.checkpoint_callback is None:  # without it, Lightning would train on the epoch's first images again
        raise ConfigError(
            f"callbacks.checkpoint must be set to resume {checkpoint}, got none. Hint: set callbacks=default."
        )
    stored = read(checkpoint)[KEY]
    in_place = (
        checkpoint.resolve().parent == last_checkpoint(run_dir).parent.resolve()
    )  # then summary.json may not be written yet
    done = stored["epoch"] + (stored["kind"] == "epoch_end" and not in_place)
    if max_epochs is not None and 0 <= max_epochs <= done:
        raise ConfigError(
            f"trainer.max_epochs must be more than the {count_noun(done, 'epoch')} that {checkpoint} has "
            f"completed, got {max_epochs}. Hint: set trainer.max_epochs={done + 1} or more, or start a new run."
        )
    found = parts.data.source.classes
    if stored["classes"] != found:
        differing = sorted(set(stored["classes"]) ^ set(found))[:5]
        got = f"{len(found)} classes that differ in {', '.join(differing)}" if differing else "them in another order"
        raise ConfigError(
            f"the data's classes must be the {len(stored['classes'])} classes of {checkpoint}, got {got}. "
            "Hint: set data.root to the images that this run began with, or start a new run."
        )
    if stored["num_train_images"] != len(parts.data.train_images):
        raise ConfigError(
            f"the data must have the {stored['num_train_images']:,} training images that {checkpoint} was trained on,"
            f" got {len(parts.data.train_images):,}. Hint: set data.root to the images that this run began with,"
            " or start a new run."
        )
    if stored["images_digest"] != parts.data.source.digest:
        raise ConfigError(
            f"the data's images must be those that {checkpoint} was trained with, in the same order, but their names, "
            "labels or weights differ. Hint: set data.root to the images that this run began with, or start a new run."
        )
    return stored


def is_over(job: Job, stored: Mapping[str, Any]) -> bool:
    """Return whether a callback such as EarlyStopping had already ended the training that is resumed, but its process
    was killed or stopped before it wrote summary.json. stored: result of require_same_data."""
    return stored["has_ended"] and not changes_end(changes(stored["config"], job.config))
