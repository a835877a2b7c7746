"""Made scripts against those in golden/, letter by letter; each is good in the eyes of the linter and of bash."""

import difflib
import os
import subprocess
from pathlib import Path

import pytest
from conftest import clean_environ

from imagenet_ddp.submitting import asked, files, lint, render
from imagenet_ddp.submitting.asked import Plan

GOLDEN = Path(__file__).parent / "golden"
RENEW = "IMAGENET_DDP_RENEW=1 python -m pytest tests/submitting/test_render.py"
SWEEP = ("-m", "optim.lr=0.05,0.1,0.2", "seed=0,1")

CASES: dict[str, tuple[str, ...]] = {
    "plain": (),
    "two_nodes": ("trainer.num_nodes=2", "trainer.devices=8", "data=imagenet", "data.root=/data/imagenet"),
    "cpu": ("trainer.accelerator=cpu", "trainer.devices=2"),
    "array": (*SWEEP, "trainer.devices=2"),
    "array_on_cpu": (*SWEEP, "trainer.accelerator=cpu", "submit.array_parallelism=2"),
    "torchrun": ("trainer.num_nodes=2", "trainer.devices=4", "submit.form=torchrun"),
    "torchrun_on_cpu": ("trainer.accelerator=cpu", "trainer.devices=2", "submit.form=torchrun"),
    "dp": ("strategy=dp", "trainer.devices=4"),
    "quoted": (
        "name='a b'", 'data.root="/data/my images"', "data=imagefolder",
        "+callbacks.mine={_target_:lightning.pytorch.callbacks.Timer}",
    ),
    "all_keys": (
        "trainer.devices=4", "submit.partition=gpu", "submit.account=lab", "submit.qos=long",
        "submit.constraint='a100|h100'", "submit.time=2-00:00:00", "submit.cpus_per_device=12",
        "submit.mem_gb_per_device=60", "submit.gpu_type=a100", "submit.signal_s=300", "submit.requeue=false",
        "submit.log=logs/%x-%j.log", "submit.name=mine", 'submit.extra=["--mail-type=END","--exclusive"]',
        'submit.setup=["module load python","source env/bin/activate"]',
    ),
}  # fmt: skip


def plan_of(*argv: str, **environ: str) -> Plan:
    plan = asked.read(argv, clean_environ(**environ))
    assert plan is not None
    return plan


def made(*argv: str) -> str:
    plan = plan_of(*argv)
    return render.render(plan, plan.options["setup"] or ["source .venv/bin/activate"])


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    path, text = GOLDEN / f"{name}.sbatch", made(*CASES[name])
    if os.environ.get("IMAGENET_DDP_RENEW") == "1":
        path.write_text(text)
    before = path.read_text() if path.exists() else ""
    lines = difflib.unified_diff(before.splitlines(), text.splitlines(), str(path), "as it is made now", lineterm="")
    difference = "\n".join(lines)
    assert before == text, f"{difference}\n\nWhere that is meant: {RENEW}"


def test_no_golden_file_is_left_over() -> None:
    assert sorted(path.stem for path in GOLDEN.iterdir()) == sorted(CASES)


@pytest.mark.parametrize("path", sorted(GOLDEN.iterdir()), ids=lambda path: path.stem)
def test_a_golden_file_is_good(path: Path) -> None:
    assert subprocess.run(["bash", "-n", str(path)]).returncode == 0
    wanted = plan_of(*CASES[path.stem]).wanted
    outcome = lint.lint(path.read_text(), [], lambda words, torchrun: (wanted, []))
    notes = [finding.what for finding in outcome.findings if path.stem != "all_keys"]
    assert (outcome.num_mistakes, notes, outcome.not_looked_at) == (0, [], [])


@pytest.mark.parametrize("name", CASES)
def test_the_command_gets_what_was_typed(name: str, tmp_path: Path) -> None:
    """Run by bash, with a stand-in for srun."""
    (tmp_path / "srun").write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    (tmp_path / "srun").chmod(0o755)
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho NodeAddr=10.0.0.1 x\n")
    (tmp_path / "scontrol").chmod(0o755)
    text = (GOLDEN / f"{name}.sbatch").read_text().replace("source ", ": ").replace("module ", ": ")
    environ = clean_environ(PATH=f"{tmp_path}:{os.environ['PATH']}", SLURM_JOB_NUM_NODES="2", SLURM_GPUS_ON_NODE="4",
                            SLURM_CPUS_PER_TASK="32", SLURM_JOB_ID="1234", SLURM_JOB_NODELIST="n[1-2]")  # fmt: skip
    done = subprocess.run(["bash"], input=text, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    typed = [word for word in CASES[name] if not word.startswith("submit.")]
    assert words[words.index("imagenet_ddp.train") + 1 :] == typed
    if "torchrun" in name:
        assert "--rdzv-endpoint=10.0.0.1:29734" in words
    elif name == "two_nodes":
        assert words[:3] == ["--ntasks=8", "--ntasks-per-node=4", "--cpus-per-task=8"]


def test_a_made_file_is_replaced_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "new" / "train.sbatch"
    files.write(path, made())
    files.write(path, made("trainer.devices=2"))
    assert "--gpus-per-node=2" in path.read_text()
    path.write_text(path.read_text().replace("24:00:00", "12:00:00"))
    with pytest.raises(Exception, match="has been edited since it was made, and is left as it is"):
        files.write(path, made())
    assert "12:00:00" in path.read_text()
    path.write_text("#!/bin/sh\n")
    with pytest.raises(Exception, match="was not made by submit"):
        files.write(path, made())
    assert path.read_text() == "#!/bin/sh\n"


def test_the_environment_to_activate(tmp_path: Path) -> None:
    environ = tmp_path / "my env"
    (environ / "bin").mkdir(parents=True)
    (environ / "bin/activate").touch()
    assert render.setup_here({}, str(environ), "/usr") == [f"source '{environ}/bin/activate'"]
    assert render.setup_here({}, "/usr", "/usr")[0].startswith("source .venv/bin/activate  ")
    assert "EDIT" in render.setup_here({}, "/usr", "/usr")[0]
    (environ / "conda-meta").mkdir()
    lines = render.setup_here({"CONDA_EXE": "/opt/conda/bin/conda"}, str(environ), str(environ))
    assert lines[1:3] == ["source /opt/conda/etc/profile.d/conda.sh", f"conda activate '{environ}'"]
