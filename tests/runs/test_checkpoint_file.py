"""Only a checkpoint of this project is read."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs.checkpoint_file import FORMAT, KEY, load_weights, read

EMPTY: dict[str, Any] = {"format": FORMAT, "config": {}, "classes": [], "labels": [], "eval_transform": {}}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", r"\(it was not written by torch.save\)"),
        ({"state_dict": {}}, "got a file of another program"),
        ({KEY: {"format": FORMAT + 1, "version": "9.9"}}, "written by imagenet_ddp 9.9"),
        ({KEY: {"format": FORMAT}, "evil": os.system}, "it contains posix.system, which could run code of its author"),
        ({KEY: {"format": FORMAT, "config": {}}}, "but lacks classes, labels, eval_transform"),
        *(
            ({KEY: EMPTY, "optimizer_states": [{"state": {0: {"step": tensor}}}]}, "whose tensor step is stored in it")
            for tensor in (torch.zeros(1).expand(10**13), torch.zeros(2, device="meta"))  # 2 KB for 40 TB
        ),
    ],
)
def test_what_is_no_checkpoint_of_ours(tmp_path: Path, content: object, said: str) -> None:
    path = tmp_path / "x.ckpt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(ConfigError, match=f"^{path} must .*{said}.*Hint:"):
        read(path)


def test_weights_that_are_not_finite_are_refused() -> None:
    net = torch.nn.Linear(2, 2)
    weights = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    load_weights(net, weights, "x.ckpt")
    net.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    weights["mask"] = torch.tensor([0.0, -torch.inf])
    load_weights(net, weights, "x.ckpt")
    weights["bias"][1] = torch.inf
    with pytest.raises(ConfigError, match=r"^x.ckpt must hold finite weights, but 1 of its 3 tensors .*\(bias\)"):
        load_weights(net, weights, "x.ckpt")
