"""A last layer that starts from logistic regression, in real runs."""

import contextlib
import csv
import itertools
import json
import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import SMALL, SMALL_ARGS, Run
from PIL import Image

from imagenet_ddp.callbacks import image_features
from imagenet_ddp.callbacks.image_features import compute_columns
from imagenet_ddp.config.schema.learning import ModelConfig
from imagenet_ddp.curation import unknown
from imagenet_ddp.curation.interval import interval_words
from imagenet_ddp.data.module import ImageDataModule
from imagenet_ddp.models.factory import create_model
from imagenet_ddp.models.head import compute_features
from imagenet_ddp.models.regression import PrincipalAxes
from imagenet_ddp.system import console
from imagenet_ddp.training import known_images
from imagenet_ddp.training.calibrate import calibrate


@pytest.mark.parametrize(
    ("num_images", "until_s", "num_read"), [(50, 100.0, 50), (200, 100.0, 60), (200, math.inf, 200)]
)
def test_the_regression_gets_all_images_that_leave_time_for_the_validation(
    monkeypatch: pytest.MonkeyPatch, num_images: int, until_s: float, num_read: int, capsys: pytest.CaptureFixture[str]
):
    """An image takes a second, and a quarter in the regression, in batches of 5; 10 are validated. Ten more seconds
    pass in the first batch. What takes that long shows its progress."""
    clock, net = SimpleNamespace(now=0.0), torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, 2))
    for module in (image_features, console):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))

    class Loader:
        def __iter__(self) -> Iterator[dict[str, Any]]:
            for begin in range(0, num_images, 5):
                clock.now += 5 if begin else 15  # the first is slower
                yield {"image": torch.rand(5, 3), "index": torch.arange(begin, begin + 5),
                       "target": torch.arange(5) % 2, "num_counted": 5, "step_images": 5}  # fmt: skip

        def close(self) -> None: ...

    data: Any = SimpleNamespace(
        plain_dataloader=lambda split: Loader(), train_images=range(num_images), val_images=range(10),
        transfer_batch_to_device=lambda batch, *_: batch,
        finish=lambda batch, training: batch,
    )  # fmt: skip
    strategy = SimpleNamespace(broadcast=lambda value: value)
    precision = SimpleNamespace(forward_context=contextlib.nullcontext)
    trainer: Any = SimpleNamespace(strategy=strategy, is_global_zero=True, precision_plugin=precision, world_size=1)
    own: Any = SimpleNamespace(net=net, dtype=torch.float32, device="cpu", trainer=trainer)
    columns, out_of_time = compute_columns(trainer, own, data, "train", "1", until_s=until_s, num_after=10)
    assert columns is not None and len(columns[0]) == num_read and out_of_time == (num_read < num_images)
    assert f"features: {num_read} of {num_images} images (" in capsys.readouterr().err
    assert len(compute_columns(trainer, own, data, "train", "1", is_stopped=lambda: True)[0][0]) == 5  # pyright: ignore


