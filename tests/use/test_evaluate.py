"""python -m imagenet_ddp.evaluate against a loop of torch alone on the same checkpoint."""

import csv
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import PROBES, Run, clean_environ
from helpers.forked_commands import Command
from helpers.train_runs import wait_for
from torch import Tensor
from torchvision.models import mobilenet_v2

from imagenet_ddp.data.decoding.decode import Reading, decode
from imagenet_ddp.data.transforms import EvalTransform, normalise

pytestmark = pytest.mark.slow

CLASSES = ["cat", "dog", "owl"]
METRICS = "metrics=[f1,precision,recall,per_class,auroc,cohen_kappa,matthews]"


@pytest.fixture(scope="module")
def checkpoint(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The logits of a few trained steps are large; these are smaller, so that all probabilities count, and some
    predictions are wrong."""
    stored = torch.load(trained, weights_only=True)
    for name in ("net.classifier.1.weight", "net.classifier.1.bias"):
        stored["state_dict"][name] *= 0.1
    stored["state_dict"]["net.classifier.1.bias"][0] += 8
    path = tmp_path_factory.mktemp("scaled") / "best.ckpt"
    torch.save(stored, path)
    return path


def logits_of(checkpoint: Path, paths: Sequence[Path], *, mirror: bool) -> Tensor:
    """float32 (N, 3), image by image."""
    stored = torch.load(checkpoint, weights_only=True)
    net = mobilenet_v2(num_classes=3, **stored["imagenet_ddp"]["config"]["model"]["args"]).eval()
    net.load_state_dict({name.removeprefix("net."): each for name, each in stored["state_dict"].items()})
    transform = EvalTransform.of_stored(stored["imagenet_ddp"]["eval_transform"])
    rows = []
    with torch.inference_mode():
        for path in paths:
            pixels = transform(decode(path.read_bytes(), str(path), Reading("auto", False)))
            image = normalise(pixels[None], transform.mean, transform.std, False)
            rows.append((net(image) + net(image.flip(3))) / 2 if mirror else net(image))
    return torch.cat(rows)


def assert_rows(rows: Sequence[Mapping[str, Any]], paths: Sequence[Path], logits: Tensor, k: int) -> None:
    for row, path, each in zip(rows, paths, logits, strict=True):
        probabilities, order = each.softmax(0), each.argsort(descending=True).tolist()[:k]
        label = CLASSES.index(path.parent.name)
        assert (row["path"], row["label"]) == (str(path), path.parent.name)
        assert row["prediction"] == CLASSES[order[0]]
        assert [row[f"class_{rank}"] for rank in range(1, k + 1)] == [CLASSES[top] for top in order]
        found = [float(row[f"probability_{rank}"]) for rank in range(1, k + 1)]
        assert found == pytest.approx(probabilities[order].tolist(), rel=1e-3, abs=1e-6)
        assert float(row["confidence"]) == found[0]
        assert float(row["loss"]) == pytest.approx(float(-each.log_softmax(0)[label]), rel=1e-3, abs=1e-5)
        assert float(row["label_probability"]) == pytest.approx(float(probabilities[label]), rel=1e-3, abs=1e-6)
        assert f"class_{k + 1}" not in row


def assert_results(found: dict[str, Any], logits: Tensor, labels: Tensor) -> None:
    right = (logits.argmax(1) == labels).double()
    assert found["val/top1"] == pytest.approx(float(right.mean()), abs=1e-6)
    assert found["val/loss"] == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-4)
    calibration = found["calibration"]
    assert calibration["nll"] == pytest.approx(found["val/loss"], rel=1e-5)
    temperatures = torch.logspace(-1, 1, 4001)
    losses = torch.stack([F.cross_entropy(logits / each, labels) for each in temperatures])
    fitted = calibration["temperature"], calibration["nll_at_temperature"]
    if right.all() or losses.argmin() in (0, 4000):
        assert fitted == (None, None)
    else:
        assert fitted[0] == pytest.approx(float(temperatures[losses.argmin()]), rel=5e-3)
        assert fitted[1] == pytest.approx(float(losses.min()), rel=1e-3)
    confidence = logits.softmax(1).amax(1)
    bins = (confidence * 15).ceil()
    gaps = [(right - confidence)[bins == each].sum().abs() / len(right) for each in range(1, 16)]
    assert calibration["ece"] == pytest.approx(float(sum(gaps)), abs=1e-4)


def test_three_ranks_agree_with_a_plain_loop(run: Run, tree: Path, checkpoint: Path, tmp_path: Path) -> None:
    """12 images, of which one cannot be read: uneven shares. Without it one process gives the same."""
    shutil.copytree(tree / "val", tmp_path / "some/val")
    (tmp_path / "some/val/dog/0.jpg").write_bytes(b"no image")
    options = [f"checkpoint={checkpoint}", "data=imagefolder", "data.val_mirror=true", METRICS, "data.num_workers=0"]
    some = [*options, f"data.root={tmp_path}/some", "data.on_bad_image=skip", "data.val_batch_size=2"]
    done = run("evaluate", *some, "trainer.devices=3", "hydra.run.dir=e", code=0)
    rows = list(csv.DictReader((tmp_path / "e/predictions.csv").read_text("utf-8-sig").splitlines()))
    assert [int(row["index"]) for row in rows] == list(range(12))
    bad = rows.pop(4)
    assert bad["path"] == f"{tmp_path}/some/val/dog/0.jpg" and bad["label"] == "dog"
    assert bad["error"] == "it is not an image in a known format"
    assert {bad[name] for name in list(bad)[3:-1]} == {""}
    paths = sorted(path for path in (tmp_path / "some/val").glob("*/*") if path.name != "0.jpg")
    logits = logits_of(checkpoint, paths, mirror=True)
    assert_rows(rows, paths, logits, 3)

    found = json.loads((tmp_path / "e/evaluation.json").read_text())
    labels = torch.tensor([CLASSES.index(path.parent.name) for path in paths])
    assert_results(found, logits, labels)
    assert (found["classes"], found["labels"], found["predictions"]) == (CLASSES, CLASSES, "predictions.csv")
    predicted = logits.argmax(1)
    shares = [float((predicted[labels == each] == each).double().mean()) for each in range(3)]
    assert list(found["metrics"]["per_class"].values()) == pytest.approx(shares)
    assert found["metrics"]["recall"] == pytest.approx(sum(shares) / 3)
    assert f"recall: {found['metrics']['recall']:.4f}\n" in done.stdout

    done = run("evaluate", *some, "trainer.limit_val_batches=3", "predictions=none", "hydra.run.dir=few")
    assert "5 of 12 validation images, each once, 1 unreadable.\n" in done.stdout
    assert "\nAt most trainer.limit_val_batches=3 of their batches are used.\n" in done.stdout
    few = json.loads((tmp_path / "few/evaluation.json").read_text())
    assert (few["num_val_images"], few["num_val_images_unreadable"]) == (5, 1)

    done = run("evaluate", *options, f"data.root={tree}", "predictions=none", "hydra.run.dir=one", code=0)
    one = json.loads((tmp_path / "one/evaluation.json").read_text())
    assert one["predictions"] is None and not list((tmp_path / "one").glob("predictions*"))
    for name in ("calibration", "metrics"):
        assert one[name] == pytest.approx(found[name], rel=1e-3) if name == "calibration" else one[name] == found[name]


def test_a_wait_without_an_end_is_reported(tree: Path, checkpoint: Path, tmp_path: Path) -> None:
    """A rank that waits in a collective, as behind a path MTU black hole, where the failure watch sees no failure."""
    options = [f"checkpoint={checkpoint}", f"data.root={tree}", "data._target_=stuck_image.open_stuck"]
    options += [f"+data.args.until={tmp_path / 'until'}", "+data.args.report_s=0.3", "data.num_workers=0"]
    environ = clean_environ(PYTHONPATH=PROBES)
    command = Command("imagenet_ddp.evaluate", *options, "trainer.devices=2", folder=tmp_path, environment=environ)
    wait_for(lambda: command.poll() is not None or "No step has ended for " in command.err, timeout_s=60)
    (tmp_path / "until").touch()
    assert command.wait(120) == 0 and "No step has ended for " in command.err, command.out + command.err


def test_a_subset_of_the_classes_from_a_table(run: Run, tree: Path, checkpoint: Path, tmp_path: Path) -> None:
    """Classes are those of the table, images in its order and with ImageNet's names, two threads share a batch."""
    paths = []
    for number, path in enumerate([*sorted((tree / "val").glob("[co][aw][tl]/*"))][::-1], 1):
        (tmp_path / path.parent.name).mkdir(exist_ok=True)
        paths.append(tmp_path / path.parent.name / f"ILSVRC2012_val_{number:08}.JPEG")
        shutil.copy(path, paths[-1])
    lines = [f"{path},{path.parent.name},val,{number + 0.5}\n" for number, path in enumerate(paths)]
    (tmp_path / "t.csv").write_text("path,label,split,weight\n" + "".join(lines))
    (tmp_path / "real.json").write_text(json.dumps([[0], [], [1], [], [2, 3], [], []]))
    done = run(
        "evaluate", f"checkpoint={checkpoint}", "data=table", "data.root=t.csv", "classes=subset",
        "real_labels=real.json", "strategy=dp", "trainer.devices=2",
        "data.num_workers=0", "hydra.run.dir=e", code=0,
    )  # fmt: skip
    assert "Only 2 of its 3 classes can be predicted (classes=subset).\n" in done.stdout
    assert re.search(r"^top-1 \d+\.\d\d % \| loss ", done.stdout, re.MULTILINE), "top-2 of 2 classes is left out"
    logits = logits_of(checkpoint, paths, mirror=False)
    logits[:, CLASSES.index("dog")] = float("-inf")
    rows = list(csv.DictReader((tmp_path / "e/predictions.csv").read_text("utf-8-sig").splitlines()))
    assert_rows(rows, paths, logits, 2)
    found = json.loads((tmp_path / "e/evaluation.json").read_text())
    assert_results(found, logits, torch.tensor([CLASSES.index(path.parent.name) for path in paths]))
    assert found["classes"] == CLASSES and found["num_classes"] == 2 and found["val/top5"] == 1.0
    assert found["real"] == {"top1": 0.0, "num_images": 3}  # this checkpoint has none of ImageNet's classes
