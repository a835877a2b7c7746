"""A checkpoint with a part of the wrong type is refused in a sentence."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Run

from imagenet_ddp.cli import parse
from imagenet_ddp.config.schema.evaluate import EvaluateConfig
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch.stored_config import resolved_config
from imagenet_ddp.launch.trained_model import load
from imagenet_ddp.runs.checkpoint_file import KEY

GONE = object()  # in place of a value: the entry is missing
MISFITS = {  # values of a stored config
    "root": [-1.5, {"a": 1}], "train_dir": [[1]], "val_dir": [None, "\0", "a" * 300], "batch_size": ["${a}"],
    "mean": [["${a}", 1, 2]],
}  # fmt: skip
VALUES: list[Any] = [None, 3, -1.5, "x", True, [1], {"a": 1}, {1: 2}, torch.zeros(2)]


def test_no_part_of_another_type_ends_in_a_traceback(trained: Path, tmp_path: Path):
    whole = torch.load(trained, weights_only=True)
    whole["state_dict"] = dict(list(whole["state_dict"].items())[:2])  # reading weights takes most of the time
    whole["optimizer_states"] = []
    path = tmp_path / "x.ckpt"
    places = [(KEY, name) for name in whole[KEY]] + [(name,) for name in whole if name != KEY]
    places += [(KEY, "config", name) for name in ("data", "model", "trainer", "callbacks", "allow_targets", "seed")]
    places += [(KEY, "eval_transform", name) for name in whole[KEY]["eval_transform"]]
    torch.save(whole, path)
    request, num_refused = parse.command_line("evaluate", [f"checkpoint={path}"], {}), 0
    cases = [(place, value) for number, place in enumerate(places) for value in VALUES[number % 5 :: 5]]  # a fifth
    cases += [((KEY, "config", "data", key), value) for key, values in MISFITS.items() for value in values]
    for place, value in cases:
        checkpoint = {**whole, KEY: copy.deepcopy(whole[KEY])}
        node: Any = checkpoint
        for part in place[:-1]:
            node = node[part]
        node[place[-1]] = value
        torch.save(checkpoint, path)
        try:
            load(resolved_config(request, {}, EvaluateConfig), path)
        except ConfigError:
            num_refused += 1
        except Exception as error:
            pytest.fail(f"{place} = {value!r}: {type(error).__name__}: {error}")
    assert num_refused > 36


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loops", {"fit_loop": 3}), ("loops", 3), ("optimizer_settings", [3]), ("optimizer_settings", [{}, {}, {}]),
        ("optimizer_settings", [{"betas": torch.zeros(2)}]), ("optimizer_states", [{"state": {}, "param_groups": []}]),
        ("optimizer_states", [{"state": {0: {"momentum_buffer": "x"}}, "param_groups": [{}]}]), ("callbacks", 3),
        ("optimizer_states.0.param_groups.0.momentum", "x"), ("optimizer_states.0.param_groups.0.weight_decay", GONE),
        ("optimizer_states.0.state.0.momentum_buffer", None), ("callbacks.TrainLog.sums", "x"),
        ("callbacks.TrainLog.train_s", "x"), ("callbacks.History.rows", [{"epoch": "x"}]),
        ("pytorch-lightning_version", GONE), ("imagenet_ddp.images_digest", GONE),
    ],
)  # fmt: skip
def test_a_state_of_another_type_is_refused_by_a_resume(
    name: str, value: Any, trained: Path, tree: Path, tmp_path: Path, run: Run
):
    checkpoint = torch.load(trained, weights_only=True)
    node, (*path, last) = checkpoint, name.split(".")
    for part in path:
        node = node[int(part) if part.isdigit() else part]
    node.pop(last) if value is GONE else node.update({last: value})
    torch.save(checkpoint, tmp_path / "x.ckpt")
    done = run("train", "resume=x.ckpt", f"data.root={tree}", "trainer.max_epochs=9", "hydra.run.dir=r", code=2)
    said = " ".join(done.stderr.split())
    wrong = ("must hold a state", f"whose {name} is", "whose optimizer_settings is", f"lacks {last}")
    assert any(words in said for words in wrong), said
    assert "Traceback" not in done.stderr
