import json
import subprocess
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from conftest import PROBES, SMALL, Run, clean_environ, small_run
from helpers import forked_commands

from imagenet_ddp.benchmark import trainings

# The command, which times loader processes for a tenth of a second in place of two.
SHORT = """
import runpy
from imagenet_ddp.benchmark import loader
loader.WORKERS_EPOCH_S = 0.1
sys.argv[1:] = args
runpy.run_module("imagenet_ddp.benchmark", run_name="__main__", alter_sys=True)
"""
FEW = ("benchmark.num_images=20", "benchmark.repeats=1", "benchmark.num_workers=[0,1]")


def measured(run: Run, tmp_path: Path, mode: str, *options: str, **environ: str) -> dict[str, Any]:
    """Run one mode, check what all of them share, and return benchmark.json."""
    done = run("benchmark", f"benchmark={mode}", *options, "hydra.run.dir=found", timeout_s=600, **environ)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found/benchmark.json").read_text())
    assert found["mode"] == mode
    assert {"ratios", "machine", "versions", "command"} <= found.keys()
    assert found["conclusion"] in " ".join(done.stdout.split())
    assert all(len(line) <= 80 for line in done.stdout.splitlines()[:-1]), done.stdout
    assert found["conclusion"].count("bottleneck") >= 1
    for row in found["rows"]:
        assert row["median"] == pytest.approx(median(row["all"]), rel=0.01)
        assert row["title"][:20] in done.stdout
    assert not list((tmp_path / "found").glob(".work*"))
    return found


@pytest.mark.slow
def test_files_packs_and_workers_are_measured(tree: Path, tmp_path: Path):
    def short(verb: str, *options: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
        words, environment = ("run_code", SHORT, json.dumps(options)), clean_environ(PYTHONPATH=PROBES)
        return forked_commands.run(*words, folder=tmp_path, environment=environment, timeout_s=timeout_s)

    found = measured(short, tmp_path, "loader", *SMALL, *FEW, f"data.root={tree}")
    rates = {row["title"]: row["median"] for row in found["rows"]}
    assert [*rates] == ["files", "packed at 256, JPEG", "packed at 256, pixels", "0 processes", "1 process"]
    for name, ratio in found["ratios"].items():
        assert ratio == pytest.approx(rates[name] / rates["files"], rel=0.01)


@pytest.mark.slow
def test_the_step_is_measured_without_and_with_compile(run: Run, tree: Path, tmp_path: Path):
    net = ("model._target_=block_net.BlockNet", "allow_targets=[block_net.BlockNet]")  # compiles in seconds
    few = ("benchmark.repeats=1", "benchmark.num_steps=2", f"data.root={tree}")
    found = measured(run, tmp_path, "step", *small_run(*net), *few, PYTHONPATH=PROBES)
    off, default = found["rows"]
    assert [off["title"], default["title"]] == ["compile=off", "compile=default"]
    assert found["ratios"]["compile"] == pytest.approx(default["median"] / off["median"], rel=0.01, abs=0.001)
    assert found["compile_s"] > 0


@pytest.mark.slow
def test_training_its_loader_and_its_step_are_measured(run: Run, tree: Path, tmp_path: Path):
    few = ("benchmark.repeats=1", "benchmark.num_steps=4", "benchmark.num_images=12")
    found = measured(run, tmp_path, "train", *SMALL, f"data.root={tree}", *few)
    titles = [row["title"] for row in found["rows"]]
    assert titles == ["end to end", "the step alone", "the loader alone"]
    ours, step, loader = (row["median"] for row in found["rows"])
    assert found["ratios"]["end_to_end"] == pytest.approx(ours / min(loader, step), rel=0.01)
    assert min(ours, step, loader) > 0
    assert 0 <= found["data_wait_frac"] < 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("data=stl10",), "data must be a source of image files for benchmark=loader, got stl10"),
        (("benchmark=strategies",), "benchmark must be one of loader, step, train, got strategies"),
        (("benchmark=step", "data=imagefolder", "data.root=nowhere"), "data.root must be a folder"),
    ],
)
def test_refused(options: tuple[str, ...], said: str, run: Run, tmp_path: Path):
    done = run("benchmark", *options)
    assert done.returncode == 2, done.stderr
    assert said in " ".join(done.stderr.split())
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_mistakes_that_only_the_training_finds_are_those_of_the_benchmark(run: Run, tree: Path, tmp_path: Path):
    (tmp_path / "cut.pt").write_bytes(b"PK\x03\x04")
    options = ["data=imagefolder", f"data.root={tree}", "model.weights=cut.pt", "trainer.accelerator=cpu"]
    done = run("benchmark", "benchmark=train", *options)
    assert done.returncode == 2, done.stderr
    assert (
        "imagenet_ddp.benchmark: 1 mistake, nothing was started" in done.stderr
        and "cut.pt cannot be read" in done.stderr
    )


@pytest.mark.parametrize(
    ("ours", "step", "loader", "wait", "workers", "said"),
    [
        (29, 30, 900, 0.03, 0, "the bottleneck is the training step, which"),
        (12_780, 12_800, 21_300, 0.49, 8, "the bottleneck is the training step, which"),  # the device was never idle
        (90, 900, 100, 0.9, 2, "the bottleneck is the loader. This would help: data.num_workers=15 or `prepare=pack`"),
        (60, 110, 100, 0.02, 2, "the bottleneck is the cores, which they share"),
    ],
)
def test_the_bottleneck(
    ours: float, step: float, loader: float, wait: float, workers: int, said: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(trainings, "num_cores", lambda: 16)
    assert said in trainings.bottleneck(ours, step, loader, wait, workers)
