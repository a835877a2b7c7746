"""What submit asks of SLURM for a config, and what it refuses: what is wrong anywhere, not what this one lacks."""

from pathlib import Path
from typing import Any

import pytest
from conftest import clean_environ

from imagenet_ddp.schema import ConfigError
from imagenet_ddp.submitting import asked
from imagenet_ddp.submitting.asked import Plan


def read(*argv: str, **environ: str) -> Plan:
    plan = asked.read(argv, clean_environ(**environ))
    assert plan is not None
    return plan


def refused(*argv: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        read(*argv, **environ)
    return error.value.mistakes


@pytest.mark.parametrize(
    ("argv", "numbers"),
    [
        ((), (None, None, "auto", False, None)),
        (("trainer.num_nodes=2", "trainer.devices=8"), (2, 8, "auto", False, None)),
        (("trainer.devices=[0,1]", "trainer.accelerator=cuda"), (None, 2, "cuda", False, None)),
        (("strategy=balanced_dp", "trainer.devices=4"), (None, 4, "auto", True, None)),
        (("-m", "seed=0,1,2"), (None, None, "auto", False, 3)),
        (("seed=0,1,2", "trainer.devices=2", "--multirun"), (None, 2, "auto", False, 3)),
        (("-m", "seed=0,1,2", "sweep.job=1", "hydra.sweep.dir=s"), (None, None, "auto", False, None)),
        # 64 processes may be too many for this machine's cores, and it need not have an InfiniBand card
        (("trainer.devices=64", "trainer.accelerator=cpu"), (None, 64, "cpu", False, None)),
        (("trainer.num_nodes=2", "nccl.socket_ifname='=ib7'"), (2, None, "auto", False, None)),
        (("trainer.num_nodes=2", "cluster.address=file:///mnt/nowhere/job"), (2, None, "auto", False, None)),
        (("submit.form=torchrun", "trainer.devices=4", "trainer.num_nodes=2"), (2, 4, "auto", False, None)),
    ],
)  # fmt: skip
def test_numbers(argv: tuple[str, ...], numbers: tuple[Any, ...]) -> None:
    found = read(*argv).wanted
    assert (found.num_nodes, found.devices, found.accelerator, found.one_process, found.num_jobs) == numbers


def test_inside_of_a_job_too() -> None:
    """Of which nothing holds for the new one."""
    around = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4", "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_ID": "0"}
    assert read("trainer.num_nodes=2", **around).wanted.num_nodes == 2


def test_what_this_machine_lacks_is_said_and_not_refused() -> None:
    found = read("data=imagenet", "data.root=/mnt/nowhere").wanted.said
    found += read("resume=/mnt/nowhere/last.ckpt").wanted.said
    assert [text.partition(" is expected")[0] for text in found] == ["data.root", "resume"]
    assert read("data=stl10", "data.root=/mnt/nowhere", "data.download=false").wanted.said


def test_what_is_typed_is_kept() -> None:
    argv = ("-m", "seed=0,1", "submit.time=30", "--config-dir", "/tmp", "name='a b'", "submit.extra=[--x]")
    assert read(*argv).train_argv == ("-m", "seed=0,1", "--config-dir", "/tmp", "name='a b'")


def test_a_config_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [train, _self_]\ntrainer: {devices: 3}\n")
    plan = read("--config-dir", str(tmp_path), "--config-name", "mine", "submit.time=30", "seed=1")
    assert (plan.wanted.devices, plan.options["time"]) == (3, "30")


@pytest.mark.parametrize(
    ("argv", "sentences"),
    [
        (("trainer.max_epochs=-2", "submit.time=soon", "nosuch=1"), ["nosuch is not a known key."]),
        (("trainer.max_epochs=-2", "submit.time=soon"), ["submit.time is expected to be a time",
         "trainer.max_epochs is exp"]),
        (("partition=gpu",), ["partition is not a known key. HINT: did you mean submit.partition?"]),
        (("submit.form=mpi",), ["submit.form is expected to be tasks or torchrun, but is mpi."]),
        (("submit.partition='a b'",), ["submit.partition is expected to be a word as sbatch takes it or null"]),
        (("submit.extra=[nodes=3]",), ["each of submit.extra is expected to be an option of sbatch, but is nodes=3."]),
        (("submit.signal_s=0",), ["submit.signal_s is expected to be a whole number from 1 to 65535"]),
        (("submit.check=nowhere.sbatch",),
         ["submit.check is expected to be a batch script, but nowhere.sbatch does not"]),
        (("submit.check=/etc/passwd", "submit.now=true", "submit.out=x"),
         ["submit.check only looks at /etc/passwd, but"]),
        (("submit.out=/etc/passwd/x",),
         ["submit.out is expected to be a file that can be written, but /etc/passwd is a f"]),
        (("submit.out=/tmp",), ["submit.out is expected to be a file, but /tmp is a folder."]),
        (("submit.array_parallelism=2",), ["submit.array_parallelism is for the job array of -m, but -m is not set."]),
        (("seed=0,1",), ["seed=0,1 has several values, but -m is not set."]),
        (("trainer.devices=-1",), ["trainer.devices=-1 means all GPUs, but SLURM is asked for a number."]),
        (("trainer.devices=[0,3]",),
         ["trainer.devices=0,3 names GPUs of a machine, but SLURM numbers those of a job from 0"]),
        (("trainer.accelerator=mps",), ["trainer.accelerator=mps is a Mac's"]),
        (("strategy=dp", "trainer.devices=2", "submit.form=torchrun"),
         ["submit.form=torchrun starts a process per device"]),
        (("strategy=dp", "trainer.num_nodes=2"), ["strategy=dp runs in one process, but trainer.num_nodes is 2."]),
        (("-m", "trainer.devices=1,2"),
         ["the tasks of a job array have the same nodes and GPUs, but trainer.devices differs"]),
        (("-m", "seed=0,1", "sweep.job=all"), ["sweep.job=all is for one command that knows all jobs"]),
        (("-m", "optim.lr=0.1,-1"), ["Job 1 (optim.lr=-1): optim.lr is expected"]),
        (("trainer.num_nodes=2", "trainer.devices=2", "cluster.world_size=8"),
         ["the world is that of slurm job 1, and what"]),
        (("data=imagenet",), ["data.root is expected to be the folder of the images, but is not set."]),
        (("data=imagenet", "data.root=~/x"), ["data.root=~/x: ~ is not expanded there."]),
        (("data=imagenet", "data.root='~/x'"), ["data.root is expected to be a folder, but ~/x ("]),
        (("resume='~/x.ckpt'",), ["resume is expected to be a checkpoint file, but ~/x.ckpt ("]),
    ],
)  # fmt: skip
def test_refused(argv: tuple[str, ...], sentences: list[str]) -> None:
    found = refused(*argv)
    for sentence in sentences:
        assert any(text.startswith(sentence) for text in found), found


def test_a_machine_without_sbatch(tmp_path: Path) -> None:
    (text,) = refused("submit.now=true", PATH=str(tmp_path))
    assert text.startswith("submit.now=true runs sbatch, but this machine has none. HINT: submit.out=")


def test_variables_that_sbatch_takes_along() -> None:
    (text,) = refused("trainer.devices=2", WORLD_SIZE="3", RANK="0", LOCAL_RANK="0", MASTER_ADDR="x")
    assert "WORLD_SIZE" in text
