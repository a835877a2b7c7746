"""Compare what two runs have written."""

import csv
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

MEASURED = {"images_per_s", "data_wait_frac", "train_s"}


def assert_same_runs(one: Path, other: Path) -> None:
    """Check that two run folders have the same weights, optimizer states and figures, to the bit."""
    for name in ("last.ckpt", "best.ckpt"):
        states = [torch.load(folder / "checkpoints" / name, weights_only=True) for folder in (one, other)]
        for key in ("state_dict", "current_model_state", "optimizer_states"):
            leaves, others = (pytree.tree_flatten_with_path(state.get(key))[0] for state in states)
            assert len(leaves) == len(others) and (leaves or key == "current_model_state")
            for (path, leaf), (_, its) in zip(leaves, others, strict=True):
                same = torch.equal(leaf, its) if isinstance(leaf, torch.Tensor) else leaf == its
                assert same, (name, key, pytree.keystr(path))
    tables = [list(csv.DictReader((folder / "metrics.csv").read_text().splitlines())) for folder in (one, other)]
    rows, others = ([{key: row[key] for key in row.keys() - MEASURED} for row in each] for each in tables)
    assert rows == others
