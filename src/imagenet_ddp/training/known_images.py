"""After a fine-tuning, a pass over its images: learn what they look like, so that predict can tell others from them
(known.npz), and calibrate the best net."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from imagenet_ddp.callbacks.image_features import MAX_IMAGES, Columns, compute_columns
from imagenet_ddp.callbacks.loop_state import find_callback
from imagenet_ddp.callbacks.regression_head import RegressionHead
from imagenet_ddp.cli.overrides import quoted, shell_line
from imagenet_ddp.config.figures import UNLIKE
from imagenet_ddp.curation.features import Features
from imagenet_ddp.curation.unknown import net_digest, write_reference
from imagenet_ddp.data.decoding.decode import Reading
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.models.head import evaluating, has_features, head_names, only_linear
from imagenet_ddp.runs.checkpoint_file import load_weights, read
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.runs.result_files import KNOWN, known_file
from imagenet_ddp.system.bounded_wait import said_while_slow
from imagenet_ddp.system.files import short_path
from imagenet_ddp.system.text import count_noun
from imagenet_ddp.training.build import Run
from imagenet_ddp.training.calibrate import calibrate


def write_known(parts: Run, run_dir: Path, say: Callable[[str], None], is_stopped: Callable[[], bool]) -> None:
    """Write known.npz for the checkpoint that predict uses of a run that has ended, and calibrate best.ckpt. The net
    then has the weights that this checkpoint had, in fp32. If a file cannot be written, say why; the run is complete
    without it. Call on all ranks.

    say: writes a line to the log. is_stopped: returns whether a signal asks to stop.
    """
    trainer, net, data = parts.trainer, parts.module.net, parts.data
    heads = head_names(net, len(data.source.classes))
    if parts.checkpoint_callback is None or only_linear(net, heads) is None:
        return
    checkpoint = CheckpointStore.to_use(run_dir)
    steps, reason = _load(parts, checkpoint)
    if steps is None:
        return say(f"No {KNOWN} is written: {reason}") if reason else None
    if not has_features(net, heads, data.options.image_size):
        return None
    start = find_callback(trainer, RegressionHead)
    if start is not None and steps:
        start = None
    if start is not None:  # the layers below the last one are the same
        splits = [start.columns] if start.columns is not None else []
    else:
        splits = _compute(parts, heads[0], say, is_stopped)
    later = f"To write {KNOWN} later: `{shell_line('features', [quoted(f'checkpoint={short_path(run_dir)}')])}`."
    if splits is None:
        say(f"This pass was stopped; the training is complete. {later}")
    elif trainer.is_global_zero:
        digest = net_digest(net, heads, data.eval_transform, Reading.of(data.options))
        say(_write(known_file(run_dir), splits, data.train_images.targets, digest, later))
        is_best = checkpoint == CheckpointStore.of_run(run_dir).best  # a run is resumed from the last one
        if is_best and (line := _calibrate(checkpoint, net, heads[0], splits, start)):
            say(line)


@torch.no_grad()
def _calibrate(best: Path, net: nn.Module, head: str, splits: Sequence[Columns], start: RegressionHead | None) -> str:
    """Calibrate by the validation images, or, if the net is the regression from which the training started, by its
    folds, which are of more images and need no pass. Return a sentence, "" if nothing is changed."""
    _, features, targets = splits[-1]
    layer = cast("nn.Linear", net.get_submodule(head))
    if start is not None:
        with said_while_slow(f"Calibrating {best.name}"):
            logits = start.held_out_logits(layer.out_features)
        images = "training images, each held out in one of five folds"
    else:
        logits, images = layer.cpu()(features) if len(splits) == 2 else None, "validation images"
    try:
        return "" if logits is None else calibrate(best, head, logits, targets, f"{len(targets):,} {images}")
    except RunError as error:
        return f"{best.name} is not calibrated. {error.what}"  # the training is complete, so there is nothing to resume
    except OSError as error:
        return f"{best.name} is not calibrated. {error}"


def _load(parts: Run, checkpoint: Path) -> tuple[int | None, str]:
    """Load a checkpoint into the net, on all ranks. Return (its steps, ""), or (None, why it cannot be used), which is
    "" if there is no file."""
    is_first, broadcast = parts.trainer.is_global_zero, parts.trainer.strategy.broadcast
    # other nodes may not see this disk, and must not wait for a rank that cannot go on
    found: Any = broadcast(_weights(checkpoint) if is_first else None)
    weights, steps, reason = found
    if weights is None:
        return None, reason
    try:
        load_weights(parts.module.float(), weights, str(short_path(checkpoint)))
    except ConfigError as error:
        return None, str(error)
    return steps, ""


def _write(path: Path, splits: Sequence[Columns], targets: np.ndarray, digest: str, later: str) -> str:
    """Write the file, unless the time was too short for images of each class. Return a sentence. targets: of all
    training images. later: how the file can be written later."""
    number, num_read = (len(np.unique(each)) for each in (targets, splits[0][2]))
    if num_read < number:
        return (
            f"No {KNOWN} is written: images of {num_read:,} of {number:,} classes were read, and those of the others "
            f"would be called {UNLIKE}. {later}"
        )
    try:
        return write_reference(path, _together(splits, digest), digest)
    except RunError as error:
        return f"{error.what} {later}"


def _weights(checkpoint: Path) -> tuple[dict[str, Any] | None, int, str]:
    """Return (the weights of a checkpoint, its steps, ""), or (None, 0, why they cannot be used), which is "" if there
    is no file: then nothing was trained, or require_files says what is lost."""
    if not checkpoint.is_file():
        return None, 0, ""
    try:
        stored = read(checkpoint)
    except ConfigError as error:
        return None, 0, str(error)
    return stored["state_dict"], stored["global_step"], ""


def _compute(parts: Run, head: str, say: Callable[[str], None], is_stopped: Callable[[], bool]) -> list[Columns] | None:
    """Return the columns of the training images and of the validation images, on rank 0; None if the pass was stopped.
    A signal must not end it on one rank alone, nor turn a complete run into one that is started again."""
    trainer, module, data = parts.trainer, parts.module, parts.data
    splits = {"train": data.train_images, "val": data.val_images}
    number = count_noun(sum(min(len(images), MAX_IMAGES) for images in splits.values()), "image")
    say(f"Computing the features of {number}, by which predict tells images {UNLIKE}.")
    module.to(trainer.strategy.root_device)  # from which Lightning has moved it
    columns = list[Columns]()
    try:
        with evaluating(module.net):
            for split in (name for name, images in splits.items() if len(images)):
                found, is_partial = compute_columns(trainer, module, data, split, head, is_stopped=is_stopped)
                if is_partial:  # on all ranks
                    return None
                columns += [] if found is None else [found]
    finally:
        data.close()
    return columns


def _together(splits: Sequence[Columns], digest: str) -> Features:
    """Return the columns of the training images, and of the validation images if there are any, as one."""
    _, vectors, targets = (torch.cat(column).numpy() for column in zip(*splits, strict=True))
    features = Features.bare(vectors, np.zeros(len(vectors), np.uint64), digest)
    return replace(features, targets=targets, is_val=np.arange(len(vectors)) >= len(splits[0][0]))
