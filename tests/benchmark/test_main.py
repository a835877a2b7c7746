import gzip
import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from conftest import PROBES, SMALL, Run
from PIL import Image

FEW = ("benchmark.num_images=20", "benchmark.repeats=1", "benchmark.num_workers=[0,2]")
SLEEP_S = 0.05


def measured(run: Run, tmp_path: Path, mode: str, *options: str, **environ: str) -> dict[str, Any]:
    """Run one mode, check what all of them share, and return benchmark.json."""
    done = run("benchmark", f"benchmark={mode}", *options, "hydra.run.dir=found", timeout_s=600, **environ)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found/benchmark.json").read_text())
    assert found["mode"] == mode
    assert {"ratios", "extra_collectives_per_step", "machine", "versions", "command"} <= found.keys()
    assert found["conclusion"] in " ".join(done.stdout.split())
    assert all(len(line) <= 80 for line in done.stdout.splitlines()[:-1]), done.stdout
    assert found["conclusion"].count("bottleneck") >= 1
    for row in found["rows"]:
        assert row["median"] == pytest.approx(median(row["all"]), rel=0.01)
        assert row["title"][:20] in done.stdout
    with Image.open(tmp_path / "found/benchmark.png") as picture:
        assert min(picture.size) > 300
    assert not list((tmp_path / "found").glob(".work*"))
    return found


@pytest.mark.slow
def test_variants_workers_and_model_are_measured(run: Run, tree: Path, tmp_path: Path):
    found = measured(run, tmp_path, "loader", *SMALL, *FEW, f"data.root={tree}")
    assert set(found["ratios"]) == {"files", "packed_256_jpeg", "packed_raw", "two_workers"}
    assert found["num_images"] == 20
    for name, rates in found["images_per_s"].items():
        assert len(rates["all"]) == 1 and rates["median"] > 10, name
    for name, ratio in found["ratios"].items():
        if name != "two_workers":
            theirs = found["images_per_s"]["examples"]["all"][0]
            assert ratio == pytest.approx(found["images_per_s"][name]["all"][0] / theirs, rel=0.01)
    assert set(found["workers_images_per_s"]) == {"0", "2"}
    assert found["model"]["images_per_s"] > 1


@pytest.mark.slow
@pytest.mark.alone
def test_photographs_load_faster_than_by_the_baseline(run: Run, shared_data: Path, tmp_path: Path):
    """Far below what is measured on a quiet machine (docs/performance.md), because this one may be busy."""
    few = ("benchmark.num_images=60", "benchmark.repeats=3", "benchmark.num_workers=[0]", "benchmark.model=false")
    done = run(
        "benchmark", "data=imagefolder", f"data.root={shared_data / 'imagenet-real'}", *few, "hydra.run.dir=found"
    )
    assert done.returncode == 0, done.stderr
    ratios = json.loads((tmp_path / "found" / "benchmark.json").read_text())["ratios"]
    assert ratios["files"] > 1.4
    assert ratios["packed_256_jpeg"] > 3
    assert ratios["packed_raw"] > 6
    assert ratios["two_workers"] is None


@pytest.mark.slow
def test_a_callback_that_sleeps_is_seen_in_the_step(run: Run, tree: Path, tmp_path: Path):
    options = (*SMALL, f"data.root={tree}", "benchmark.repeats=1", "benchmark.num_steps=4")
    slow = ("+callbacks.slow._target_=sleep_in_step.Sleep", f"+callbacks.slow.seconds={SLEEP_S}")
    found = measured(run, tmp_path, "step", *options, *slow, "allow_targets=[sleep_in_step]", PYTHONPATH=PROBES)
    for part in ("one_layer", "model"):
        seconds = found[part]["step_s"]
        assert len(seconds["ours"]) == len(seconds["bare"]) == 1
        assert all(ours > bare + SLEEP_S / 2 for ours, bare in zip(seconds["ours"], seconds["bare"], strict=True))
        assert min(seconds["bare"]) > 0
    seconds = found["one_layer"]["step_s"]
    assert all(naive > bare for naive, bare in zip(seconds["naive"], seconds["bare"], strict=True))
    assert found["ratios"]["host_cost"] > 1 and found["ratios"]["step"] > 1
    counted = found["collectives"]
    assert counted["bare"]["c10d::allreduce_"] >= counted["num_steps"]
    each = [sum(counted[name].values()) / counted["num_steps"] for name in ("ours", "bare")]
    assert found["extra_collectives_per_step"] == pytest.approx(each[0] - each[1])
    assert found["extra_collectives_per_step"] <= 0
    assert "the host is part of the bottleneck" in found["conclusion"]
    assert found["model"]["flops_per_image"] > 1e6 and found["model"]["share_of_peak"] is None