@pytest.mark.slow
def test_the_last_layer_is_the_regression_on_any_number_of_devices(
    run: Run, tree: Path, seven_class_weights: Path, tmp_path: Path
):
    """One process, two processes, and two threads of one process: all get the same layer, with the validation accuracy
    of the regression. An average of the weights starts from it, too. A resumed run does not compute it again."""
    base = (*SMALL, f"data.root={tree}", "model.weights=weights.pt", "model.head=regression", "model.batch_norm=frozen",
            "optim.lr=1e-20", "averaging=ema", "trainer.max_epochs=1")  # fmt: skip
    found = {}
    for name, options in {"one": [], "two": ["trainer.devices=2"], "dp": ["trainer.devices=2", "strategy=dp"]}.items():
        result = run("train", *base, *options, f"hydra.run.dir={name}", code=0)
        assert "starts from logistic regression on these features (" in result.stdout, result.stdout
        state = torch.load(tmp_path / name / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
        said, val = " ".join(result.stdout.split()), re.search(r"val loss \S+ top-1 (\S+) %", result.stdout)
        assert val
        assert "epoch 0/1 (regression on frozen features): val loss" in result.stdout
        assert f"Best val top-1 {val[1]} % (epoch 0: regression on frozen features)" in result.stdout
        number = json.loads((tmp_path / name / "summary.json").read_text())["num_val_images"]
        likely = interval_words(round(float(val[1]) * number / 100), number)
        assert f"95 % interval, from {number} images: {likely}." in said
        found[name] = (val[1], state["net.classifier.1.weight"], state["net.classifier.1.bias"])
    for name in ("two", "dp"):
        assert found[name][0] == found["one"][0]
        torch.testing.assert_close(found[name][1:], found["one"][1:], rtol=1e-3, atol=1e-3)

    references = {name: unknown.read(tmp_path / name / "known.npz") for name in found}
    for name in ("two", "dp"):
        torch.testing.assert_close(references[name].weight, references["one"].weight, rtol=1e-3, atol=1e-3)

    resumed = run("train", "resume=one", "trainer.max_epochs=2", code=0)
    assert "logistic regression" not in resumed.stdout and "for the last layer" not in resumed.stdout

    data = ImageDataModule.from_options("imagefolder", tree, image_size=32, val_resize=32, num_workers=0)
    net = create_model(ModelConfig(name="mobilenet_v2", args=SMALL_ARGS), 3, 5, 32).eval()
    stored = {
        name: value for name, value in torch.load(seven_class_weights).items() if not name.startswith("classifier")
    }
    net.load_state_dict(stored, strict=False)
    columns = []
    for loader in (data.plain_dataloader("train"), data.val_dataloader()):
        batches = [data.finish(batch, training=False) for batch in loader]
        features = torch.cat([compute_features(net, "classifier.1", batch["image"])[0] for batch in batches])
        columns.append((features, torch.cat([batch["target"] for batch in batches])))
    (features, targets), (val_features, val_targets) = columns
    axes = PrincipalAxes(features)
    tried = [axes.of_features(axes.minimise(targets, 3, 10 ** (half / 2))) for half in range(-6, 2)]
    distances = [((weight - found["one"][1]).norm() / weight.norm()).item() for weight, _ in tried]
    assert min(distances) < 0.01, "the layer is no minimum of the objective"
    right = F.linear(val_features, *tried[distances.index(min(distances))]).argmax(1) == val_targets
    assert f"{100 * right.float().mean():.2f}" == found["one"][0]


@pytest.mark.slow
def test_the_best_checkpoint_is_never_worse_than_the_regression(
    run: Run, tree: Path, seven_class_weights: Path, tmp_path: Path
):
    """Training that spoils the net leaves the regression as best.ckpt, from which a run continues as from its start."""
    options = [*SMALL, f"data.root={tree}", f"model.weights={seven_class_weights}", "model.head=regression"]
    whole = run("train", *options, "optim.lr=3", "trainer.devices=2", "hydra.run.dir=whole", code=0)
    start = "so the best net is that of epoch 0 (regression on frozen features): val top-1 is "
    rows = list(csv.DictReader((tmp_path / "whole/metrics.csv").read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    top1 = [float(row["val/top1"]) for row in rows]
    assert top1[0] > max(top1[1:]) and {float(row["best/val/top1"]) for row in rows} == {top1[0]}
    summary = json.loads((tmp_path / "whole/summary.json").read_text())
    assert (summary["best/val/top1"], summary["best_epoch"]) == (top1[0], 0)
    assert f"{start}{100 * top1[-1]:.2f} % at the end" in whole.stdout
    assert "is worse than that of a guess; set optim.lr to less than 3, or leave it out" in whole.stdout
    best = tmp_path / "whole/checkpoints/best.ckpt"
    evaluated = run("evaluate", f"checkpoint={best}", "hydra.run.dir=e")
    assert f"top-1 {100 * top1[0]:.2f} %" in evaluated.stdout, evaluated.stdout + evaluated.stderr
    words = "the start: regression on frozen features"
    run("export", f"checkpoint={best}", "format=safetensors", "num_images=1", "out=m.safetensors", code=0)
    assert f"({words}, " in evaluated.stdout and f"| Training | {words}, " in (tmp_path / "README.md").read_text()
    reported = run("report", "whole", code=0).stdout
    assert f", {words})" in reported and "(2 of 2 epochs, none better than the start)" in reported

    shutil.copytree(tmp_path / "whole", tmp_path / "again", ignore=shutil.ignore_patterns("summary.json", "last.ckpt"))
    resumed = run("train", "resume=again/checkpoints/best.ckpt", code=0)
    assert "for the last layer" not in resumed.stdout and "epoch 2/2" in resumed.stdout
    assert "(epoch 0: regression on frozen features)" in resumed.stdout and start in resumed.stdout
    states = [torch.load(tmp_path / name / "checkpoints/last.ckpt", weights_only=True) for name in ("whole", "again")]
    torch.testing.assert_close(states[1]["state_dict"], states[0]["state_dict"], rtol=0, atol=0)
    again = list(csv.DictReader((tmp_path / "again/metrics.csv").read_text().splitlines()))
    assert [row["val/top1"] for row in again] == [row["val/top1"] for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_a_fine_tuning_ends_with_what_the_command_features_would_write(
    run: Run, tree: Path, seven_class_weights: Path, tmp_path: Path, devices: int
):
    """predict tells others without a further command, also for the other weights of a resumed run."""
    options = [*SMALL, f"data.root={tree}", f"model.weights={seven_class_weights}", "model.head=regression"]
    trained = ["averaging=ema", "optim.lr=0.01", f"trainer.devices={devices}", "callbacks.checkpoint.monitor=null"]
    file = tmp_path / "r/known.npz"
    first = run("train", *options, *trained, "trainer.max_epochs=1", "hydra.run.dir=r", code=0)
    assert "Written to r/known.npz" in first.stdout and file.is_file()
    resumed = run("train", "resume=r", "trainer.max_epochs=2", code=0)
    assert "by which predict tells images unlike" in resumed.stdout, "the start's features are of another net"
    written = unknown.read(file)
    file.unlink()
    assert "Written to r/known.npz" in run("features", "checkpoint=r", f"data.root={tree}", code=0).stdout
    again = unknown.read(file)
    # the scores depend on the product alone: 29 images have 28 axes, and any direction may be the last
    numbers = [
        (each.weight, each.bias, each.centre, each.images @ each.axes, each.threshold) for each in (written, again)
    ]
    torch.testing.assert_close(*numbers, rtol=1e-3, atol=1e-3)
    assert written.digest == again.digest


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_the_best_net_of_a_fine_tuning_is_calibrated(run: Run, seven_class_weights: Path, tmp_path: Path, devices: int):
    """By the folds of the regression that a training starts from, or by the validation images. What continues the
    training is left as it is."""
    draw = np.random.default_rng(0)
    for split, (place, name) in itertools.product(("train", "val"), enumerate(("cat", "dog", "owl"))):
        (folder := tmp_path / "images" / split / name).mkdir(parents=True)
        for number, light in enumerate(draw.normal(90 + 40 * place, 20, 30)):  # the classes overlap
            Image.new("L", (32, 32), int(np.clip(light, 0, 255))).save(folder / f"{number}.png")
    options = [*SMALL, "data.root=images", f"model.weights={seven_class_weights}", "model.head=regression"]
    options += [f"trainer.devices={devices}", "trainer.max_epochs=1", "loss.label_smoothing=0.5"]
    later = ["callbacks.checkpoint.monitor=val/loss", "callbacks.checkpoint.mode=max", "model.freeze=backbone"]
    for name, words, of in (
        ("start", ["trainer.max_epochs=0"], "90 training images, each held out in one of five folds"),
        ("later", later, "90 validation images"),
    ):
        done = " ".join(run("train", *options, *words, f"hydra.run.dir={name}", code=0).stdout.split())
        said = re.search(
            rf"best.ckpt is calibrated: its logits are multiplied by (\S+), .* by {of} \(loss (\S+) to (\S+)\)", done
        )
        assert said, done
        factor, before, after = map(float, said.groups())
        assert 0.1 < factor < 10
        last, best = (
            torch.load(tmp_path / name / f"checkpoints/{each}.ckpt", weights_only=True)["state_dict"]
            for each in ("last", "best")
        )
        scaled = {key: factor * value if ".classifier." in key else value for key, value in last.items()}
        torch.testing.assert_close(best, scaled, rtol=0.01, atol=1e-6)
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        run("evaluate", f"checkpoint={name}", f"hydra.run.dir={name}-eval", code=0)
        evaluation = json.loads((tmp_path / f"{name}-eval/evaluation.json").read_text())
        assert evaluation["val/top1"] == summary["val/top1"] and after < before
        if name == "later":
            assert (before, after) == pytest.approx((summary["val/loss"], evaluation["val/loss"]), rel=0.01)


@pytest.mark.parametrize(("dtype", "is_changed"), [("float32", True), ("float64", True), ("bfloat16", False)])
def test_weights_that_a_factor_would_round_are_not_calibrated(tmp_path: Path, dtype: str, is_changed: bool):
    """Those of trainer.precision=bf16-true: the classes might change."""
    weight = torch.eye(2, dtype=getattr(torch, dtype))
    names = ("net.head.weight", "net.alias.weight")  # of one layer
    torch.save({"state_dict": dict.fromkeys(names, weight)}, best := tmp_path / "best.ckpt")
    targets = torch.arange(60) % 2
    said = calibrate(best, "head", F.one_hot(targets).float(), targets, "60 images")
    found, alias = (torch.load(best, weights_only=True)["state_dict"][name] for name in names)
    assert torch.equal(found, alias)
    assert found.dtype == weight.dtype
    assert (bool(said), not torch.equal(found, weight)) == (is_changed, is_changed), said
    torch.save({"state_dict": {"net.head.parametrizations.weight.original1": weight, "net.head.bias": weight}}, best)
    assert not calibrate(best, "head", F.one_hot(targets).float(), targets, "60 images"), "the bias alone"


def test_a_net_that_does_not_end_in_its_last_layer_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Its classes would change. There is no pass over its images, either, whose features would not be those."""
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 2), torch.nn.Tanh())
    data = SimpleNamespace(source=SimpleNamespace(classes=["cat", "dog"]), options=SimpleNamespace(image_size=8))
    parts: Any = SimpleNamespace(
        checkpoint_callback="on", trainer=SimpleNamespace(callbacks=[]), module=SimpleNamespace(net=net), data=data
    )
    monkeypatch.setattr(known_images, "_load", lambda *_: (1, ""))
    known_images.write_known(parts, tmp_path, pytest.fail, lambda: False)


def test_what_cannot_be_written_after_a_training_is_said_without_the_hint_to_resume_it(tmp_path: Path):
    """That run is complete. Also a checkpoint that was removed ends nothing."""
    targets = torch.arange(60) % 2
    splits = [(torch.arange(60), torch.rand(60, 4), targets)] * 2
    (tmp_path / "file").touch()
    said = known_images._write(tmp_path / "file/known.npz", splits, targets.numpy(), "", "Later: `features`.")
    assert said == f"{tmp_path}/file/known.npz cannot be written: not a directory. Later: `features`."
    net = torch.nn.Sequential(torch.nn.Linear(4, 2))
    said = known_images._calibrate(tmp_path / "best.ckpt", net, "0", splits, None)
    assert said.startswith("best.ckpt is not calibrated. ") and "No such file" in said


def test_a_stopped_pass_does_not_begin_with_the_next_split(monkeypatch: pytest.MonkeyPatch):
    """Its loader would start processes while the machine waits for the end of this one."""
    begun = list[str]()

    def compute(trainer: Any, module: Any, data: Any, split: str, head: str, **_: Any) -> tuple[None, bool]:
        begun.append(split)
        return None, True

    monkeypatch.setattr(known_images, "compute_columns", compute)
    trainer, net = SimpleNamespace(strategy=SimpleNamespace(root_device="cpu")), torch.nn.Module()
    data = SimpleNamespace(train_images=range(9), val_images=range(9), close=lambda: None)
    module = SimpleNamespace(net=net, to=net.to)
    parts: Any = SimpleNamespace(trainer=trainer, module=module, data=data)
    assert known_images._compute(parts, "head", print, lambda: True) is None and begun == ["train"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("trainer.max_epochs=0", "Nothing was trained."),
        ("+callbacks.mine._target_=mine.Mine", "No known.npz is written: "),
    ],
)
def test_a_training_is_complete_without_a_checkpoint_that_can_be_read_again(
    run: Run, tree: Path, seven_class_weights: Path, tmp_path: Path, option: str, said: str
):
    """No validation comes before the end, so there is none, or a callback of the user's own has put an object of its
    own class into it. No rank waits for another."""
    (tmp_path / "mine.py").write_text(
        "import lightning\nclass Mine(lightning.Callback):\n    def state_dict(self):\n        return {'mine': Mine}\n"
    )
    options = [*SMALL, f"data.root={tree}", f"model.weights={seven_class_weights}", "model.head=regression"]
    options += ["trainer.max_epochs=1", "trainer.limit_val_batches=0", "trainer.devices=2", "hydra.run.dir=r", option]
    done = run("train", *options, code=0)
    assert said in done.stdout and "Run folder: r" in done.stdout, done.stdout
    assert not (tmp_path / "r/known.npz").exists()


@pytest.mark.slow
def test_no_class_is_unknown_because_the_time_was_too_short_for_its_images(
    run: Run, tree: Path, seven_class_weights: Path, tmp_path: Path
):
    """The start is the result, whose features are of the first two images."""
    options = [*SMALL, f"data.root={tree}", f"model.weights={seven_class_weights}", "model.head=regression"]
    options += ["budget_min=0.001", "data.batch_size=2", "data.val_batch_size=2", "hydra.run.dir=r"]
    done = run("train", *options, code=0).stdout
    assert "the features of 2, all that the time allows" in done and "No known.npz is written: images of " in done, done
    assert "imagenet_ddp.features checkpoint=r`." in done and not (tmp_path / "r/known.npz").exists()
