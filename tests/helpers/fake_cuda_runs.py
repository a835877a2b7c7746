"""Trainings and evaluations as the commands make them, on a GPU that helpers/fake_cuda.py fakes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers.fake_cuda import FakeCuda, Steps
from helpers.plans import plan_of

from imagenet_ddp.distributed.place import Place
from imagenet_ddp.launch.job import Job
from imagenet_ddp.launch.plan import Plan
from imagenet_ddp.launch.world import World
from imagenet_ddp.runs.log import Log
from imagenet_ddp.runs.signals import Signals
from imagenet_ddp.training import build

OPTIONS = (
    "data=imagefolder", "data.image_size=32", "data.val_resize=32", "data.batch_size=4", "data.num_workers=0",
    "model._target_=helpers.plain_loop.SmallNet", "allow_targets=[helpers]", "trainer.max_epochs=1",
    "trainer.accelerator=gpu", "val_log_every_n_steps=1000", "cluster.num_threads=1",
    "logger=none",
)  # fmt: skip


def gpu_plan(root: Path, *options: str, place: Place | None = None) -> Plan:
    """Return the plan of a training of a small net on the images in root."""
    keys = {each.partition("=")[0] for each in options}
    default = [each for each in OPTIONS if each.partition("=")[0] not in keys]
    return plan_of(*default, f"data.root={root}", *options, place=place)


def train(
    cuda: FakeCuda,
    plan: Plan,
    folder: Path,
    world: World | None = None,
    change: Callable[[build.Run], None] = lambda run: None,
) -> build.Run:
    """Train to the end. change: called with the parts of the run before it begins."""
    world = world or World(plan.place, plan.device)
    run = build.make_run(Job(plan.config, folder), plan, world, Log(None, plan.place.rank), Signals())
    run.trainer.callbacks.append(Steps(cuda))  # type: ignore[attr-defined]
    change(run)
    run.trainer.fit(run.module, datamodule=run.data)
    return run


def evaluate(cuda: FakeCuda, plan: Plan, folder: Path, callbacks: list[Any]) -> None:
    """Validate a net as evaluate does."""
    world = World(plan.place, plan.device)
    data = build.make_data(plan, world, print)
    module = build.make_module(plan, data.source.classes, len(data.val_images))
    trainer = build.make_trainer(plan, world, [*callbacks, Steps(cuda)], folder)
    trainer.validate(module, datamodule=data, verbose=False)
