"""The first call that initialises CUDA in a process is set_device of its own GPU. Otherwise, every rank would create a
context on GPU 0. Ranks are threads here, because CUDA's current device belongs to the thread."""

import os
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from helpers.plans import plan_of
from torch.distributed import TCPStore

from imagenet_ddp.cli.check_launch import find_place
from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.distributed.place import Address, Place
from imagenet_ddp.doctor.check_machine import CHECKS
from imagenet_ddp.doctor.run_checks import inspect_machine, run_checks
from imagenet_ddp.launch import ranks
from imagenet_ddp.launch.job import Job
from imagenet_ddp.launch.world import meet_ranks
from imagenet_ddp.training import batch_finder
from imagenet_ddp.use.predictor import make_predictor


class Recorder:
    """Stand in for the calls of CUDA, and record them by thread. num_visible: GPUs that each process sees."""

    def __init__(self, patch: pytest.MonkeyPatch, num_visible: int, visible: str | None = None) -> None:
        self.calls: dict[int, list[str]] = defaultdict(list)
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: num_visible)
        patch.setattr(torch.cuda, "_lazy_init", lambda: self.add("initialise"))
        patch.setattr(torch.cuda, "set_device", lambda device: self.add(f"set_device {device}"))
        patch.setattr(torch.cuda, "_get_device_properties", self.properties, raising=False)
        patch.setattr(torch.cuda, "current_device", self.current_device)  # of autocast, which asks for bf16
        for name in ("device", "mem_get_info", "empty_cache", "reset_peak_memory_stats"):  # of the batch finder
            patch.setattr(torch.cuda, name, self.memory)
        if visible is not None:
            patch.setenv("CUDA_VISIBLE_DEVICES", visible)

    def add(self, call: str) -> None:
        self.calls[threading.get_ident()].append(call)

    def current_device(self) -> int:
        self.add("initialise")
        return 0

    def memory(self, *_: object) -> Any:
        self.add("initialise")
        free_and_total = mock.MagicMock()
        free_and_total.__getitem__.return_value = 2**30
        return free_and_total

    def properties(self, number: int) -> SimpleNamespace:
        uuid = f"{threading.get_ident()}-{number}"  # with --gpus-per-task, GPU 0 is another one in each process
        return SimpleNamespace(name="NVIDIA H200", uuid=uuid, major=9, minor=0)


@dataclass(frozen=True)
class Layout:
    """expected: the GPU of each rank. environ: the variables of a launcher, with the rank in braces."""

    expected: tuple[int, ...]
    devices: int | list[int] | str = "auto"
    strategy: str = "ddp"
    num_visible: int = 4
    visible: str | None = None
    environ: tuple[tuple[str, str], ...] = ()


TORCHRUN = (
    ("TORCHELASTIC_RUN_ID", "1"), ("RANK", "{}"), ("LOCAL_RANK", "{}"), ("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "4"),
    ("GROUP_RANK", "0"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1"),
)  # fmt: skip
SRUN = (
    ("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_PROCID", "{}"),
    ("SLURM_LOCALID", "{}"), ("SLURM_NODEID", "0"), ("SLURM_STEP_NUM_NODES", "1"), ("SLURM_NTASKS", "4"),
    ("SLURM_STEP_TASKS_PER_NODE", "4"), ("SLURM_STEP_NODELIST", "a"), ("SLURM_NNODES", "1"),
)  # fmt: skip
LAYOUTS = {
    "one process": Layout((0,), 1),
    "four local ranks": Layout((0, 1, 2, 3)),
    "listed GPUs": Layout((2, 3), [2, 3]),
    "visible by number": Layout((0, 1), num_visible=2, visible="1,3"),
    "visible by UUID": Layout((0, 1), num_visible=2, visible="GPU-5a,GPU-7c"),
    "visible by MIG name": Layout((0,), num_visible=1, visible="MIG-5f2"),
    "srun --gpus-per-task": Layout((0, 0, 0, 0), num_visible=1, visible="0", environ=SRUN),
    "torchrun": Layout((0, 1, 2, 3), environ=TORCHRUN),
    "dp": Layout((3,), [3, 1], "dp"),
}


def config_of(layout: Layout) -> CommonConfig:
    config = plan_of().config
    trainer = replace(config.trainer, accelerator="auto", devices=layout.devices, batch_finder=True)
    return replace(config, trainer=trainer, strategy=replace(config.strategy, name=layout.strategy))


def places(layout: Layout, config: CommonConfig, port: int) -> list[Place]:
    size = len(layout.expected)
    environs = [{name: value.format(rank) for name, value in layout.environ} for rank in range(size)]
    found = [
        find_place(config, environ)
        if environ
        else Place(rank=rank, local_rank=rank, world_size=size, local_world_size=size)
        for rank, environ in enumerate(environs)
    ]
    return [replace(place, address=Address("127.0.0.1", port), store_is_served=True) for place in found]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_rank_first_sets_its_own_gpu(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(layout)
    recorder = Recorder(monkeypatch, layout.num_visible, layout.visible)
    monkeypatch.setattr(batch_finder, "largest_batch", lambda step: 8)
    ten = timedelta(seconds=10)
    store = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False, timeout=ten)

    def run(info: Place) -> tuple[torch.device, list[int], list[str]]:
        """Meet the others, plan and find the batch, as in a training."""
        world = meet_ranks(info, config, {})
        job = Job(config, Path("r"))
        plan = ranks.plan_process(job, world)
        batch_finder.find_batch(job, plan, world)
        numbers = [gpu.number for gpu in plan.own_gpus()]
        world.leave()
        return plan.device, numbers, recorder.calls[threading.get_ident()]

    infos = places(layout, config, store.port)
    assert len(infos) == len(layout.expected)
    with mock.patch.dict(os.environ), ThreadPoolExecutor(len(infos)) as pool:
        for future, own in zip([pool.submit(run, info) for info in infos], layout.expected, strict=True):
            device, numbers, calls = future.result(60)
            assert device == torch.device("cuda", own)
            assert numbers[0] == own
            assert calls[0] == f"set_device cuda:{own}" and "initialise" in calls
            assert {call for call in calls if call != "initialise"} == {calls[0]}


def test_a_command_of_one_process_first_sets_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """predict and doctor, which may also look at the GPUs of the ranks that it starts."""
    config: Any = config_of(LAYOUTS["listed GPUs"])
    monkeypatch.setattr(batch_finder, "largest_batch", lambda step: 8)
    trained: Any = SimpleNamespace(classes=["a"], labels=["a"], contents=None, origin="the test")
    net: Any = SimpleNamespace(to=lambda device: moved.append(device))
    moved = list[torch.device]()
    recorder = Recorder(monkeypatch, 4)
    predictor = make_predictor(config, trained, net)
    calls = recorder.calls.pop(threading.get_ident())
    assert predictor.device == moved[0] == torch.device("cuda", 2) and calls[0] == "set_device cuda:2"
    machine = inspect_machine(config, {}, [], Path("r"))
    assert not recorder.calls, "a command that may start ranks does not initialise CUDA to count its GPUs"
    ((check,),) = run_checks(machine, [each for each in CHECKS if each[0] == "devices"])
    assert check.ok and "cuda:2" in check.what and "cuda:3" in check.what
    assert recorder.calls.pop(threading.get_ident())[0] == "set_device cuda:2"
    assert machine.plan.device == torch.device("cuda", 2)
    assert recorder.calls.pop(threading.get_ident())[0] == "set_device cuda:2"
