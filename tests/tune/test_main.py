"""python -m imagenet_ddp.tune as a process: most tests with a stand-in for train, the last one with train itself."""

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import PROBES, ROOT, SMALL, Run, clean_environ, small_run
from helpers import forked_commands
from helpers.train_runs import wait_for

pytest.importorskip("optuna", reason="the extra `tune` is not installed")

SPACE = ("search=none", "search.optim.momentum={low:0.1,high:0.9}")
REAL = [option for option in SMALL if not option.startswith("optim.lr")]
Process = forked_commands.Command | subprocess.Popen[str]
Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path, tree: Path) -> Iterator[Start]:
    """start(*options, epoch_s=...): tune with the stand-in, in the folder "s"."""
    stand_in = tmp_path / "stand_in" / "sitecustomize.py"
    stand_in.parent.mkdir()
    program = ROOT / "tests/tune/fake_trial.py"
    stand_in.write_text(
        f"import runpy, sys\nif 'imagenet_ddp.train' in sys.orig_argv:\n    runpy.run_path({str(program)!r})\n"
    )
    begun: list[Process] = []

    def begin(*options: str, folder: str = "s", **behaviour: Any) -> Process:
        environ = clean_environ(PYTHONPATH=str(stand_in.parent), STAND_IN=json.dumps(behaviour))
        own = [*REAL, f"data.root={tree}", "trainer.max_epochs=3", *SPACE, f"hydra.run.dir={folder}"]
        begun.append(forked_commands.start("imagenet_ddp.tune", *own, *options, folder=tmp_path, environment=environ))
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


def reached(process: Process, condition: Callable[[], bool]) -> None:
    """The condition comes true while tune runs."""
    wait_for(condition, process, timeout_s=90)


