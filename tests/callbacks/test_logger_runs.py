"""All loggers in runs of two ranks, one killed within an epoch and resumed: each has the figures of metrics.csv."""

import csv
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import PROBES, SMALL_DRAWN, clean_environ
from helpers import forked_commands, logged

from imagenet_ddp.system.packages import is_installed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy"),  # MLflow's own use of SQLAlchemy
]
needs_all = pytest.mark.skipif(
    not all(map(is_installed, ("mlflow", "wandb", "tensorboard", "trackio"))), reason="needs the loggers' extras"
)
OFFLINE = {"WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": None, "PYTHONPATH": PROBES}


def train(folder: Path, *options: str, **environ: str | None) -> subprocess.CompletedProcess[str]:
    environment = clean_environ(**OFFLINE | {"TRACKIO_DIR": str(folder / "trackio")} | environ)
    return forked_commands.run("imagenet_ddp.train", *options, folder=folder, environment=environment, timeout_s=400)


def two_parts(folder: Path, tree: Path, loggers: str, *options: str) -> tuple[Any, Any]:
    """4 steps an epoch, last.ckpt after the steps 8 and 16, the first part ends after step 13, of 24."""
    first = train(
        folder, *SMALL_DRAWN, f"data.root={tree}", "hydra.run.dir=r", "trainer.devices=2", "trainer.max_epochs=6",
        f"logger={loggers}", "callbacks=gradient_norm", "callbacks.checkpoint.every_n_epochs=2",
        "trainer.log_every_n_steps=2", "allow_targets=[probe]", "+callbacks.probe._target_=probe.Probe",
        "+callbacks.probe.folder=p", "+callbacks.probe.step=13", *options,
    )  # fmt: skip
    # a service is contacted only if it is typed, also by a resumed run
    of_loggers = [option for option in options if option.startswith("logger.")]
    second = train(folder, "resume=r", "++callbacks.probe=null", f"logger={loggers}", *of_loggers)
    assert second.returncode == 0, first.stdout + first.stderr + second.stdout + second.stderr
    assert "Warning: " not in first.stdout + second.stdout
    return first, second


@pytest.fixture(scope="module")
def resumed(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Killed: five steps are trained, and logged, again."""
    folder = tmp_path_factory.mktemp("resumed")
    options = ("+callbacks.probe.what=kill", "logger.mlflow.log_model=true")
    first, _ = two_parts(folder, tree, "[csv,tensorboard,mlflow]", *options)
    assert (first.returncode, "SIGKILL" in first.stderr) == (1, True)
    return folder / "r"


@pytest.fixture(scope="module")
def stopped(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stopped by SIGTERM: a kill leaves an incomplete offline file of W&B, and loses what trackio has not written."""
    folder = tmp_path_factory.mktemp("stopped")
    first, _ = two_parts(folder, tree, "[wandb,trackio]", "+callbacks.probe.what=signal")
    assert first.returncode == 128 + 15
    return folder / "r"


def epochs(run_dir: Path) -> list[dict[str, float]]:
    with (run_dir / "metrics.csv").open(newline="") as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


def assert_whole(found: logged.Curves, run_dir: Path) -> None:
    """The figures of metrics.csv. Steps that are trained again after a kill may be there twice."""
    curves, rows = {name: sorted(dict(curve).items()) for name, curve in found.items()}, epochs(run_dir)
    assert len(rows) == 6
    for name, column in {"val/top1": "val/top1", "val/loss": "val/loss", "train/loss_epoch": "train/loss"}.items():
        expected = [(int(row["step"]) - 1, row[column]) for row in rows]
        assert [step for step, _ in curves[name]] == [step for step, _ in expected], name
        assert [value for _, value in curves[name]] == pytest.approx([value for _, value in expected], rel=1e-5), name
    for name in ("train/loss", "train/top1", "lr", "images_per_s", "data_wait_frac", "grad_norm"):
        assert [step for step, _ in curves[name]] == [*range(1, 24, 2)], name
    assert all(value > 0 for _, value in curves["grad_norm"])


@needs_all
def test_csv(resumed: Path) -> None:
    assert_whole(logged.of_csv(resumed), resumed)
    assert "max_epochs: 6" in (resumed / "csv/version_1/hparams.yaml").read_text()


@needs_all
def test_tensorboard(resumed: Path) -> None:
    curves = logged.of_tensorboard(resumed)
    assert_whole(curves, resumed)
    assert "hp_metric" not in curves
    assert len(list((resumed / "tensorboard").glob("events.*"))) == 2
    assert logged.tensorboard_pictures(resumed) == ["pictures/curves", "pictures/train_batch"]


@needs_all
def test_mlflow_file(resumed: Path) -> None:
    run, curves = logged.of_mlflow(resumed)
    assert_whole(curves, resumed)
    assert (run.info.status, run.data.params["trainer/max_epochs"]) == ("FINISHED", "6")
    kept = {path.name for path in (resumed / "mlartifacts").rglob("*.*") if path.is_file()}
    assert kept == {"best.ckpt", "metadata.yaml", "aliases.txt", "train_batch.png", "curves.png"}


@needs_all
def test_wandb_offline(stopped: Path) -> None:
    assert_whole(logged.of_wandb(stopped), stopped)
    runs = [record.run for record in logged.wandb_records(stopped) if record.WhichOneof("record_type") == "run"]
    stored = json.loads((stopped / "logger_wandb.json").read_text())["id"]
    assert {(run.run_id, run.display_name) for run in runs} == {(stored, "r")}
    assert len(list(stopped.glob("wandb/offline-run-*"))) == 2
    assert len(list(stopped.glob("wandb/offline-run-*/files/media/images/pictures/*.png"))) == 2


@needs_all
def test_trackio(stopped: Path) -> None:
    run, curves = logged.of_trackio(stopped.parent / "trackio")
    assert_whole(curves, stopped)
    assert run == json.loads((stopped / "logger_trackio.json").read_text())["id"]


def ids(folder: Path, *names: str) -> list[str]:
    return [json.loads((folder / f"logger_{name}.json").read_text())["id"] for name in names]


@needs_all
def test_a_copied_run_folder_is_another_run_at_each_service(resumed: Path, stopped: Path) -> None:
    for run_dir, names, loggers in (
        (resumed, ["mlflow"], "[csv,tensorboard,mlflow]"),
        (stopped, ["wandb", "trackio"], "[wandb,trackio]"),
    ):
        copy = run_dir.with_name("copy")
        shutil.copytree(run_dir, copy)
        before = ids(run_dir, *names)
        done = train(run_dir.parent, "resume=copy", f"logger={loggers}", "trainer.max_epochs=7", "trainer.devices=1")
        assert done.returncode == 0, done.stdout + done.stderr
        assert not set(before) & set(ids(copy, *names)) and ids(run_dir, *names) == before
        for name, own in zip(names, before, strict=True):
            line = f"logger.{name}: this folder is a copy of {run_dir}, so it begins a new run, {ids(copy, name)[0]}; "
            assert f"{line}the run {own} stays that of the original." in done.stdout
    run, curves = logged.of_mlflow(resumed.with_name("copy"))
    assert [step for step, _ in curves["val/top1"]] == [27]
    assert run.data.params["copy_of/run"] == ids(resumed, "mlflow")[0]
    assert str(resumed.with_name("copy")) in run.info.artifact_uri
