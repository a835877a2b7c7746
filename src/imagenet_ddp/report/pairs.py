"""Find the images on which two nets can be compared: those that both were evaluated on and neither was trained on. An
image is recognised by its content, so the two may have been evaluated on different folders."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from imagenet_ddp.data.sources.base import Names
from imagenet_ddp.data.sources.validation_split import NO_KEY, content_keys
from imagenet_ddp.report.predictions import EVALUATION, Predictions
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.system.process import import_torch
from imagenet_ddp.system.text import count_noun

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Pairs:
    """The N images that count.

    rows: int64 (N,) of each net, in its predictions. num_trained: of the images in both evaluations, those left out
    because a net was trained on them. num_foreign: because the first net does not know the class that they have in the
    evaluation of the second. num_single: images in only one evaluation. num_gone: those whose file is not
    there any more, such as one that was moved to its right class. num_copies: further copies of images that
    count, in the evaluation that has more. says_nothing: of each net, whether it does not say which images it was
    trained on. same_weights: the two are one net. same_training: both say that they were trained on the same images.
    """

    rows: tuple[np.ndarray, np.ndarray]
    num_trained: int
    num_foreign: int
    num_single: int
    num_gone: int
    num_copies: int
    says_nothing: tuple[bool, bool]
    same_weights: bool
    same_training: bool

    def left_out(self, first: str) -> str:
        """Return which images do not count, in brackets; "" if all do. first: name of the first net."""
        counts = (
            (self.num_trained, "that one of them was trained on"),
            (self.num_foreign, f"of classes that {first} does not know"),
            (self.num_single, "that only one was evaluated on"),
            (self.num_gone, "whose file was moved or removed since"),
            (self.num_copies, "with the content of another one, as each content counts once"),
        )
        parts = [f"{count_noun(number, 'image')} {words}" for number, words in counts if number]
        return f" (left out: {' and '.join(parts)})" if parts else ""


def find_pairs(first: Predictions, second: Predictions) -> Pairs:
    both, trained = (first, second), np.empty(0, np.uint64)
    keys = [content_keys(each.evaluation.get("folder") or ".", Names.of(each.paths)) for each in both]
    (learned, weights), (learned_too, other) = map(_net, both)
    for each in (learned, learned_too):
        trained = trained if each is None else np.union1d(trained, each)
    common, in_first, in_second = np.intersect1d(keys[0], keys[1], return_indices=True)  # of copies, the first
    is_file = common != np.uint64(NO_KEY)
    is_trained = np.isin(common, trained) & is_file
    num_single = sum(len(np.unique(each[each != np.uint64(NO_KEY)])) - int(is_file.sum()) for each in keys)
    is_foreign = ~np.isin(labels_of(second, in_second), np.array(first.classes, dtype=object)) & is_file & ~is_trained
    counts = is_file & ~is_trained & ~is_foreign
    order = np.argsort(in_second[counts])
    return Pairs(
        (in_first[counts][order], in_second[counts][order]),
        int(is_trained.sum()),
        int(is_foreign.sum()),
        num_single,
        len({net.paths[row] for net, each in zip(both, keys, strict=True) for row in np.flatnonzero(each == NO_KEY)}),
        max(int(np.isin(each, common[counts]).sum()) - int(counts.sum()) for each in keys),
        (learned is None, learned_too is None),
        bool(weights) and weights.keys() == other.keys() and all(weights[name].equal(other[name]) for name in weights),
        learned is not None and learned_too is not None and bool(len(learned)) and np.array_equal(learned, learned_too),
    )


def labels_of(found: Predictions, rows: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the names of the classes of the images."""
    return np.array(found.classes, dtype=object)[found.target[rows]]


def predicted_by(found: Predictions, rows: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the names of the predicted classes; "" for an output that is NaN or inf, which is no class's name."""
    return np.array([*found.classes, ""], dtype=object)[found.prediction[rows]]


def _net(found: Predictions) -> "tuple[np.ndarray | None, dict[str, Tensor]]":
    """Return (the content keys of the images that a net was trained on, uint64, or None if it does not say; its
    weights, or an empty dict if they are not in a checkpoint of this project)."""
    with import_torch():
        from imagenet_ddp.runs import checkpoint_file
        from imagenet_ddp.training.held_out import ImageKeys
    if found.checkpoint is None or not checkpoint_file.is_own(found.checkpoint):
        return None, {}
    stored = checkpoint_file.read(found.checkpoint)
    keys = ImageKeys.stored_in(stored[checkpoint_file.KEY])
    if keys is not None:
        return keys.trained, stored["state_dict"]
    # the validation images have a folder of their own, so no training image is among those that the run is judged by
    run_dir = CheckpointStore.run_dir_of(found.checkpoint)
    is_of_run = run_dir is not None and found.folder.resolve() == (run_dir / EVALUATION).resolve()
    return np.empty(0, np.uint64) if is_of_run else None, stored["state_dict"]
