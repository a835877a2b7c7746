import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.plans import plan_of

from imagenet_ddp.data.workers import choose_num_workers
from imagenet_ddp.distributed.launchers.world_info import WorldInfo
from imagenet_ddp.engine import startup_report
from imagenet_ddp.engine.plan import Choice, data_options, trainer_arguments
from imagenet_ddp.models.lr_schedules import make_schedule

TWO_NODES = WorldInfo(rank=3, local_rank=1, node_rank=1, world_size=4, local_world_size=2, num_nodes=2, address="a")


@pytest.fixture
def folder(tree: Path) -> list[str]:
    return ["data=imagefolder", f"data.root={tree}", "model.name=mobilenet_v3_small"]


def test_every_choice_has_a_value_and_a_reason(folder: list[str]):
    plan = plan_of(*folder, world_info=TWO_NODES)
    choices = plan.choices()
    assert choices.keys() >= {
        "accelerator", "precision", "num_threads", "num_workers", "decoder", "learning_rate",
        "warmup_epochs",
    }  # fmt: skip
    assert all(choice["value"] not in (None, "auto") and choice["reason"] for choice in choices.values())
    json.dumps(choices)  # as summary.json stores them
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.precision = Choice("64-true", "later")  # type: ignore[misc]


def test_what_is_left_to_the_plan_reaches_the_trainer_and_the_data(folder: list[str]):
    plan = plan_of(*folder, "data.batch_size=6", "trainer.accumulate_grad_batches=2", world_info=TWO_NODES)
    arguments, options = trainer_arguments(plan), data_options(plan)
    assert (arguments["accelerator"], arguments["devices"], arguments["num_nodes"]) == ("cpu", 2, 2)
    assert arguments["precision"] == plan.precision.value
    assert options["num_workers"] == choose_num_workers("auto", True, 2)[0]
    assert (options["batch_size"], options["val_batch_size"]) == (6, 6)
    assert plan.global_batch_size == 6 * 4 * 2
    assert "auto" not in {options[key] for key in ("num_workers", "decoder")}


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
        (("schedule.warmup_epochs=0",), 8, {0: 1, 30: 0.1}),
        (("optim.scaling=none",), 8, {0: 1, 30: 0.1}),
        (("optim.reference_batch=null",), 8, {0: 1, 30: 0.1}),
    ],
)
def test_the_imagenet_recipe_warms_up_large_batches_only(
    typed: tuple[str, ...], world_size: int, factors: dict[float, float], folder: list[str]
):
    world = WorldInfo(world_size=world_size, local_world_size=world_size)
    plan = plan_of(*folder, "recipe=imagenet", "data.batch_size=256", *typed, world_info=world)
    config = plan.config
    schedule = make_schedule(config["schedule"], config["trainer"]["max_epochs"], plan.warmup_epochs.value)
    assert {epochs: schedule(epochs) for epochs in factors} == pytest.approx(factors)


