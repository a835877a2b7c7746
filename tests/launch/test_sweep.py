"""python -m imagenet_ddp.train -m: each job its own processes, world and folder."""

import json
import os
import shlex
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from conftest import PROBES, SMALL, Run
from helpers.train_runs import probe, seen, start, summary, wait_for

from imagenet_ddp.distributed.launchers.slurm import array_tasks
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch.stored_sweep import expand_resume

SHORT = [*SMALL, "trainer.max_epochs=1", "trainer.log_every_n_steps=1"]


@pytest.mark.slow
def test_each_job_has_its_own_world(run: Run, tree: Path, tmp_path: Path) -> None:
    """No rank of one job is left in the environment of the next: with a stale LOCAL_RANK it would skip images."""
    options = [*SHORT, f"data.root={tree}", "trainer.devices=1,2,1", "hydra.sweep.dir=s"]
    more = probe(tmp_path / "seen")
    more[-1] = f"+callbacks.probe.folder='{tmp_path}/seen${{trainer.devices}}'"
    run("train", "-m", *options, *more, PYTHONPATH=PROBES, code=0)
    assert [summary(tmp_path / f"s/{number}")["world_size"] for number in range(3)] == [1, 2, 1]
    assert {"-m", "trainer.devices=1,2,1", f"data.root={tree}"} <= set(summary(tmp_path / "s/0")["command"].split())
    assert sorted(seen(tmp_path / "seen2")[0]) == list(range(29))
    assert sorted(seen(tmp_path / "seen1")[0]) == sorted([*range(29)] * 2)
    assert not (tmp_path / "multirun").exists()
    assert sorted(path.name for path in (tmp_path / "s").iterdir() if path.is_dir()) == ["0", "1", "2"]
    twice = run("train", "-m", *options, *more, PYTHONPATH=PROBES, code=2)
    assert "must be a new folder, but holds a sweep. Hint: set sweep.resume=" in " ".join(twice.stderr.split())


@pytest.mark.slow
def test_no_further_job_starts_after_a_signal(tree: Path, tmp_path: Path) -> None:
    options = [*SHORT, f"data.root={tree}", "trainer.max_epochs=40", "seed=1,2,3", "hydra.sweep.dir=s"]
    process = start(tmp_path, "-m", *options, *probe(tmp_path / "seen", slow_s=0.05))
    wait_for(lambda: any((tmp_path / "seen").glob("seen0.jsonl")))
    os.kill(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143, out + err
    assert (tmp_path / "s/0/checkpoints/last.ckpt").exists()
    assert not (tmp_path / "s/1").exists()
    assert "Traceback" not in err
    resume = err.rpartition("Continue the sweep with: python -m imagenet_ddp.train ")[2]
    assert shlex.split(resume)[:2] == ["-m", "sweep.resume=s"], out + err
    pids = [json.loads(path.read_text())["pid"] for path in (tmp_path / "seen").glob("pid*")]
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), timeout_s=10)


@pytest.mark.slow
def test_a_sweep_is_resumed(run: Run, tree: Path, tmp_path: Path) -> None:
    """Finished jobs are skipped, an interrupted one resumes from its checkpoint."""
    options = [*SHORT, f"data.root={tree}", "trainer.max_epochs=2", "hydra.sweep.dir=s"]
    options += [*probe(tmp_path / "seen", step=10), "+callbacks.probe.what=nothing,crash,nothing"]
    broken = run("train", "-m", *options, PYTHONPATH=PROBES, code=1)
    assert "1 of 3 jobs failed" in broken.stderr
    assert "Continue the sweep with: python -m imagenet_ddp.train -m sweep.resume=" in broken.stderr
    stamps = [(tmp_path / f"s/{number}/summary.json").stat().st_mtime_ns for number in (0, 2)]
    words = shlex.split(broken.stderr.rpartition("Continue the sweep with: python -m imagenet_ddp.train ")[2])
    assert words[2] == "allow_targets=[probe.Probe]" and words[3].startswith("+callbacks.probe.folder=")
    again = run("train", *words, "+callbacks.probe.step=99", PYTHONPATH=PROBES, code=0)
    assert [(tmp_path / f"s/{number}/summary.json").stat().st_mtime_ns for number in (0, 2)] == stamps
    assert summary(tmp_path / "s/1")["epochs"] == 2
    assert "Restarted: continuing from" in again.stdout


