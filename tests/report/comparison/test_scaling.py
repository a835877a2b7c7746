"""Speed over devices: which runs may be compared, and the numbers."""

from pathlib import Path

import pytest
from helpers.fake_runs import make_run

from imagenet_ddp.report.comparison.differences import find_differences
from imagenet_ddp.report.comparison.scaling import Series, find_series, scaling_table
from imagenet_ddp.report.find_runs import find_runs
from imagenet_ddp.report.run import read_run


def series(folder: Path) -> list[Series]:
    runs = [read_run(path) for path in find_runs(folder).folders]
    return find_series(runs, find_differences(runs))


def test_speedup_and_efficiency_of_medians(tmp_path: Path):
    for devices, nodes, rates in ((2, 1, (190, 200, 900)), (4, 1, (300,)), (8, 2, (400,))):
        for seed, rate in enumerate(rates):
            options = {"trainer.devices": devices // nodes, "trainer.num_nodes": nodes, "seed": seed}
            make_run(tmp_path / f"{devices}_{seed}", options, num_devices=devices, num_nodes=nodes, images_per_s=rate)
    (one,) = series(tmp_path)
    assert [(w.num_devices, w.num_nodes, w.num_runs, w.global_batch) for w in one.worlds] == [
        (2, 1, 3, 64), (4, 1, 1, 128), (8, 2, 1, 256),
    ]  # fmt: skip
    assert [w.images_per_s for w in one.worlds] == [200, 300, 400]
    assert [w.speedup for w in one.worlds] == pytest.approx([1, 1.5, 2])
    assert [w.efficiency for w in one.worlds] == pytest.approx([1, 0.75, 0.5])
    table = scaling_table([one])
    assert [cell.text for cell in table.rows[2]] == ["", "8", "2", "1", "32", "256", "400", "2.00", "50 %"]


def test_only_equal_runs_are_compared(tmp_path: Path):
    make_run(tmp_path / "1", {"trainer.devices": 1})
    make_run(tmp_path / "2", {"trainer.devices": 2, "model.name": "other"}, num_devices=2)
    assert series(tmp_path) == []
    make_run(tmp_path / "3", {"trainer.devices": 2}, num_devices=2, precision="bf16-mixed")
    assert series(tmp_path) == [], "auto chose another precision"
    make_run(tmp_path / "4", {"trainer.devices": 2}, num_devices=2)
    (one,) = series(tmp_path)
    assert [world.num_devices for world in one.worlds] == [1, 2]
    assert one.label == ""
    make_run(tmp_path / "5", {"trainer.devices": 1, "model.name": "other"})
    assert [each.label for each in series(tmp_path)] == ["model.name=resnet18", "model.name=other"]
    make_run(tmp_path / "6", {"trainer.devices": 1}, precision="bf16-mixed")
    assert [each.label for each in series(tmp_path)] == [
        "model.name=resnet18 precision=32-true", "model.name=other precision=32-true",
        "model.name=resnet18 precision=bf16-mixed",
    ]  # fmt: skip


def test_the_same_world_twice_is_no_scaling(tmp_path: Path):
    for seed in (0, 1):
        make_run(tmp_path / str(seed), {"seed": seed}, num_devices=4)
    assert series(tmp_path) == []


def test_batches_that_follow_from_the_world(tmp_path: Path):
    for devices in (1, 2):
        make_run(tmp_path / f"s/{devices}", {"trainer.devices": devices, "data.batch_size": 64 // devices},
                 num_devices=devices)  # fmt: skip
        make_run(tmp_path / f"m/{devices}", {"trainer.devices": devices, "data.batch_size": 10 + devices},
                 num_devices=devices)  # fmt: skip
    (strong,), (mixed,) = series(tmp_path / "s"), series(tmp_path / "m")
    assert [(world.batch, world.global_batch) for world in strong.worlds] == [(64, 64), (32, 64)]
    assert [(world.batch, world.global_batch) for world in mixed.worlds] == [(11, 11), (12, 24)]
    both = series(tmp_path)  # each world with two batch sizes: those are no repeats
    assert both == []
    make_run(tmp_path / "w", {"trainer.devices": 2, "data.batch_size": 64}, num_devices=2)
    (one,) = series(tmp_path)
    assert {world.batch for world in one.worlds} == {64}


def test_a_running_job_counts_by_its_options(tmp_path: Path):
    make_run(tmp_path / "1", {"trainer.devices": 1, "trainer.num_nodes": 1})
    make_run(tmp_path / "2", {"trainer.devices": [0, 3], "trainer.num_nodes": 2}, finished=False)
    make_run(tmp_path / "3", {"trainer.devices": "auto"}, finished=False)
    runs = [read_run(path) for path in find_runs(tmp_path).folders]
    assert [run.num_devices for run in runs] == [1, 4, None]