@pytest.mark.parametrize(
    ("typed", "before", "world_size", "split"),
    [
        (("data.batch_size=32",), 128, 4, (32, 1)),
        (("data.batch_size=32",), 128, 2, (32, 2)),
        (("data.batch_size=32",), 128, 8, (16, 1)),
        (("data.batch_size=32", "trainer.accumulate_grad_batches=2"), 128, 4, (32, 1)),
        (("data.batch_size=32",), 96, 2, (24, 2)),
        (("data.batch_size=4", "strategy=dp", "trainer.devices=2"), 12, 1, (3, 2)),
        (("data.batch_size=32", "strategy.static_graph=true"), 64, 4, (16, 1)),
    ],
)
def test_a_resumed_run_keeps_its_update(
    typed: tuple[str, ...], before: int, world_size: int, split: tuple[int, int], folder: list[str]
) -> None:
    world = WorldInfo(world_size=world_size, local_world_size=world_size)
    typed = (*typed, "optim.reference_batch=64", "optim.lr=0.1", "trainer.limit_train_batches=10",
             "trainer.val_check_interval=3")  # fmt: skip
    plan = plan_of(*folder, *typed, world_info=world, update_before=before)
    assert (plan.global_batch_size, plan.learning_rate.value) == (before, pytest.approx(0.1 * before / 64))
    assert tuple(plan.batch.value.values()) == split
    arguments = trainer_arguments(plan)
    assert arguments["accumulate_grad_batches"] == split[1]
    # as many updates in an epoch, and up to a validation, at least: 3 forwards in pairs are one and a half
    times = 2 if "trainer.accumulate_grad_batches=2" in typed else 1
    counted = arguments["limit_train_batches"], arguments["val_check_interval"]
    assert counted == (10 * split[1] // times, math.ceil(3 * split[1] / times))


@pytest.mark.parametrize(
    ("key", "typed", "keep", "world_size", "sentence"),
    [
        ("reference_batch=64", (), True, 3,
         "The batch changed from 128 to 96 images per step (128 images cannot be split evenly among these devices), "
         "and the learning rate changes with it from 0.2 to 0.15."),
        ("scaling=none", (), True, 3,
         "The batch changed from 128 to 96 images per step (128 images cannot be split evenly among these devices), "
         "and the learning rate stays 0.1, because it is not scaled."),
        ("reference_batch=64", (), False, 2,
         "The batch changed from 128 to 64 images per step (as set), and the learning rate "
         "changes with it from 0.2 to 0.1."),
        ("reference_batch=64", ("strategy.static_graph=true",), True, 2,
         "The batch changed from 128 to 64 images per step (128 images cannot be split evenly among these devices "
         "without accumulation), and the learning rate changes with it from 0.2 to 0.1."),
    ],
)  # fmt: skip
def test_an_update_that_changes_is_reported(
    key: str, typed: tuple[str, ...], keep: bool, world_size: int, sentence: str, folder: list[str]
) -> None:
    world = WorldInfo(world_size=world_size, local_world_size=world_size)
    options = [*folder, *typed, "data.batch_size=32", "optim.lr=0.1", f"optim.{key}"]
    plan = plan_of(*options, world_info=world, update_before=128, keep_update=keep)
    assert startup_report.batch_lines(plan)[1:] == [sentence]


@pytest.mark.parametrize(
    ("typed", "share"),
    [
        (("schedule.warmup_epochs=2",), "50 % of 0.1"),
        (("schedule.warmup_epochs=2", "schedule.warmup_start=0.2"), "60 % of 0.1"),
        (("schedule.warmup_epochs=2", "schedule.warmup_start=0.2", "schedule.warmup=constant"), "20 % of 0.1"),
        (("schedule.warmup_epochs=1",), None),
        (("schedule.warmup_epochs=2", "schedule.name=constant", "trainer.max_epochs=-1"), None),
        (("schedule.warmup_epochs=auto",), None),
    ],
)
def test_a_warmup_longer_than_the_run(typed: tuple[str, ...], share: str | None, folder: list[str]) -> None:
    plan = plan_of(*folder, "optim.lr=0.1", "optim.scaling=none", "trainer.max_epochs=1", *typed)
    assert startup_report.long_warmup_lines(plan) == ([] if share is None else [
        "The warm-up (2 epochs) is longer than the run (1 epoch), so the learning rate reaches only "
        f"{share}. Hint: set schedule.warmup_epochs=auto."
    ])  # fmt: skip


def test_the_precision_is_that_of_the_processs_own_gpu(folder: list[str], monkeypatch: pytest.MonkeyPatch):
    models = [SimpleNamespace(name="V100", major=7), SimpleNamespace(name="A100", major=8)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu=0: models[gpu])
    of_rank = [
        plan_of(*folder, "trainer.accelerator=gpu", "trainer.devices=[1,0]", world_info=WorldInfo(local_rank=rank))
        for rank in (0, 1)
    ]
    assert [plan.precision.value for plan in of_rank] == ["bf16-mixed", "16-mixed"]
    assert of_rank[1].precision.reason == "V100 has tensor cores for fp16, but none for bf16"
