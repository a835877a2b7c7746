"""The command submit: what it prints, writes and refuses, and at what cost."""

import subprocess
from pathlib import Path

from conftest import ROOT, Run
from test_startup import HEAVY, LIMIT_S

SBATCH = """\
#!/bin/sh
echo "$@" > words
env | grep ^SLURM > variables
echo '4711;cluster'
"""


def test_it_is_shown_and_nothing_is_made(run: Run, tmp_path: Path) -> None:
    done = run("submit", "trainer.num_nodes=2", "trainer.devices=8", PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0, done.stderr
    assert subprocess.run(["bash", "-n"], input=done.stdout, text=True).returncode == 0
    assert "#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\n" in done.stdout
    assert done.stdout.endswith("python -m imagenet_ddp.train trainer.num_nodes=2 trainer.devices=8\n")
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "hydra" in imported and not imported & HEAVY
    assert list(tmp_path.iterdir()) == []


def test_notes_do_not_get_into_the_file(run: Run) -> None:
    done = run("submit", "data=imagenet", "data.root=/mnt/nowhere")
    assert done.returncode == 0
    said = " ".join(done.stderr.split())
    assert "trainer.devices is not set: one GPU per node is asked for" in said
    assert (
        "Not refused here, because the job's nodes may see it otherwise: data.root is expected to be a folder" in said
    )


def test_written(run: Run, tmp_path: Path) -> None:
    done = run("submit", "submit.out=jobs/a.sbatch", "trainer.devices=1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "jobs/a.sbatch\n  sbatch jobs/a.sbatch\n", "")
    assert run("submit", "submit.out=jobs/a.sbatch", "trainer.devices=2").returncode == 0
    (tmp_path / "jobs/a.sbatch").write_text("mine")
    done = run("submit", "submit.out=jobs/a.sbatch")
    assert done.returncode == 2 and "left as it is" in " ".join(done.stderr.split())
    assert (tmp_path / "jobs/a.sbatch").read_text() == "mine"
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["a.sbatch"]


def test_submitted(run: Run, tmp_path: Path) -> None:
    """The job around this command does not leak into the new one."""
    (tmp_path / "sbatch").write_text(SBATCH)
    (tmp_path / "sbatch").chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    done = run("submit", "-m", "seed=0,1", "submit.now=true", "submit.log=logs/%A_%a.txt", PATH=path,
               SLURM_NTASKS="9", SLURM_CONF="/etc/x")  # fmt: skip
    assert done.returncode == 0, done.stderr
    head, *rest = done.stdout.splitlines()
    assert head.startswith("Job 4711, an array of 2: slurm/shapes_resnet18_")
    assert [line.split("#")[0].strip() for line in rest] == [
        "squeue --job=4711",
        "tail -F logs/4711_0.txt",
        "scancel 4711",
    ]
    script = head.partition(": ")[2]
    assert (tmp_path / "words").read_text() == f"--parsable {script}\n"
    assert (tmp_path / "variables").read_text() == "SLURM_CONF=/etc/x\n"
    assert "--array=0-1" in (tmp_path / script).read_text()
    assert (tmp_path / "logs").is_dir()  # SLURM makes none, and the job would end without a word


def test_a_job_that_sbatch_refuses(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: x' >&2\nexit 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    done = run("submit", "submit.now=true", "submit.out=a.sbatch", PATH=f"{tmp_path}:/usr/bin:/bin")
    assert done.returncode == 1
    assert "sbatch refuses a.sbatch: invalid partition specified: x." in " ".join(done.stderr.split())
    assert (tmp_path / "a.sbatch").exists()


def test_an_extra_option_that_breaks_the_world(run: Run) -> None:
    done = run("submit", "trainer.devices=2", "submit.extra=[--gpus-per-task=1,--nodes=3,--ntasks-per-node=4]")
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "--gpus-per-task=1 binds each task" in said and "--nodes=3 and, in line" in said
    assert done.stdout == ""


def test_checked(run: Run, tmp_path: Path) -> None:
    script = ROOT / "scripts/train.sbatch"
    done = run("submit", f"submit.check={script}")
    assert (done.returncode, done.stdout) == (0, f"{script}: no mistakes.\n"), done.stdout + done.stderr
    text = (
        script.read_text().replace("--gpus-per-node=1", "--gpus-per-node=4").replace("--signal=USR2", "--signal=USR1")
    )
    (tmp_path / "mine.sbatch").write_text(text)
    done = run("submit", "submit.check=mine.sbatch", "trainer.devices=8")
    lines = text.splitlines()
    assert done.returncode == 1
    said = done.stdout.splitlines()
    gpus = next(n for n, line in enumerate(lines, 1) if "--gpus-per-node=4" in line and line.startswith("#SBATCH"))
    assert said[0].startswith(f"mine.sbatch, line {gpus}: a node of the job has 4 GPUs, but 8 devices are needed.")
    assert said[0].endswith(" HINT: #SBATCH --gpus-per-node=8"), "a line each in a pipe"
    assert said[-1] == "mine.sbatch: 3 mistakes."
    done = run("submit", "submit.check=mine.sbatch", "trainer.devices=0")
    assert done.returncode == 2 and "trainer.devices is expected" in done.stderr


def test_help(run: Run) -> None:
    assert run("submit", "--help").returncode == 0
    done = run("submit", "--cfg", "job", "--package", "submit")
    assert done.returncode == 0 and "signal_s: 120" in done.stdout


def test_time_to_answer(run: Run) -> None:
    import time

    start = time.monotonic()
    assert run("submit", "trainer.devices=2").returncode == 0
    assert time.monotonic() - start < LIMIT_S