def done(process: Process, code: int = 0) -> tuple[str, str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, out + err
    assert "Traceback" not in err
    return out, err


def momenta(folder: Path) -> list[str]:
    """Of each trial, by number, as its first start was given it."""
    found = sorted(folder.glob("trials/*/started"), key=lambda path: int(path.parent.name))
    return [path.read_text().split()[1] for path in found]


@pytest.mark.slow
def test_a_study_from_its_command_to_its_best_trial(start: Start, tmp_path: Path) -> None:
    out, err = done(start("tune.num_trials=12", "tune.num_random_trials=4", "tune.pruner=none", "seed=3"))
    assert err == ""
    study = tmp_path / "s"
    best = yaml.safe_load((study / "best.yaml").read_text())
    values = [float(value) for value in momenta(study)]
    assert len(values) == 12
    assert values[best["trial"]] == max(values) == pytest.approx(best["val/top1"])
    assert max(values) > max(values[:4]), "the sampler learns: better than its random start"
    assert best["options"] == [f"optim.momentum={max(values):.4g}"]
    assert best["command"].endswith(f"optim.momentum={max(values):.4g}")
    assert "search" not in best["command"] and "hydra.run.dir" not in best["command"]
    assert "12 trials: 12 finished." in out
    assert out.count("best so far") == 12
    assert f"best so far {100 * max(values):.2f} % (trial {best['trial']})" in out
    # a new study with the same seed draws the same, also where it is killed on its way
    same = ("tune.num_trials=12", "tune.num_random_trials=4", "tune.pruner=none", "seed=3")
    other = start(*same, folder="other")
    reached(other, lambda: (tmp_path / "other/trials/10/started").exists())
    other.kill()
    other.communicate()
    done(start(*same, folder="other"))
    assert momenta(tmp_path / "other") == momenta(study)


@pytest.mark.slow
def test_a_signal_stops_the_runs_and_the_study_is_resumed(start: Start, tmp_path: Path) -> None:
    process = start("tune.num_trials=2", "tune.num_at_once=2", epoch_s=60)
    reached(process, lambda: all((tmp_path / f"s/trials/{trial}/metrics.csv").exists() for trial in (0, 1)))
    process.send_signal(signal.SIGTERM)
    out, err = done(process, 128 + signal.SIGTERM)
    assert "2 trials: 2 running." in out, err
    assert all("Stopped and saved" in (tmp_path / f"s/trials/{trial}.log").read_text() for trial in (0, 1))
    line = next(line for line in out.splitlines() if line.startswith("Resume with: python -m imagenet_ddp.tune "))
    assert line.endswith(f" hydra.run.dir={tmp_path}/s")
    out, _ = done(start("tune.num_trials=2", "tune.num_at_once=2"))
    assert "2 trials: 2 finished." in out
    _, err = done(start("data.batch_size=8", "search.optim.momentum.high=0.8"), 2)
    assert "2 mistakes" in err and "must stay {'optim.momentum': {'low': 0.1, 'high': 0.9}}" in " ".join(err.split())
    (tmp_path / "s/study.db").write_text("no database")
    assert "cannot be read as a study" in " ".join(done(start(), 2)[1].split())


@pytest.mark.slow
def test_failures_are_reported_and_too_many_end_the_study(start: Start, tmp_path: Path) -> None:
    out, _ = done(start("tune.num_trials=3", fail={"1": 1}))
    assert "trial 1 failed, exit code 1: RuntimeError: on purpose" in out
    assert "3 trials: 2 finished, 1 failed." in out
    out, _ = done(start("tune.num_trials=9", folder="t", fail={str(trial): 1 for trial in range(1, 9)}), 1)
    assert "4 trials: 1 finished, 3 failed." in out
    assert "3 trials in a row failed" in out
    assert "Resume with:" in out


def test_a_first_trial_refused_by_train_ends_the_study(start: Start) -> None:
    _, err = done(start(fail={"0": 2}), 2)
    assert "on purpose" in err


def test_missing_optuna_is_reported(run: Run, tmp_path: Path) -> None:
    hidden = tmp_path / "hide"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'optuna' else find(name, package)\n"
    )
    result = run("tune", "tune.num_trials=1", PYTHONPATH=f"{hidden}:{os.environ.get('PYTHONPATH', '')}")
    assert result.returncode == 2
    assert " 'optuna<6,>=5.0'`" in result.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_real_trials_killed_resumed_and_pruned(run: Run, tree: Path, tmp_path: Path) -> None:
    """Two runs of train at once end with tune, saved, and are continued to the epoch. They learn; the third learns
    nothing, and is given up for them."""
    options = [*small_run("model._target_=block_net.BlockNet", options=REAL),
               "allow_targets=[block_net.BlockNet,probe.Probe]",
               "+callbacks.slow={_target_:probe.Probe,folder:seen,slow_s:0.1}", f"data.root={tree}",
               "trainer.max_epochs=6", "search=none", "hydra.run.dir=s", "data.augment=none",
               "search.optim.lr=[0.1,1e-9]", "tune.sampler=random", "seed=11", "tune.num_trials=3",
               "tune.num_at_once=2", "tune.pruner_num_trials=2", "tune.pruner_num_epochs=1"]  # fmt: skip
    environment = clean_environ(PYTHONPATH=PROBES)
    process = forked_commands.start("imagenet_ddp.tune", *options, folder=tmp_path, environment=environment)
    trials = [tmp_path / f"s/trials/{trial}" for trial in range(3)]
    logs = [Path(f"{trial}.log") for trial in trials]
    reached(process, lambda: all((trial / "checkpoints/last.ckpt").exists() for trial in trials[:2]))
    process.kill()
    process.wait()
    wait_for(lambda: all("Stopped and saved" in log.read_text() for log in logs[:2]), timeout_s=30)
    assert not trials[2].exists()
    result = run("tune", *options, PYTHONPATH=PROBES)
    assert result.returncode == 0, result.stdout + result.stderr
    for trial, log in zip(trials[:2], logs, strict=False):
        assert "resume=auto: continuing from" in log.read_text() and "optim.lr=0.1" in log.read_text()
        epochs = [line.split(",")[0] for line in (trial / "metrics.csv").read_text().split()]
        assert epochs == ["epoch", *(str(epoch) for epoch in range(1, 7))]
    assert "optim.lr=1e-09" in logs[2].read_text(), "the seed draws the good one twice"
    assert "trial 2 pruned after" in result.stdout
    assert "Stopped and saved" in logs[2].read_text() and not (trials[2] / "summary.json").exists()
    assert "3 trials: 2 finished, 1 pruned." in result.stdout
    line = next(line for line in result.stdout.splitlines() if line.startswith("Leaderboard: "))
    shown = run("report", *shlex.split(line.partition("imagenet_ddp.report ")[2]))
    assert shown.returncode == 0 and "3 runs" in shown.stdout, shown.stdout + shown.stderr
