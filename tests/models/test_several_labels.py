"""The task of several labels: its figures on batches and ranks, a run from the command line, and what does not fit."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SMALL, Run
from PIL import Image

from imagenet_ddp.config.schema.predict import PredictConfig
from imagenet_ddp.config.schema.run import RunConfig
from imagenet_ddp.models import ImageClassifier
from imagenet_ddp.models.check_labels import validate
from imagenet_ddp.models.several_labels import MeanAveragePrecision, SeveralLabels
from imagenet_ddp.models.sums import to_host
from imagenet_ddp.models.task import OneLabel

NAMES = ("red", "green", "blue")


def average_precision(logits: np.ndarray, labels: np.ndarray) -> float:
    """The mean, over the images with a label, of the share of labels among the images up to it, best first."""
    hits = labels[np.argsort(-logits)]
    return float((np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits == 1].mean())


def test_the_score_of_two_ranks_is_that_of_all_images():
    generator = torch.Generator().manual_seed(1)
    logits, labels = torch.randn(20, 4, generator=generator), torch.rand(20, 4, generator=generator) < 0.4
    labels[:, 3] = False  # a class without a label is left out
    logits[0] = torch.nan  # the least likely of all images
    logits[1], logits[2] = 30.0, 25.0  # whose sigmoids are equal in single precision
    ranks = [MeanAveragePrecision(20, 4) for _ in range(2)]
    for rank, metric in enumerate(ranks):
        own = torch.arange(19)[rank::2]  # the last image could not be read
        metric.update(logits[own], labels[own], own)
    whole, other = ranks
    for name in ("logits", "labels", "times"):  # as torchmetrics does over the ranks
        setattr(whole, name, getattr(whole, name) + getattr(other, name))
    columns = zip(logits[:19].nan_to_num(nan=-1e9).T.numpy(), labels[:19].T.numpy(), strict=True)
    expected = [average_precision(*each) for each in list(columns)[:3]]
    assert whole.compute() == pytest.approx(np.mean(expected), abs=1e-6)
    assert whole.of_each[:3].tolist() == pytest.approx(expected, abs=1e-6) and whole.of_each[3].isnan()


@pytest.mark.parametrize("num_classes", [1, 3])
def test_a_class_alone_has_a_label(num_classes: int):
    metric = MeanAveragePrecision(4, num_classes)
    labels = torch.zeros(4, num_classes)
    labels[2:, 0] = 1
    metric.update(torch.arange(4.0)[:, None].expand(4, num_classes), labels, torch.arange(4))
    assert metric.compute() == 1 and metric.of_each.isnan().sum() == num_classes - 1


def test_the_ranks_add_their_states_without_gathering_them(monkeypatch: pytest.MonkeyPatch):
    summed: list[tuple[int, ...]] = []
    monkeypatch.setattr("torch.distributed.all_reduce", lambda state, group: summed.append(tuple(state.shape)))
    metric = MeanAveragePrecision(4, 3)
    metric.update(torch.randn(4, 3), torch.ones(4, 3), torch.arange(4))
    metric.sync(metric.dist_sync_fn, distributed_available=lambda: True)
    assert summed == [(4, 3), (4, 3), (4,)] and metric.logits.shape == (4, 3)


def test_sums_of_a_batch():
    task = SeveralLabels(3)
    logits = torch.tensor([[1.0, -1, -1], [1, 1, -1], [-1, -1, -1], [torch.nan, -1, -1]])
    target = torch.tensor([[1, 0, 0], [1, 0, 1], [0, 0, 0], [0, 0, 0]], dtype=torch.uint8)
    [sums] = to_host(task.sums(torch.tensor(2.0), logits, target))
    assert sums.totals == {"loss": 2, "f1": 1 + 2 * 1 / 4 + 1, "exact": 2}, "an image without an output is wrong"
    assert sums.images == 4 and list(sums.totals) == task.sums_of
    batch = {"target": target[:3]}
    losses = task.training_losses(logits[:3], batch, "none")
    assert torch.equal(losses, task.validation_losses(logits[:3], target[:3]))
    assert task.training_losses(logits[:3], batch, "mean") == pytest.approx(float(losses.mean()))


@pytest.mark.parametrize("num_classes", [2, 7])
def test_the_loss_of_a_guess(num_classes: int):
    """With which the end of a run compares that of its validation."""
    one, several = OneLabel(num_classes), SeveralLabels(num_classes)
    logits, target = torch.zeros(3, num_classes), torch.tensor([0, 1, 1])
    assert float(one.validation_losses(logits, target).mean()) == pytest.approx(one.guess_loss)
    labels = torch.nn.functional.one_hot(target, num_classes)
    assert float(several.validation_losses(logits, labels).mean()) == pytest.approx(several.guess_loss)


def test_options_that_need_one_label():
    def keys(**options: Any) -> list[str]:
        config: Any = RunConfig()
        for option, value in options.items():
            group, _, key = option.partition("_")
            setattr(config[group], key, value)
        return [mistake.keys[0] for mistake in validate(config, "train")]

    several = {"data_name": "table", "data_labels": "several", "loss_name": "bce"}
    assert keys(**several) == keys() == []
    wrong = {"data_mixup_alpha": 0.2, "data_sampling": "balanced", "model_head": "regression"}
    assert keys(**several, **wrong) == [option.replace("_", ".", 1) for option in wrong]
    assert keys(data_name="shapes", data_labels="several") == ["data.name", "loss.name"]
    predict: Any = PredictConfig(images="x", label_next=5)
    assert validate(predict, "predict") == []
    predict.data.name, predict.data.labels, predict.loss.name = several.values()
    assert [mistake.keys for mistake in validate(predict, "predict")] == [("label_next",)]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Write 24 images with squares of up to three colours, and their table."""
    generator = np.random.default_rng(0)
    rows = [["path", "label", "split"]]
    for number in range(24):
        pixels = generator.integers(0, 60, (40, 40, 3), np.uint8)
        has = [number >> channel & 1 for channel in range(3)]
        for channel in np.flatnonzero(has):
            pixels[8 * channel : 8 * channel + 24, :, channel] = 255
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        named = ";".join(name for name, here in zip(NAMES, has, strict=True) if here)
        rows.append([f"{number}.png", named, "val" if number >= 16 else "train"])
    with (tmp_path / "t.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows(rows)
    return tmp_path / "t.csv"


@pytest.mark.slow(6)
def test_train_evaluate_predict_and_report(table: Path, tmp_path: Path, run: Run):
    options = [*SMALL, "data=table", f"data.root={table}", "data.labels=several", "loss.name=bce", "hydra.run.dir=r"]
    done = run("train", *options, "trainer.max_epochs=2", "callbacks=early_stopping", code=0)
    assert "loss bce" in done.stdout and "16 training and 8 validation images of 3 classes" in done.stdout
    assert "Best val mAP " in done.stdout and "top-1" not in done.stdout
    summary = json.loads((tmp_path / "r/summary.json").read_text())
    with (tmp_path / "r/metrics.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert summary["best/val/map"] == max(float(row["val/map"]) for row in rows) and "val/top1" not in rows[0]

    run("evaluate", "checkpoint=r", "hydra.run.dir=e", code=0)
    found = json.loads((tmp_path / "e/evaluation.json").read_text())
    assert found["val/map"] == pytest.approx(summary["best/val/map"])
    each = found["metrics"]["average_precision"]
    assert set(each) == set(NAMES) and np.mean(list(each.values())) == pytest.approx(found["val/map"])

    done = run("predict", "checkpoint=r", "images=*.png", "format=jsonl", code=0)
    shares = [each["probability"] for line in done.stdout.splitlines() for each in json.loads(line)["classes"]]
    assert "features" not in done.stderr, "which needs one label per image"
    assert len(shares) == 3 * 24 and abs(sum(shares) / 24 - 1) > 0.01, "sigmoids, whose sum over the classes is not 1"

    done = run("evaluate", "checkpoint=r", "data.labels=one", code=2)
    assert "data.labels must be several, as in " in " ".join(done.stderr.split())

    module = ImageClassifier.load_from_checkpoint(tmp_path / "r/checkpoints/best.ckpt")
    assert isinstance(module.task, SeveralLabels)

    done = run("report", "r", code=0)
    assert f"best mAP {100 * summary['best/val/map']:.2f} %" in done.stdout and "one label per image" in done.stdout
