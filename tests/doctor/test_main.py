"""Doctor: each check on machines as they are and as they are made up, the command, and ranks together."""

import os
import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import Run, clean_environ, small_run

from imagenet_ddp.config.schema.run import RunConfig
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.doctor import __main__ as doctor
from imagenet_ddp.doctor import check_machine, check_ranks
from imagenet_ddp.doctor.run_checks import Check, CheckFunction, Machine, inspect_machine, run_checks
from imagenet_ddp.doctor.scaling import Step
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch.world import World
from imagenet_ddp.system import cpu_cores, idle_cores, nvidia_gpus
from imagenet_ddp.training.step_timer import AllReduce

MIB = 2**20
TINY = (*small_run("model.name=mobilenet_v3_small"), "data.batch_size=2", "trainer.devices=1")


@pytest.fixture
def machine(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Machine]:
    """machine("data.num_workers=9", MASTER_ADDR="..."): this one, as these options and variables make it."""
    monkeypatch.chdir(tmp_path)

    def make(*typed: str, **environ: str) -> Machine:
        here = {**clean_environ(), **environ}
        read = doctor.read([*TINY, f"data.root={tree}", *typed], here)
        return inspect_machine(read.config, here, read.request.typed, read.run_dir)

    return make


def look(machine: Machine, name: str) -> list[Check]:
    (found,) = run_checks(machine, [(name, dict(check_machine.CHECKS)[name])])
    return found


def only(machine: Machine, name: str) -> Check:
    (check,) = look(machine, name)
    assert check.name == name
    return check


def test_a_batch_that_does_not_fit_is_a_failed_check(machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch):
    def too_large(*_: object) -> None:
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(check_ranks, "make_training", too_large)
    world = World(Place(), torch.device("cpu"))
    (check,) = check_ranks.check_world(machine("trainer.accelerator=cpu").config, world, [], 0)
    assert not check.ok and check.what == "can't allocate memory" and "data.batch_size" in check.hint


# ---- this machine ----------------------------------------------------------------------------------------------------


def test_cards_that_torch_does_not_see(machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch):
    if torch.cuda.is_available():
        pytest.skip("torch sees this machine's cards")
    monkeypatch.setattr(nvidia_gpus, "query_gpus", lambda: [("GPU-1", "NVIDIA A100")])
    check = only(machine("trainer.accelerator=auto", "trainer.devices=auto"), "devices")
    assert not check.ok and "this machine has 1 GPU (NVIDIA A100), but" in check.what
    assert only(machine("trainer.accelerator=cpu"), "devices").ok


def test_more_workers_than_cores(machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)))
    assert only(machine("data.num_workers=2", "trainer.devices=2"), "cores").ok
    check = only(machine("data.num_workers=3", "trainer.devices=2"), "cores")
    assert not check.ok and "4 cores, for 2 processes with 1 thread and 3 loader workers each, more" in check.what
    assert not only(machine("cluster.num_threads=4", "trainer.devices=2"), "cores").ok
    check = only(machine("trainer.devices=8"), "cores")
    assert not check.ok and "trainer.devices" in check.hint and check.hint.endswith("for 4 cores in all")


def test_a_container_with_fewer_cores_than_it_sees(machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    for module in (check_machine, cpu_cores):
        monkeypatch.setattr(module, "cpu_quota", lambda: 2.5)
    monkeypatch.setattr(idle_cores, "count_cores", lambda num_alike: idle_cores.Cores(2, "idle"))
    check = only(machine("cluster.num_threads=auto"), "cores")
    assert check.ok and "16 cores, of which this container may use 2.5, for 1 process with 2 threads" in check.what


Usage = namedtuple("Usage", "total used free")


def test_dockers_shared_memory(machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(64 * MIB, 0, 64 * MIB))
    big = ("data.image_size=224", "data.val_resize=256", "data.batch_size=256", "data.num_workers=4")
    check = only(machine(*big), "shared memory")
    assert not check.ok and "--shm-size=1g" in check.hint
    assert "need 294 MiB" in check.what  # 4 workers × 2 batches × 36.75 MiB
    assert only(machine(*big, "data.num_workers=0"), "shared memory").ok


# ---- the network -----------------------------------------------------------------------------------------------------


def test_an_interface_that_is_not_there(machine: Callable[..., Machine]):
    one = machine("nccl.env.NCCL_SOCKET_IFNAME=eth77", "trainer.devices=2")
    check = only(one, "variables")
    assert not check.ok and "eth77" in check.what
    assert only(one, "rendezvous").ok  # said once


def test_the_variables_are_those_of_the_run(machine: Callable[..., Machine]):
    typed = only(machine("nccl.env={NCCL_SOCKET_IFNAME: lo, GLOO_SOCKET_IFNAME: lo}", "trainer.devices=2"), "variables")
    assert typed.what == "NCCL_SOCKET_IFNAME=lo (nccl=); GLOO_SOCKET_IFNAME=lo (nccl=)"
    assert only(machine(), "variables").what == "none set, none needed"


# ---- data and run folder ---------------------------------------------------------------------------------------------


def test_data_that_is_well(machine: Callable[..., Machine]):
    check = only(machine(), "data")
    assert check.ok and "29 images in" in check.what and "9 to 10 of each of 3 classes" in check.what


def test_a_full_disk(machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch):
    one = machine("model.name=resnet18")
    check = only(one, "run folder")
    assert check.ok and "a checkpoint takes 85 MiB" in check.what  # 3 classes, with momentum
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(2**40, 2**40, 200 * MIB))
    check = only(one, "run folder")
    assert not check.ok and check.what.endswith("4 must fit")


