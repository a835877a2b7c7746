"""Each recipe composes, takes steps, and has the head that says what it is."""

import re
from pathlib import Path

import pytest
from conftest import ROOT, Run

from imagenet_ddp.cli.parse import composed

FILES = sorted((ROOT / "conf" / "experiment").glob("*.yaml"))
# Those that set something that no other does, as runs of a few images.
DIFFERENT = ("deit_small", "ffcv_rn18_16", "finetune", "goyal_large_batch", "rsb_a2", "stl10_scratch", "torchvision_v2")
UNTRAINED = ["model.weights=null", "model.batch_norm=train", "model.head=new"]  # nothing is downloaded here
# So few and so small images that each step takes a second.
TINY = (
    "trainer.accelerator=cpu", "trainer.precision=32-true", "trainer.max_epochs=1", "trainer.limit_train_batches=2",
    "trainer.limit_val_batches=1", "data.batch_size=4", "data.val_batch_size=4", "data.num_workers=0",
    "cluster.num_threads=1", "trainer.devices=1", "trainer.num_nodes=1",
)  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_its_head_says_what_to_expect_and_its_command_composes(path: Path):
    head = [line[1:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    assert head[0] == "@package _global_"
    text = " ".join(head)
    assert "Expect: " in text and "Costs: " in text
    [options] = re.findall(r"python -m imagenet_ddp\.train (experiment=\S+(?: [\w./]+=\S+)*)$", head[-1])
    assert f"experiment={path.stem}" in options.split()
    config = composed("train", options.split()).config
    if config.model.head == "regression" and config.averaging.name == "ema":
        assert not config.averaging.warmup, "the average would leave a good start within a few steps"
    composed("prepare", options.split())  # a check with the net and images of the training, as README types it


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in FILES if path.stem in DIFFERENT], ids=lambda path: path.stem)
def test_it_takes_two_steps(path: Path, run: Run, tree: Path):
    few = {
        "finetune": UNTRAINED,
        "torchvision_v2": ["averaging.start_epoch=0", "averaging.warmup=true"],  # its average needs many updates
    }.get(path.stem, [])
    size = ["data.image_size=64", "data.val_resize=64"]
    if "train_size: 1" in path.read_text(encoding="utf-8"):
        size.append("data.train_size=48")
    if "progressive_start" in path.read_text(encoding="utf-8") or "ffcv" in path.stem:
        size += ["data.train_size=48", "data.progressive_start=32"]
    result = run("train", f"experiment={path.stem}", "data=imagefolder", f"data.root={tree}", *TINY, *few, *size)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    assert "4 of 11 validation images, each once." in result.stdout, result.stdout[-2000:]
