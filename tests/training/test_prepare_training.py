"""Trained weights, frozen layers, averages and teachers, in real runs."""

import json
from pathlib import Path

import pytest
import torch
from conftest import SMALL, Run, small_run, write_images

from imagenet_ddp.config.schema.learning import ModelConfig
from imagenet_ddp.models.factory import create_model


@pytest.fixture(scope="module")
def other_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four other classes."""
    root = tmp_path_factory.mktemp("other")
    for split in ("train", "val"):
        write_images(root / split, {"ant": 6, "bee": 6, "eel": 6, "fly": 6}, seed=2)
    return root


@pytest.mark.slow
def test_fine_tuning_from_a_run_of_its_own(run: Run, tree: Path, other_tree: Path, tmp_path: Path):
    """Two ranks, the last layer alone at first, batch norm's statistics frozen, an average of the weights, stopped and
    resumed; then evaluated."""
    result = run(
        "train", *SMALL, f"data.root={tree}", "hydra.run.dir=first", "averaging=ema", "averaging.decay=0.5", code=0
    )
    first = torch.load(tmp_path / "first/checkpoints/best.ckpt", weights_only=True)
    options = [
        *SMALL, f"data.root={other_tree}", "trainer.devices=2", "model.weights=first/checkpoints/best.ckpt",
        "model.freeze=backbone", "model.unfreeze_epoch=2", "optim=adamw", "optim.lr=0.001", "optim.lr_head=0.01",
        "optim.no_decay_on=[norm,bias]", "averaging=ema", "averaging.decay=0.5",
        "schedule.name=constant", "teacher.weights=second/checkpoints/best.ckpt", "loss.class_weights=balanced",
        "model.batch_norm=frozen",
    ]  # fmt: skip
    head = [option for option in options if not option.startswith("teacher")]
    result = run("train", *head, "hydra.run.dir=second", "trainer.max_epochs=1", code=0)
    log = result.stdout
    assert "Weights of first/checkpoints/best.ckpt: " in log and "is new (other classes)" in log
    assert "All layers except classifier.1 are frozen until epoch 3." in log
    second = torch.load(tmp_path / "second/checkpoints/last.ckpt", weights_only=True)
    for name, value in second["current_model_state"].items():
        if name.startswith("net.") and not name.startswith("net.classifier.1."):
            assert torch.equal(value, first["state_dict"][name]), f"{name} was trained in a frozen epoch"

    for run_dir, max_epochs in (("whole", 3), ("parts", 1), ("parts", 3)):
        more = ["resume=auto"] if run_dir == "parts" else []
        result = run("train", *options, f"hydra.run.dir={run_dir}", f"trainer.max_epochs={max_epochs}", *more, code=0)
    one, other = (
        torch.load(tmp_path / f"{each}/checkpoints/last.ckpt", weights_only=True) for each in ("whole", "parts")
    )
    for state in ("state_dict", "current_model_state"):
        assert all(torch.equal(one[state][name], other[state][name]) for name in one[state]), state
    assert not torch.equal(one["state_dict"]["net.features.0.0.weight"], first["state_dict"]["net.features.0.0.weight"])
    assert not any("teacher" in name for name in one["state_dict"])
    statistics = [name for name in one["state_dict"] if "running" in name or "num_batches" in name]
    assert statistics and all(torch.equal(one[state][name], first["state_dict"][name])
                              for state in ("state_dict", "current_model_state") for name in statistics)  # fmt: skip
    assert not torch.equal(one["state_dict"]["net.features.0.1.weight"], first["state_dict"]["net.features.0.1.weight"])

    summary = json.loads((tmp_path / "whole/summary.json").read_text())
    for name, key in (("best", "best/val/top1"), ("last", "val/loss")):
        result = run(
            "evaluate",
            f"checkpoint=whole/checkpoints/{name}.ckpt",
            f"hydra.run.dir={name}",
            "trainer.devices=1",
            code=0,
        )
        found = json.loads((tmp_path / name / "evaluation.json").read_text())[key.removeprefix("best/")]
        assert found == pytest.approx(summary[key], rel=1e-4), (
            "both ranks validated the average with one rank's buffers"
        )


@pytest.mark.slow
def test_both_heads_of_a_distilled_net_learn_alone(run: Run, tree: Path, tmp_path: Path):
    net = ("model=timm", "model.name=deit_tiny_distilled_patch16_224")
    keys = ModelConfig(name="deit_tiny_distilled_patch16_224", library="timm")
    weights = create_model(keys, 9, 1, 32).state_dict()
    torch.save(weights, tmp_path / "weights.pt")
    result = run(
        "train", *small_run(*net, "model.weights=weights.pt", "model.freeze=backbone", "optim.lr_head=0.02"),
        f"data.root={tree}", "hydra.run.dir=r", "trainer.max_epochs=1", code=0,
    )  # fmt: skip
    assert "head and head_dist are new (another number of classes)." in result.stdout
    assert "All layers except head and head_dist are frozen throughout." in result.stdout
    trained = torch.load(tmp_path / "r/checkpoints/last.ckpt", weights_only=True)["state_dict"]
    for name, value in weights.items():
        if not name.startswith("head"):
            assert torch.equal(trained[f"net.{name}"], value), name
    for head in ("head", "head_dist"):
        assert trained[f"net.{head}.bias"].abs().max() > 1e-3, f"{head} did not learn"  # it starts at 0