def test_the_checkpoint_of_a_net_that_reads_numbers_while_it_is_made(
    machine: Callable[..., Machine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "own_net.py").write_text(
        "import torch\n\n\ndef make(num_classes):\n"
        "    width, = [x.item() for x in torch.tensor([250_000])]  # as stochastic depth is usually spread\n"
        "    return torch.nn.Linear(width, num_classes)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    check = only(machine("model._target_=own_net.make", "allow_targets=[own_net]"), "run folder")
    assert check.ok and "a checkpoint takes 6 MiB" in check.what  # of 750,000 weights and their momentum


def test_one_check_does_not_end_the_others(machine: Callable[..., Machine]):
    def broken(machine: Machine) -> list[Check]:
        raise ZeroDivisionError("by nothing")

    functions: list[tuple[str, CheckFunction]] = [("broken", broken), check_machine.CHECKS[0]]
    (first,), (second,) = run_checks(machine(), functions)
    assert not first.ok and "ZeroDivisionError: by nothing" in first.what and second.ok


# ---- options and lines -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("trainer.devcies=2", "trainer.devcies is not a known key"),
        ("resume=README.md", "resume=README.md loads the options of a run"),
        ("-m", "-m starts several jobs"),
    ],
)
def test_options_that_cannot_be_read_are_refused(
    typed: str, said: str, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("README.md").touch()
    with pytest.raises(ConfigError) as error:
        doctor.read([*TINY, f"data.root={tree}", typed], clean_environ())
    assert len(error.value.mistakes) == 1 and str(error.value.mistakes[0]).startswith(said)


# ---- the command -----------------------------------------------------------------------------------------------------


def test_a_machine_that_is_not(run: Run, tmp_path: Path):
    result = run("doctor", *TINY, "data.root=gone", "trainer.accelerator=cpu")
    assert result.returncode == 1, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 13 and lines[-1] == "Not ready: data."
    assert lines[2].startswith("plan          ok   2 images per device; ") and "(as set)" not in lines[2]
    assert lines[7].startswith("data          FAIL data.root must be a folder") and "Hint: " in lines[7]
    assert lines[10].startswith("step          ok")  # the checks after a failed one run too


@pytest.mark.slow
def test_two_processes_that_are_ready(run: Run, tree: Path, tmp_path: Path):
    result = run("doctor", *TINY, f"data.root={tree}", "trainer.devices=2")
    assert result.returncode == 0, result.stderr + result.stdout
    *lines, last = result.stdout.splitlines()
    assert last == "All checks passed: training can start." and lines[0].startswith("versions      ok   python")
    names = [line.partition(" ok ")[0].strip() for line in lines]
    assert len(names) == 15 and names[-5:] == ["ranks", "group", "all-reduce", "step", "scaling"]
    assert "measured: 1 node" in lines[-1] and "two such nodes would" in lines[-1]
    assert list(tmp_path.iterdir()) == []  # no run folder


# ---- what is said of measurements, from made-up ones -----------------------------------------------------------------

STEP = Step(compute_s=0.5, backward_s=0.25, gradient_bytes=50e6)


def report(num_nodes: int, ranks_per_node: int, all_reduce_s: float, waiting_s: float | None) -> Check:
    ranks = num_nodes * ranks_per_node
    all_reduce = AllReduce(all_reduce_s, 50_000_000, ranks, 50_000_000) if ranks > 1 else None
    return check_ranks.check_scaling(RunConfig(), STEP, num_nodes, ranks_per_node, all_reduce, waiting_s)


def test_one_rank_is_told_which_link_two_nodes_need():
    check = report(1, 1, 0.0, None)
    assert check.ok and check.what == "two such nodes would reach 90 % over a link that carries 1.4 Gbit/s"


def test_two_nodes_are_measured_and_others_predicted():
    check = report(2, 1, 0.5, 0.25)
    assert check.ok and check.what.startswith(
        "measured: 2 nodes 67 % of independent ranks; predicted: 2 nodes 65 %, 4 nodes 49 %, 8 nodes 43 %; over "
    )
    assert "2 nodes are 1.33 times as fast as one: better with strategy.comm_hook=bf16 (95 %)" in check.what
