from pathlib import Path
from typing import Any

import pytest
from conftest import write_images
from omegaconf import OmegaConf

from imagenet_ddp.cli.parse import command_line
from imagenet_ddp.distributed.launchers.world_info import WorldInfo
from imagenet_ddp.distributed.rendezvous.consistency import differences
from imagenet_ddp.engine.build import World, lr_schedule, make_classifier, make_data


@pytest.mark.parametrize(
    ("typed", "global_batch_size", "factors"),
    [
        ((), 256, {0: 1, 29.9: 1, 30: 0.1, 60: 0.01}),  # one GPU: torchvision's schedule to the letter
        ((), 2048, {0: 0, 2.5: 0.5, 5: 1, 29.9: 1, 30: 0.1, 60: 0.01}),
        (("schedule.warmup_epochs=0",), 2048, {0: 1, 30: 0.1}),
        (("optim.reference_batch=null",), 2048, {0: 1, 30: 0.1}),
    ],
)
def test_the_imagenet_recipe_warms_up_large_batches_only(
    typed: tuple[str, ...], global_batch_size: int, factors: dict[float, float], tree: Path
):
    options = ["data=imagefolder", "recipe=imagenet", f"data.root={tree}", "model.name=mobilenet_v3_small", *typed]
    composed = command_line("train", options, {})
    config: Any = OmegaConf.to_container(composed.configs[0], resolve=True)
    schedule = lr_schedule(config, global_batch_size)
    assert {epochs: schedule(epochs) for epochs in factors} == pytest.approx(factors)


@pytest.mark.parametrize(("clip", "fused"), [("null", True), ("0", True), ("1.0", False)])
def test_gradients_that_are_clipped_need_an_unfused_step(clip: str, fused: bool, tmp_path: Path):
    """Lightning raises for a fused optimiser in mixed precision where gradients are clipped."""
    composed = command_line(
        "train", ["trainer.accelerator=cpu", f"trainer.gradient_clip_val={clip}"], {"HOME": str(tmp_path)}
    )
    config: Any = OmegaConf.to_container(composed.configs[0], resolve=True)
    config["model"]["name"] = "mobilenet_v3_small"
    optimizer = make_classifier(config, 10, 10, 32).configure_optimizers()
    assert bool(optimizer.param_groups[0]["fused"]) == fused


def test_ranks_that_list_other_images_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each rank walks the folders itself: as many images under other names would be another order."""
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "train", {"cat": 2, "dog": 2})
    write_images(tmp_path / "val", {"cat": 1, "dog": 1})
    config = command_line("train", ["data=imagefolder", f"data.root={tmp_path}", "trainer.accelerator=cpu"], {})
    found = []
    monkeypatch.setattr(World, "compare", lambda world, key, facts, timeout_s: found.append(facts))

    def facts():
        make_data(config.configs[0], World(WorldInfo()), print)
        return found[-1]

    first = facts()
    assert differences([first, facts()], "rank") == []
    next((tmp_path / "train" / "cat").iterdir()).rename(tmp_path / "train" / "cat" / "renamed.png")
    (mistake,) = differences([first, facts()], "rank")
    assert mistake.startswith("the ranks disagree on the names of the images: ")