def array(task: str) -> dict[str, str]:
    return {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": task}


def array_of(*numbers: int) -> dict[str, str]:
    """MIN, MAX, STEP and COUNT of the tasks of the array in which task 2 runs."""
    words = (f"SLURM_ARRAY_TASK_{name}" for name in ("MIN", "MAX", "STEP", "COUNT"))
    return array("2") | dict(zip(words, map(str, numbers), strict=False))


def test_the_tasks_of_an_array() -> None:
    assert array_tasks(array_of(1, 2, 1, 2)) == range(1, 3)
    assert array_tasks(array_of(0, 3, 2, 2)) == range(0, 4, 2)
    assert array_tasks(array_of(0, 3)) == range(4)
    assert array_tasks(array_of(1, 9, 1, 2)) is None  # a list such as 1,9
    assert array_tasks(array("2")) is None and array_tasks({}) is None


@pytest.mark.slow
def test_an_array_says_which_jobs_it_does_not_train(run: Run, tree: Path, tmp_path: Path) -> None:
    options = ["-m", *SHORT, f"data.root={tree}", "seed=0,1,2", "hydra.sweep.dir=s", "trainer.max_steps=0"]
    done = run("train", *options, **array_of(1, 2, 1, 2), code=0)
    assert "has no task for 1 job of this sweep, which it does not train: 0 (seed=0)." in done.stderr
    (tmp_path / "s/0").mkdir()
    (tmp_path / "s/0/summary.json").write_text('{"finished": true, "epochs": 1}')
    assert "has no task" not in run("train", *options, **array_of(1, 2, 1, 2), code=2).stderr  # job 2 is there


LISTED = ("-m", "data.image_size=32", "seed=0,1", "optim.lr=0.1,0.2")


def test_jobs_are_listed(run: Run, tmp_path: Path) -> None:
    result = run("train", *LISTED, "sweep.job=list", code=0)
    assert result.stdout.splitlines() == [
        "0 seed=0 optim.lr=0.1", "1 seed=0 optim.lr=0.2", "2 seed=1 optim.lr=0.1", "3 seed=1 optim.lr=0.2"
    ]  # fmt: skip
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "environ", "message"),
    [
        ((*LISTED, "sweep.job=4", "hydra.sweep.dir=s"), {}, "one of the 4 jobs of this sweep, got 4"),
        (LISTED, array("abc"), "got abc. Hint: use sbatch --array=0-3."),
        (("-m", "seed=0,1", "sweep.job=0,1", "hydra.sweep.dir=x"), {}, "sweep.job must have one value, got several"),
        (("-m", "sweep.resume=s", "hydra.sweep.dir=t"), {}, "Hint: leave hydra.sweep.dir out."),
        ((*LISTED, "sweep.job=1"), {}, "sweep.job=1 requires the folder of the sweep. Hint: set hydra.sweep.dir"),
        (("-m", "sweep.resume=s", "seed=3"), {}, "must list the 2 jobs of this sweep, got 4 other jobs"),
        ((*LISTED, "sweep.job=0", "hydra.sweep.subdir=x", "hydra.sweep.dir=s"), {}, "leave hydra.sweep.subdir out"),
    ],
)
def test_refused(
    refused: Callable[..., str], tmp_path: Path, options: tuple[str, ...], environ: dict[str, str], message: str
) -> None:
    if any(option.endswith("=s") for option in options):
        stored = {"command": "", "options": list(LISTED[1:]), "flags": []}
        jobs = [[f"seed={seed}", f"optim.lr={lr}"] for seed in (0, 1) for lr in (0.1, 0.2)]
        (tmp_path / "s").mkdir()
        (tmp_path / "s/sweep.yaml").write_text(yaml.safe_dump({**stored, "jobs": jobs}))
    assert message in refused("train", *options, **environ)
    assert not (tmp_path / "runs").exists() and not (tmp_path / "s/0").exists()


@pytest.mark.parametrize(
    "wrong", [{"options": 3}, {"options": "seed=0"}, {"flags": [[]]}, {"jobs": None}, {"jobs": [3]}, {"folder": []}]
)
def test_a_sweep_with_parts_of_another_type(wrong: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"options": [], "flags": [], "jobs": [], **wrong}))
    with pytest.raises(ConfigError, match=r"must be the folder of a sweep, but sweep\.yaml has other content"):
        expand_resume(["-m", f"sweep.resume={tmp_path}"])
