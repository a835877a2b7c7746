import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.plans import plan_of

from imagenet_ddp.distributed.place import Place
from imagenet_ddp.launch.plan import Choice, trainer_arguments
from imagenet_ddp.models.lr_schedules import make_schedule


@pytest.fixture
def folder(tree: Path) -> list[str]:
    return ["data=imagefolder", f"data.root={tree}", "model.name=mobilenet_v3_small"]


def test_cudnn_measures_on_gpus_alone(folder: list[str]) -> None:
    def benchmark(kind: str, *typed: str) -> bool | None:
        plan = dataclasses.replace(plan_of(*folder, *typed), accelerator=Choice(kind, "here"))
        return trainer_arguments(plan)["benchmark"]

    assert benchmark("cuda") is True
    assert benchmark("cpu") is benchmark("mps") is None
    assert benchmark("cuda", "trainer.deterministic=true") is benchmark("cuda", "trainer.deterministic=warn") is None
    assert benchmark("cuda", "trainer.benchmark=false") is False


def test_one_process_drives_all_devices_with_dp(folder: list[str]):
    plan = plan_of(*folder, "strategy=dp", "trainer.devices=3", "data.batch_size=4", "data.val_batch_size=5")
    assert (plan.num_own_devices, plan.num_devices) == (3, 3)
    assert (plan.images_per_forward, plan.val_images_per_forward, plan.global_batch_size) == (12, 15, 12)


@pytest.mark.parametrize(
    ("typed", "world_size", "factors"),
    [
        ((), 1, {0: 1, 29.9: 1, 30: 0.1, 60: 0.01}),  # one GPU: torchvision's schedule to the letter
        ((), 8, {0: 0, 2.5: 0.5, 5: 1, 29.9: 1, 30: 0.1, 60: 0.01}),
        (("optim.scaling=none",), 8, {0: 1, 30: 0.1}),
    ],
)
def test_the_imagenet_recipe_warms_up_large_batches_only(
    typed: tuple[str, ...], world_size: int, factors: dict[float, float], folder: list[str]
):
    world = Place(world_size=world_size, local_world_size=world_size)
    plan = plan_of(*folder, "recipe=imagenet", "data.batch_size=256", *typed, place=world)
    config = plan.config
    schedule = make_schedule(config.schedule, config.trainer.max_epochs, plan.warmup_epochs.value)
    assert {epochs: schedule(epochs) for epochs in factors} == pytest.approx(factors)


@pytest.mark.parametrize(
    ("typed", "before", "world_size", "split"),
    [
        (("data.batch_size=32",), 128, 2, (32, 2)),
        (("data.batch_size=32",), 128, 8, (16, 1)),
        (("data.batch_size=32", "trainer.accumulate_grad_batches=2"), 128, 4, (32, 1)),
        (("data.batch_size=4", "strategy=dp", "trainer.devices=2"), 12, 1, (3, 2)),
        (("data.batch_size=32", "strategy.static_graph=true"), 64, 4, (16, 1)),
    ],
)
def test_a_resumed_run_keeps_its_update(
    typed: tuple[str, ...], before: int, world_size: int, split: tuple[int, int], folder: list[str]
) -> None:
    world = Place(world_size=world_size, local_world_size=world_size)
    typed = (*typed, "optim.reference_batch=64", "optim.lr=0.1", "trainer.limit_train_batches=10",
             "trainer.val_check_interval=3")  # fmt: skip
    plan = plan_of(*folder, *typed, place=world, global_batch_size_before=before)
    assert (plan.global_batch_size, plan.learning_rate.value) == (before, pytest.approx(0.1 * before / 64))
    assert tuple(plan.batch.value.values()) == split
    arguments = trainer_arguments(plan)
    assert arguments["accumulate_grad_batches"] == split[1]
    # as many updates in an epoch, and up to a validation, at least: 3 forwards in pairs are one and a half
    times = 2 if "trainer.accumulate_grad_batches=2" in typed else 1
    counted = arguments["limit_train_batches"], arguments["val_check_interval"]
    assert counted == (10 * split[1] // times, math.ceil(3 * split[1] / times))


def test_the_precision_is_that_of_the_processs_own_gpu(folder: list[str], monkeypatch: pytest.MonkeyPatch):
    models = [SimpleNamespace(name="V100", major=7), SimpleNamespace(name="A100", major=8)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu=0: models[gpu])
    of_rank = [
        plan_of(*folder, "trainer.accelerator=gpu", "trainer.devices=[1,0]", place=Place(local_rank=rank))
        for rank in (0, 1)
    ]
    assert [plan.precision.value for plan in of_rank] == ["bf16-mixed", "16-mixed"]
    assert of_rank[1].precision.reason == "V100 has tensor cores for fp16, but none for bf16"
