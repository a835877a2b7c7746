"""Describe a run from its folder, complete or damaged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.fake_runs import make_run, write_metrics

from imagenet_ddp.report.run import find_runs, read_run


def test_a_finished_run(tmp_path: Path):
    run = read_run(make_run(tmp_path / "r", {"optim.lr": 0.3}, top1=0.8, num_devices=4, num_nodes=2))
    assert (run.state, run.problems) == ("finished", ())
    assert (run.epochs, run.max_epochs, run.best_epoch, run.train_s) == (5, 5, 5, 37.5)
    assert run.best_top1 == pytest.approx(0.8)
    assert run.top5 == pytest.approx(0.95)
    assert run.loss == pytest.approx(0.8)
    assert run.images_per_s == 100, "the first epoch, half as fast, does not count"
    assert (run.num_devices, run.num_nodes) == (4, 2)
    assert run.options is not None
    assert run.options["optim.lr"] == 0.3
    assert run.options["trainer.devices"] == 2, "auto, and what it came to"
    assert run.options["data.mean"] == [0.5, 0.5, 0.5]


def test_the_best_epoch_brings_its_own_top5_and_loss(tmp_path: Path):
    folder = make_run(tmp_path / "r")
    columns = ("epoch", "val/top1", "val/top5", "val/loss")
    write_metrics(folder, [[1, 0.2, 0.5, 2.0], [2, 0.9, 0.6, 1.0], [3, "", "", ""], [4, 0.3, 0.99, 0.1]], columns)
    run = read_run(folder)
    assert (run.best_top1, run.best_epoch, run.top5, run.loss) == (0.9, 2, 0.6, 1.0)
    (folder / "summary.json").write_text(json.dumps({"best/val/top1": 0.95, "best_epoch": 2, "epochs": 4}))
    run = read_run(folder)  # the best validation was within the epoch, and has no row
    assert (run.best_top1, run.best_epoch, run.top5, run.loss) == (0.95, 2, None, None)


def test_states(tmp_path: Path):
    folder = make_run(tmp_path / "r", finished=False, epochs=3)
    assert read_run(folder).state == "interrupted"
    assert (read_run(folder).epochs, read_run(folder).max_epochs) == (3, 5)
    hold = "import sys; from pathlib import Path; from imagenet_ddp.runs.folder import lock;"
    hold += "held = lock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", hold, str(folder)], stdin=-1, stdout=-1) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"held\n"
            assert read_run(folder).state == "running"
        finally:
            process.communicate()
    assert read_run(folder).state == "interrupted", "a lock ends with its process"
    (folder / "summary.json").write_text('{"finished": true}')
    assert read_run(folder).state == "finished"


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("metrics.csv", b"\xff\xfe\x00", "metrics.csv is not valid CSV"),
        ("metrics.csv", b"epoch,val/top1\n1e300,0.5\n-1,1\nnan,1\n1,50\n", None),
        ("config.yaml", None, "config.yaml is missing"),
        ("config.yaml", b"data: [", "config.yaml is not valid YAML"),
        ("config.yaml", b"data: !!python/object:os.system {}", "config.yaml is not valid YAML"),
        ("summary.json", b'{"best/val', "summary.json is not valid JSON"),
        ("summary.json", b'{"best/val/top1": "x", "epochs": null, "finished": 1, "num_devices": NaN}', None),
    ],
)
def test_a_damaged_file_is_named_and_the_rest_read(
    name: str, content: bytes | None, problem: str | None, tmp_path: Path
):
    folder = make_run(tmp_path / "r")
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    run = read_run(folder)
    assert run.problems == ((problem,) if problem else ())
    if name != "metrics.csv":
        assert run.best_top1 == pytest.approx(0.8)
    if name == "config.yaml":
        assert run.options is None


def mark(folder: Path, name: str = "metrics.csv") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).touch()
    return folder


def test_a_run_and_all_runs_below_in_natural_order(tmp_path: Path):
    made = [mark(tmp_path / "sweep" / str(number)) for number in range(12)]
    made += [mark(tmp_path / "study/trials/3", "config.yaml"), mark(tmp_path / "z", "summary.json")]
    assert find_runs(made[3]) == [made[3]]
    assert find_runs(tmp_path / "sweep") == made[:12]
    found = find_runs(tmp_path)
    assert found == [made[12], *made[:12], made[13]]


def test_subfolders_of_a_run_and_links_are_not_entered(tmp_path: Path):
    run = mark(tmp_path / "run")
    for name in ("checkpoints", "logs", ".hydra", "csv", "evaluation"):
        mark(run / name)
    (tmp_path / "latest").symlink_to(run)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "config.yaml").mkdir()  # a folder of that name marks nothing
    assert find_runs(tmp_path) == [run]
    assert find_runs(tmp_path / "latest") == [run], "a link that is named is followed"
