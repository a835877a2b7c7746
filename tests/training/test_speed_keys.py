"""A run with every speed key is equal to one without; their checkpoints are interchangeable."""

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
from conftest import PROBES, clean_environ, small_run
from helpers import forked_commands
from helpers.image_table import write_table
from torch import Tensor

from imagenet_ddp.models.compiled import missing_compiler

NET = ("model._target_=block_net.BlockNet", "allow_targets=[block_net.BlockNet]")
PLAIN = ("model.channels_last=false", "+optim.args.fused=false")
FAST = ("compile=default", "model.channels_last=true")
COMMON = (
    *small_run(*NET), "data=table", "data.augment=pad_crop", "data.policy=randaugment", "averaging=ema",
    "averaging.decay=0.5", "data.val_mirror=true", "trainer.devices=2",
)  # fmt: skip
TOLERANCE = 1e-5  # docs/learning.md
pytestmark = pytest.mark.slow


def command(folder: Path, verb: str, *options: str) -> CompletedProcess[str]:
    environment = clean_environ(PYTHONPATH=PROBES, XDG_CACHE_HOME=str(folder / "cache"))
    return forked_commands.run(f"imagenet_ddp.{verb}", *options, folder=folder, environment=environment)


@pytest.fixture(scope="module")
def runs(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder with the runs plain and fast, of two ranks, and what each printed."""
    if lacking := missing_compiler("cpu"):
        pytest.skip(lacking)
    folder, printed = tmp_path_factory.mktemp("speed"), {}
    write_table(folder / "pets.csv", tree, absolute=True)
    for name, keys in (("plain", PLAIN), ("fast", FAST)):
        own = (*COMMON, *keys, "data.root=pets.csv", f"hydra.run.dir={name}")
        result = command(folder, "train", *own)
        assert result.returncode == 0, result.stdout + result.stderr
        printed[name] = result.stdout + result.stderr
    return folder, printed


def states(run: Path) -> dict[str, Tensor]:
    """The average and the weights that training continues from."""
    stored = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    keys = ("state_dict", "current_model_state")
    return {f"{key} {name}": value for key in keys for name, value in stored[key].items()}


def test_equal_within_the_tolerance_of_the_documentation(runs: tuple[Path, dict[str, str]]):
    folder, printed = runs
    plain, fast = states(folder / "plain"), states(folder / "fast")
    assert plain.keys() == fast.keys()
    for name, value in plain.items():
        torch.testing.assert_close(fast[name], value, rtol=TOLERANCE, atol=TOLERANCE)
    text, summary = printed["fast"], json.loads((folder / "fast/summary.json").read_text())
    logs = {name: (folder / name / "logs/rank0.log").read_text() for name in printed}
    assert "Optimizer step: fused, torch has one kernel for the step on CPUs." in logs["fast"]
    assert "Net: channels_last, compiled (mode default, as set)." in logs["fast"]
    assert "compiled (mode default)" in text
    assert summary["plan"]["compile"] == {"value": "default", "reason": "as set"} and summary["plan"]["fused"]["value"]
    assert "Optimizer step: not fused, as set." in logs["plain"] and "warn" not in text.lower()


def test_the_checkpoint_is_one_of_an_eager_run(runs: tuple[Path, dict[str, str]]):
    folder, _ = runs
    checkpoint = "checkpoint=fast/checkpoints/best.ckpt"
    result = command(folder, "evaluate", checkpoint, *NET[1:], "hydra.run.dir=e")
    assert result.returncode == 0, result.stdout + result.stderr
    evaluation = json.loads((folder / "e/evaluation.json").read_text())
    assert evaluation["plan"]["compile"]["value"] == "off"  # not what the training had
    best = json.loads((folder / "fast/summary.json").read_text())["best/val/top1"]
    assert evaluation["val/top1"] == pytest.approx(best)
    more = ("compile=off", "trainer.max_epochs=3", *NET[1:])
    result = command(folder, "train", "resume=fast", *more)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Changed: compile.name was default and is now off." in result.stdout + result.stderr
