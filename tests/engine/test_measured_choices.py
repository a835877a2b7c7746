import dataclasses
import json
import os
from pathlib import Path

import pytest
import torch
from conftest import PROBES, clean_environ
from helpers import forked_commands
from helpers.plans import plan_of

from imagenet_ddp.cli.parse import command_line
from imagenet_ddp.config.section import to_plain
from imagenet_ddp.distributed.launchers.world_info import WorldInfo
from imagenet_ddp.engine import worker
from imagenet_ddp.engine.job import Job
from imagenet_ddp.engine.measured_choices import find_batch
from imagenet_ddp.engine.plan import Choice, Plan, make_plan, trainer_arguments
from imagenet_ddp.engine.world import World
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.performance import batch_finder


@pytest.fixture
def plan(tree: Path) -> Plan:
    """Of a GPU, as far as the search asks."""
    found = plan_of("data=imagefolder", f"data.root={tree}", "data.batch_size=32", "optim.reference_batch=256")
    config = dataclasses.replace(found.config, trainer=dataclasses.replace(found.config.trainer, batch_finder=True))
    return dataclasses.replace(found, config=config, accelerator=Choice("cuda", "the test says so"))


def job_of(plan: Plan, checkpoint: Path | None = None) -> Job:
    return Job(plan.config, Path("r"), checkpoint, ("first",))


def room_for(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(images: int) -> None:
        if images > limit:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(batch_finder, "cuda_step", lambda *_: step)


def test_what_is_found_is_as_if_it_was_typed(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    room_for(100, monkeypatch)
    job = find_batch(job_of(plan), plan, World(WorldInfo()))
    assert job.config["data"]["batch_size"] == 96
    assert job.messages == (
        "first",
        "trainer.batch_finder: data.batch_size=96 instead of 32. This is the largest batch for which 2 training steps "
        "need at most 90% of the free memory of rank 0.",
    )
    then = make_plan(job.config, WorldInfo())
    assert (then.global_batch_size, then.images_per_forward) == (96, 96)
    assert then.learning_rate.value == pytest.approx(plan.learning_rate.value * 3)
    assert "batch_finder" not in trainer_arguments(then), "Lightning knows no such argument"


def test_a_resumed_run_keeps_what_was_found(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    room_for(8, monkeypatch)
    job = job_of(plan, Path("last.ckpt"))
    found = find_batch(job, plan, World(WorldInfo()))
    assert found.config == job.config
    assert found.messages[-1] == "trainer.batch_finder: the resumed run keeps data.batch_size=32."


def test_no_room_at_all(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    room_for(7, monkeypatch)
    with pytest.raises(ConfigError, match="rank 0 must have enough memory for batches of 8 images"):
        find_batch(job_of(plan), plan, World(WorldInfo()))


def test_the_ranks_agree_on_the_smallest(plan: Plan, tmp_path: Path) -> None:
    """Two processes, of which each finds another limit."""
    config = {**plan.config, "trainer": {**plan.config["trainer"], "accelerator": "cpu"}}
    arguments = (json.dumps(to_plain(config)), "[96, 40]")
    environment = clean_environ(PYTHONPATH=PROBES)
    done = forked_commands.run("smallest_batch", *arguments, folder=tmp_path, environment=environment)
    assert json.loads(done.stdout) == [96, [40, 1], True], done.stderr


def test_without_a_gpu(plan: Plan) -> None:
    on_mps = dataclasses.replace(plan, accelerator=Choice("mps", "an Apple"))
    with pytest.raises(ConfigError, match="needs an NVIDIA or AMD GPU"):
        find_batch(job_of(plan), on_mps, World(WorldInfo()))
    with pytest.raises(ConfigError) as caught:
        command_line("train", ["trainer.accelerator=cpu", "trainer.batch_finder=true", "++data.batch_size=8"], {})
    assert "trainer.batch_finder=true needs a GPU, whose memory limits the batch, but trainer.accelerator is cpu." in (
        str(caught.value)
    )
    assert any("finds data.batch_size, but ++data.batch_size=8 is set." in each for each in caught.value.mistakes)


def test_cublas_is_deterministic_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    for deterministic, found in (("false", ""), ("true", ":4096:8")):
        for name in ("CUBLAS_WORKSPACE_CONFIG", "OMP_NUM_THREADS"):
            monkeypatch.setenv(name, "")  # and restored at the end
        config = plan_of(f"trainer.deterministic={deterministic}").config
        worker.make_plan(Job(config, Path()), World(WorldInfo()))
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == found
