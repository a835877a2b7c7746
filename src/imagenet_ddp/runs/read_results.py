"""Read summary.json and evaluation.json, which may come from a stranger: a part of the wrong type is left out."""

from pathlib import Path
from typing import Any

from imagenet_ddp.config.figures import figure_of
from imagenet_ddp.config.validators import FLAG, NULL, TEXT, TEXTS, integer, is_mapping, kind, number
from imagenet_ddp.system.files import read_mapping

_COUNT, _SHARE, _NUMBER = integer(0, 2**63 - 1), number(0, 1), number(-1e300, 1e300)
_MAPPING = kind("a mapping", is_mapping)
_MAYBE = NULL | _NUMBER  # null stands for NaN, of a net that diverged
_NUMBERS = kind("a mapping to numbers", lambda value: is_mapping(value) and all(map(_MAYBE.accepts, value.values())))
_PARTS = {
    **dict.fromkeys(
        (
            "epochs", "steps", "num_train_images", "num_val_images", "num_val_images_unreadable", "num_classes",
            "num_unreadable_images", "num_parameters", "num_devices", "num_nodes", "world_size", "global_batch_size",
            "least_budget_min", "best_epoch", "best_step",
        ),
        NULL | _COUNT,
    ),
    "data_wait_frac": NULL | _SHARE,
    **dict.fromkeys(("images_per_s", "train_s", "train_cpu_s"), _MAYBE),
    **dict.fromkeys(
        (
            "command", "folder", "finished_at", "git_commit", "precision", "hardware", "experiment", "ended_by",
            "checkpoint", "weights", "predictions", "left_out", "start",
        ),
        NULL | TEXT,
    ),
    **dict.fromkeys(("data", "versions"), _MAPPING),
    "finished": FLAG, "seed": NULL | integer(), "calibration": _NUMBERS, "known": _NUMBERS,
    "classes": TEXTS, "labels": TEXTS,
}  # fmt: skip


def read_results(path: Path, problems: list[str] | None = None) -> dict[str, Any]:
    """Return the content of a file of results, {} if it cannot be read, without the parts of the wrong type. problems:
    a list to which a phrase about each of these is added."""
    found = read_mapping(path, problems)
    for name in list(found):
        allowed = _PARTS.get(name)
        if name.startswith(("val/", "best/")):
            allowed = NULL | _SHARE if figure_of(name).is_share else _MAYBE
        if allowed is not None and not allowed.accepts(found[name]):
            del found[name]
            if problems is not None:
                problems.append(f"{name} in {path.name} is not {allowed.words}")
    return found
