import json
from pathlib import Path

import pytest
from conftest import SMALL, Run

FEW = ("benchmark.num_images=20", "benchmark.repeats=1", "benchmark.num_workers=[0,1,2]")


@pytest.mark.slow
@pytest.mark.alone
def test_variants_workers_and_model_are_measured(run: Run, tree: Path, tmp_path: Path):
    done = run("benchmark", *SMALL, *FEW, f"data.root={tree}", "hydra.run.dir=found")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "found").iterdir()} == {"benchmark.json"}
    found = json.loads((tmp_path / "found" / "benchmark.json").read_text())
    assert set(found["ratios"]) == {"raw", "packed_256_jpeg", "packed_raw", "two_workers"}
    assert found["num_images"] == 20
    for name, rates in found["images_per_s"].items():
        assert len(rates["all"]) == 1 and rates["median"] > 10, name
    for name, ratio in found["ratios"].items():
        if name != "two_workers":
            plain = found["images_per_s"]["plain"]["all"][0]
            assert ratio == pytest.approx(found["images_per_s"][name]["all"][0] / plain, rel=0.01)
    assert set(found["workers_images_per_s"]) == {"0", "1", "2"}
    assert found["model"]["images_per_s"] > 1
    assert found["conclusion"] in " ".join(done.stdout.split())
    assert all(len(line) <= 80 for line in done.stdout.splitlines()[:-1]), done.stdout


@pytest.mark.slow
@pytest.mark.alone
def test_photographs_load_faster_than_by_the_baseline(run: Run, shared_data: Path, tmp_path: Path):
    """Far below what is measured on a quiet machine (docs/performance.md), because this one may be busy."""
    few = ("benchmark.num_images=150", "benchmark.repeats=3", "benchmark.num_workers=[0]", "benchmark.model=false")
    done = run(
        "benchmark", "data=imagefolder", f"data.root={shared_data / 'imagenet-real'}", *few, "hydra.run.dir=found"
    )
    assert done.returncode == 0, done.stderr
    ratios = json.loads((tmp_path / "found" / "benchmark.json").read_text())["ratios"]
    assert ratios["raw"] > 1.4
    assert ratios["packed_256_jpeg"] > 3
    assert ratios["packed_raw"] > 6
    assert ratios["two_workers"] is None


def test_refused(run: Run, tmp_path: Path):
    done = run("benchmark", "data=stl10", "benchmark.repeats=0", "benchmark.num_workers=[-1]")
    assert done.returncode == 2
    message = " ".join(done.stderr.split())
    assert "3 mistakes" in message
    assert (
        "data must be a source of image files for benchmark=loader, which packs them to compare, got stl10" in message
    )
    assert not (tmp_path / "runs").exists()