@pytest.mark.slow
def test_training_loader_step_and_the_loop_of_pytorch_examples_are_measured(run: Run, tree: Path, tmp_path: Path):
    few = ("benchmark.repeats=1", "benchmark.num_steps=4", "benchmark.num_images=12")
    found = measured(run, tmp_path, "train", *SMALL, f"data.root={tree}", *few)
    theirs, ours, step, loader = (row["median"] for row in found["rows"])
    assert found["ratios"]["train"] == pytest.approx(ours / theirs, rel=0.01)
    assert found["ratios"]["end_to_end"] == pytest.approx(ours / min(loader, step), rel=0.01)
    assert loader > step  # images of 40 pixels, which one process loads by thousands
    assert 0 <= found["data_wait_frac"]["ours"] < 0.9 and 0 <= found["data_wait_frac"]["examples"] < 0.9


@pytest.mark.slow
def test_the_start_is_measured_from_the_command_to_the_first_step(run: Run, tree: Path, tmp_path: Path):
    found = measured(run, tmp_path, "start", *SMALL, f"data.root={tree}", "benchmark.repeats=1")
    bare, ours = (row["median"] for row in found["rows"])
    assert found["ratios"]["start"] == pytest.approx(ours / bare, rel=0.01)
    assert min(bare, ours) > 0.05  # both are forked here, with torch imported


@pytest.mark.slow
def test_strategies_are_measured_on_one_device_to_all(run: Run, tree: Path, tmp_path: Path):
    few = ("benchmark.repeats=1", "benchmark.num_steps=3", "trainer.devices=2")
    found = measured(run, tmp_path, "strategies", *SMALL, f"data.root={tree}", *few)
    rates = {row["title"]: row["median"] for row in found["rows"]}
    names = ("1 device", "ddp, 2 devices", "bare DistributedDataParallel, 2 devices", "dp, 2 devices",
             "balanced_dp, 2 devices")  # fmt: skip
    assert set(rates) == set(names)
    assert found["ratios"]["ddp"] == pytest.approx(rates[names[1]] / rates[names[2]], rel=0.01)
    assert found["runs"]["ddp, 2 devices"]["batch_size"] == 8 and found["runs"]["1 device"]["batch_size"] == 4
    assert all(row.get("MiB", 1000) > 100 for row in found["rows"])


def test_a_profile_has_a_trace_and_the_longest_operations(run: Run, tree: Path, tmp_path: Path):
    found = measured(run, tmp_path, "profile", *SMALL, f"data.root={tree}", "benchmark.num_steps=2")
    assert 5 <= len(found["rows"]) <= 15 and found["num_steps"] == 2
    shares = [row["share"] for row in found["rows"]]
    assert shares == sorted(shares, reverse=True) and 0.3 < sum(shares) <= 1
    with gzip.open(tmp_path / "found/trace.json.gz") as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert "aten::convolution" in names and {row["title"] for row in found["rows"][:3]} <= names


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("data=stl10", "benchmark.repeats=0", "benchmark.num_workers=[-1]"),
            "data must be a source of image files for benchmark=loader, which compares them with packs, got stl10",
        ),
        (
            ("benchmark=step", "benchmark.quality=80"),
            "benchmark.quality must only be set for benchmark=loader, got ben",
        ),
        (("benchmark=profile", "benchmark.repeats=3"), "benchmark.repeats must only be set for benchmark=loader or "),
        (("benchmark=train", "data=stl10"), "data must be a source of image files for benchmark=train"),
        (("benchmark=train", "model.library=timm", "model.name=x"), "model must be a torchvision model"),
        (("benchmark=strategies", "trainer.devices=1"), "got 1. Hint: set trainer.devices=auto."),
        (("benchmark=step", "benchmark.num_steps=0"), "benchmark.num_steps must be an integer ≥ 1"),
        (("benchmark=start", "data=imagefolder", "data.root=nowhere"), "nowhere"),
        (("benchmark=speed",), "benchmark"),
    ],
)
def test_refused(options: tuple[str, ...], said: str, run: Run, tmp_path: Path):
    done = run("benchmark", *options)
    assert done.returncode == 2, done.stderr
    assert said in " ".join(done.stderr.split())
    assert not (tmp_path / "runs").exists()
