"""The command submit: the sbatch line of a config, what is refused, and the step that scripts/train.sbatch starts."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT, Run, clean_environ

from imagenet_ddp import submit
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.submit import Submission

CPU = "trainer.accelerator=cpu"
NAME = " --job-name=shapes_resnet18"
ONE = "--nodes=1 --ntasks-per-node=1 --gpus-per-node=1 --cpus-per-task=8"
ARRAY = " --array=0-5{} --output=slurm-%A_%a.log"
SWEEP = ("-m", "optim.lr=0.05,0.1", "seed=0,1,2")


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def read(*argv: str, **environ: str) -> Submission:
    return submit.read(argv, clean_environ(**environ))


@pytest.mark.parametrize(
    ("argv", "options"),
    [
        ((), ONE + NAME),
        ((CPU,), "--nodes=1 --ntasks-per-node=1 --gpus-per-node=0 --cpus-per-task=8" + NAME),
        # more processes than this machine has cores for; and with workers, whose number is not automatic
        ((CPU, "trainer.devices=64", "data.num_workers=0"),
         "--nodes=1 --ntasks-per-node=64 --gpus-per-node=0 --cpus-per-task=1" + NAME),
        (("trainer.num_nodes=2", "trainer.devices=8", "data.num_workers=11"),
         "--nodes=2 --ntasks-per-node=8 --gpus-per-node=8 --cpus-per-task=12" + NAME),
        (("strategy=dp", "trainer.devices=4"),
         "--nodes=1 --ntasks-per-node=1 --gpus-per-node=4 --cpus-per-task=32" + NAME),
        (("submit.array_parallelism=2", *SWEEP), ONE + NAME + ARRAY.format("%2")),
        (("trainer.devices=4", "submit.partition=gpu", "submit.account=lab", "submit.qos=long",
          "submit.time=2-00:00:00", "submit.constraint='a100|h100'", "submit.cpus_per_device=12",
          "submit.mem_gb_per_device=60", "submit.gpu_type=a100", "submit.name=mine",
          'submit.extra="--mail-type=END --exclusive"'),
         "--nodes=1 --ntasks-per-node=4 --gpus-per-node=a100:4 --cpus-per-task=12 --mem=240G --job-name=mine "
         "--time=2-00:00:00 --partition=gpu --account=lab --qos=long '--constraint=a100|h100' --mail-type=END "
         "--exclusive"),
        (("name='a b'", "+callbacks.mine={_target_:lightning.pytorch.callbacks.Timer}"), ONE + " '--job-name=a b'"),
    ],
)  # fmt: skip
def test_the_line(argv: tuple[str, ...], options: str) -> None:
    line = shlex.join(read(*argv).command)
    typed = shlex.join(word for word in argv if not word.startswith("submit."))
    assert line == f"sbatch {options} scripts/train.sbatch {typed}".rstrip()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-p gpu -N 2 -t 10:00:00 -A lab -J mine -q high -C a100 -c 8 --gpus-per-node=4",
         "submit.partition=gpu trainer.num_nodes=2 submit.time=10:00:00 submit.account=lab submit.name=mine "
         "submit.qos=high submit.constraint=a100 submit.cpus_per_device=8 trainer.devices=4"),
        ("--gres=gpu:4 seed=1", "seed=1 trainer.devices=4"),
        ("--gres gpu:a100:2", "submit.gpu_type=a100 trainer.devices=2"),
        ("partition=gpu time=10:00 gres=gpu:2", "submit.partition=gpu submit.time=10:00 trainer.devices=2"),
        ("--exclusive --mem=64G -w node7 submit.extra=--begin=now",
         "'submit.extra=--begin=now --exclusive --mem=64G -w node7'"),
        ("walltime=24h mem=64G queue=gpu", "submit.time=24:00:00 submit.mem_gb_per_device=64 submit.partition=gpu"),
        ("--epochs 3 --requeue", "trainer.max_epochs=3"),
    ],
)  # fmt: skip
def test_an_option_of_sbatch_is_answered_with_the_key(
    line: str, expected: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["submit", *shlex.split(line)])
    with pytest.raises(SystemExit):
        submit.main()
    typed = capfd.readouterr().err.partition("Corrected command:\npython -m imagenet_ddp.submit ")[2].rstrip()
    assert typed == expected and read(*shlex.split(typed)).command


def test_a_time_limit_is_compared_with_the_signal() -> None:
    """That of the script, or of submit.extra."""
    (note,) = read("submit.time=3", "trainer.devices=1").notes
    assert note.startswith("submit.time=3 leaves a minute or less before --signal=USR2@120: ")
    assert read("submit.time=4", "trainer.devices=1").notes == ()
    assert read("submit.time=3", "submit.extra=--signal=USR2@30", "trainer.devices=1").notes == ()


def test_what_only_the_nodes_have_is_not_refused() -> None:
    """Folders, interfaces and GPUs of the nodes; and the variables of a surrounding job are ignored."""
    around = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4", "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_ID": "0"}
    command = read(
        "trainer.num_nodes=2", "trainer.devices=8", "data=imagenet", "data.root=/mnt/nowhere", "resume=/mnt/last.ckpt",
        "nccl.env.NCCL_SOCKET_IFNAME='=ib7'", "cluster.address=file:///mnt/nowhere/job", "hydra.run.dir=/proc/no/runs",
        "strategy.process_group_backend=nccl", **around,
    ).command  # fmt: skip
    assert command[1] == "--nodes=2"
    assert read("data=stl10", "data.root=/mnt/nowhere", "data.download=false").command


def test_a_custom_config(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [train, _self_]\ntrainer: {devices: 3}\n")
    command = read("--config-dir", str(tmp_path), "--config-name", "mine", "submit.time=30", "seed=1").command
    assert {"--gpus-per-node=3", "--time=30"} <= {*command}
    assert command[-5:] == ["--config-dir", str(tmp_path), "--config-name", "mine", "seed=1"]


@pytest.mark.parametrize(
    ("argv", "sentences"),
    [
        (("trainer.max_epochs=-2", "submit.time=soon", "nosuch=1", "trainer.devices=-1"),
         ["nosuch is not a known key.", "trainer.max_epochs must be an integer ≥ -1", "submit.time must be a time",
          "trainer.devices must be a number, because SLURM chooses the GPUs, got -1. Hint: set trainer.devices=8."]),
        (("trainer.devices=[0,3]",),
         ["trainer.devices must be a number, because SLURM chooses the GPUs, got [0,3]. Hint: set trainer.devices=2."]),
        (("submit.partition='a b'",), ["submit.partition must be a word or null, got a b."]),
        (("submit.extra=exclusive",), ["submit.extra must be options of sbatch, without quotes or null"]),
        (("submit.array_parallelism=2",), ["submit.array_parallelism must be used with -m"]),
        (("-m", "trainer.devices=1,2"), ["all jobs of -m must request the same nodes, GPUs and CPUs"]),
        (("-m", "optim.lr=0.1,-1"), ["Job 1 (optim.lr=-1): optim.lr must be a number > 0"]),
    ],
)  # fmt: skip
def test_refused(argv: tuple[str, ...], sentences: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        read(*argv)
    found = list(map(str, error.value.mistakes))
    assert len(found) == len(sentences), found
    for sentence in sentences:
        assert any(text.startswith(sentence) for text in found), found


def test_shown_and_run(run: Run, tmp_path: Path) -> None:
    """Variables of a surrounding job do not reach sbatch; its output and exit code are passed on."""
    sbatch = tmp_path / "sbatch"
    sbatch.write_text('#!/bin/sh\nenv | grep ^SLURM > variables\necho "Submitted $5"\nexit 3\n')
    sbatch.chmod(0o755)
    options = ("trainer.devices=2", "submit.now=true")
    done = run("submit", *options, PATH=f"{tmp_path}:/usr/bin:/bin", SLURM_NTASKS="9", SLURM_CONF="/etc/x")
    line, output = done.stdout.splitlines()
    assert line.startswith("sbatch --nodes=1 ") and line.endswith(f" {ROOT}/scripts/train.sbatch trainer.devices=2")
    assert (done.returncode, output, done.stderr) == (3, "Submitted --job-name=shapes_resnet18", "")
    assert (tmp_path / "variables").read_text() == "SLURM_CONF=/etc/x\n"


@pytest.mark.parametrize("script", ["train", "doctor"])
@pytest.mark.parametrize(
    ("environ", "step"),
    [
        ({"SLURM_GPUS_ON_NODE": "4", "SLURM_CPUS_PER_TASK": "32"}, "--ntasks=8 --ntasks-per-node=4 --cpus-per-task=8"),
        ({"DEVICES": "2", "SLURM_CPUS_PER_TASK": "8"}, "--ntasks=4 --ntasks-per-node=2 --cpus-per-task=4"),
        ({"SLURM_GPUS_ON_NODE": "4", "SLURM_NTASKS_PER_NODE": "4", "SLURM_CPUS_PER_TASK": "8"},
         "--ntasks=8 --ntasks-per-node=4 --cpus-per-task=8"),
        ({"SLURM_GPUS_ON_NODE": "8", "SLURM_CPUS_PER_TASK": "4"}, None),
    ],
)  # fmt: skip
def test_the_step_of_the_script(script: str, environ: dict[str, str], step: str | None, tmp_path: Path) -> None:
    """Run by bash with a stand-in for srun, without .venv."""
    (tmp_path / "srun").write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    (tmp_path / "srun").chmod(0o755)
    around = clean_environ(PATH=f"{tmp_path}:{os.environ['PATH']}", SLURM_JOB_NUM_NODES="2", **environ)
    command = ["bash", ROOT / f"scripts/{script}.sbatch", "name=a b", "-m"]
    done = subprocess.run(command, env=around, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    if step is None:
        assert (
            done.returncode == 2 and "must be at least 8, one CPU for each task of a node, got 4. Hint: " in done.stderr
        )
        return
    assert done.returncode == 0, done.stderr
    words = [*step.split(), "--kill-on-bad-exit=0", "python", "-m", f"imagenet_ddp.{script}", "name=a b", "-m"]
    assert done.stdout.splitlines() == words
