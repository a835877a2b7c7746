"""The recipes of pytorch/examples and of torchvision mean what they mean there: a run of this project beside a plain
loop (helpers/plain_loop.py) from the same weights, pixels and draws.

What else they share is compared with torch and torchvision where it is made: the images of an epoch in
tests/data/test_sampler.py, validation's pixels in tests/data/test_transforms.py, mixed pixels and targets in
tests/data/test_mixing.py, the parameters without weight decay of real nets in test_parameter_groups.py.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import write_images
from helpers import plain_loop
from helpers.plain_loop import Options
from helpers.plans import plan_of
from helpers.recorded_run import record

from imagenet_ddp.callbacks.learning_rate import LearningRate
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.models.lr_schedules import make_schedule

# What their commands say. The defaults are those of pytorch/examples, and of torchvision's references.
V2 = Options(
    epochs=600, batch_size=1024, lr=0.5, weight_decay=2e-5, norm_weight_decay=0.0, label_smoothing=0.1,
    lr_scheduler="cosineannealinglr", lr_warmup_epochs=5,
)  # fmt: skip
THEIRS = {"torchvision_v1": Options(), "torchvision_v2": V2}
NUM_GPUS = 8

# At a small size: 40 images in 5 steps of 8, at the rate that 64 images a step would have.
BATCH, STEPS, CLASSES = 8, 5, {"cat": 14, "dog": 13, "owl": 13}
SMALL = (
    "data=imagefolder", "data.image_size=32", "data.val_resize=32", f"data.batch_size={BATCH}", "data.num_workers=0",
    "optim.reference_batch=64", "trainer.precision=32-true", "trainer.limit_val_batches=0", "cluster.num_threads=1",
    "callbacks=none", "logger=none", "model._target_=helpers.plain_loop.SmallNet", "allow_targets=[helpers]",
)  # fmt: skip
# experiment -> what makes its epochs few, here and there; repeated copies need more images.
FEW_EPOCHS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "torchvision_v1": (["schedule.step_epochs=1"], {"lr_step_size": 1}),
    "torchvision_v2": (
        ["data.train_size=32", "data.repeats=1", "schedule.warmup_epochs=1"],
        {"lr_warmup_epochs": 1},
    ),
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    write_images(root / "train", CLASSES)
    write_images(root / "val", dict.fromkeys(CLASSES, 1))
    return root


@pytest.mark.parametrize("name", THEIRS)
def test_ten_steps_lose_the_same(name: str, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In float32, where the order of additions differs: to 1e-5."""
    here, there = FEW_EPOCHS[name]
    options = [f"experiment={name}", *SMALL, f"data.root={images}", "trainer.max_epochs=2", *here, "averaging=none"]
    theirs = replace(THEIRS[name], epochs=2, batch_size=BATCH, lr=THEIRS[name].lr * BATCH / 64, **there)
    recording = record(options, tmp_path, monkeypatch)
    assert [len(batches) for batches in recording.epochs] == [STEPS, STEPS]
    net = plain_loop.SmallNet(len(CLASSES))
    net.load_state_dict(recording.start)
    trained = plain_loop.train(net, recording.epochs, len(CLASSES), theirs)
    assert recording.losses == pytest.approx(trained.losses, abs=1e-5)
    assert recording.rates == pytest.approx(trained.rates)
    assert len(set(trained.rates)) == 2
    end = net.state_dict()
    for key, value in recording.end.items():
        torch.testing.assert_close(value, end[key], rtol=0, atol=1e-5)
    assert recording.weight_decays == plain_loop.weight_decays(plain_loop.SmallNet(3), theirs)
    mixes = [batch.mix for batches in recording.epochs for batch in batches]
    kinds = {None if mix is None else mix.box is None for mix in mixes}
    assert kinds == ({True, False} if name == "torchvision_v2" else {None})  # mixup and CutMix


@pytest.mark.parametrize("name", THEIRS)
def test_every_steps_learning_rate_is_theirs(name: str, images: Path):
    """On the devices that the recipe is for; of ImageNet's sizes, but for its images."""
    world, theirs = Place(world_size=NUM_GPUS, local_world_size=NUM_GPUS), THEIRS[name]
    plan = plan_of(f"experiment={name}", "data=imagefolder", f"data.root={images}", place=world)
    assert plan.global_batch_size == theirs.batch_size
    max_epochs, steps = plan.config["trainer"]["max_epochs"], 3
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=plan.learning_rate.value)
    schedule = LearningRate(make_schedule(plan.config["schedule"], max_epochs, plan.warmup_epochs.value))
    trainer: Any = SimpleNamespace(optimizers=[optimizer], num_training_batches=steps, accumulate_grad_batches=1)
    module: Any = None
    schedule.on_fit_start(trainer, module)
    found = []
    for trainer.current_epoch in range(max_epochs):
        for step in range(steps):
            schedule.on_train_batch_start(trainer, module, None, step)
            found.append(optimizer.param_groups[0]["lr"])
    assert found == pytest.approx([rate for rate in plain_loop.rates(theirs) for _ in range(steps)], abs=1e-9)
    if name == "torchvision_v2":  # torchvision scales the distance of the typed 0.99998 from 1
        assert plan.config.averaging.decay == pytest.approx(1 - 2e-5 * 1024 * 32 / 600, abs=1e-6)
