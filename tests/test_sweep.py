"""python -m imagenet_ddp.train -m: each job its own processes, world and folder."""

import json
import os
import signal
from pathlib import Path

import pytest
from conftest import SMALL, Run
from test_train import PROBES, probe, seen, start, summary, wait_for

SHORT = [*SMALL, "trainer.max_epochs=1", "trainer.log_every_n_steps=1"]


@pytest.mark.slow
@pytest.mark.parametrize("order", ["1,2", "2,1"])
def test_each_job_has_the_world_it_asked_for(run: Run, tree: Path, tmp_path: Path, order: str) -> None:
    """Nothing of one job's ranks stays behind for the next: with a stale LOCAL_RANK it would see a part of the data."""
    folders = [tmp_path / f"seen{number}" for number in (1, 2)]
    options = [*SHORT, f"data.root={tree}", f"trainer.devices={order}", "hydra.sweep.dir=s"]
    more = probe(tmp_path / "seenDEVICES")
    more[-1] = f"+callbacks.probe.folder='{tmp_path}/seen${{trainer.devices}}'"
    result = run("train", "-m", *options, *more, PYTHONPATH=PROBES)
    assert result.returncode == 0, result.stdout + result.stderr
    for number, devices in enumerate(order.split(",")):
        assert summary(tmp_path / f"s/{number}")["world_size"] == int(devices)
    for folder in folders:
        assert sorted(seen(folder)[0]) == list(range(29))
    assert not (tmp_path / "multirun").exists()
    assert sorted(path.name for path in (tmp_path / "s").iterdir() if path.is_dir()) == ["0", "1"]


@pytest.mark.slow
def test_a_failing_job_is_reported_and_the_others_run(run: Run, tree: Path, tmp_path: Path) -> None:
    options = [*SHORT, f"data.root={tree}", "trainer.devices=2", "hydra.sweep.dir=s"]
    options += [*probe(tmp_path / "seen", step=2, rank=1), "+callbacks.probe.what=nothing,crash,nothing"]
    result = run("train", "-m", *options, PYTHONPATH=PROBES)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "1 of 3 jobs failed" in result.stderr
    assert "callbacks.probe.what=crash" in result.stderr.partition("1 of 3 jobs failed")[2]
    assert "the probe crashes on purpose" in result.stderr
    assert [(tmp_path / f"s/{number}/summary.json").exists() for number in range(3)] == [True, False, True]


@pytest.mark.slow
def test_a_mistake_in_the_last_job_stops_the_first(run: Run, tree: Path, tmp_path: Path) -> None:
    result = run("train", "-m", *SHORT, f"data.root={tree}", "data.batch_size=4,8,0")
    assert result.returncode == 2
    assert "data.batch_size=0" in result.stderr
    assert list(tmp_path.iterdir()) == []


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
    pids = [json.loads(path.read_text())["pid"] for path in (tmp_path / "seen").glob("pid*")]
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 10)
