"""python -m imagenet_ddp.export: what it writes is read by the formats' own libraries, and gives what predict gives."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import yaml
from conftest import ROOT, Run, clean_environ, small_run
from helpers import forked_commands
from helpers.browser import CHROMIUM, Browser
from PIL import ExifTags, Image
from safetensors import safe_open
from torch import nn

from imagenet_ddp.cli import parse
from imagenet_ddp.cli.overrides import quoted
from imagenet_ddp.config.schema.export import ExportConfig
from imagenet_ddp.config.schema.predict import PredictConfig
from imagenet_ddp.data.decoding.decode import Reading, decode
from imagenet_ddp.data.transforms import EvalTransform, normalise, whole
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.export.write_and_compare import Comparison, _metadata, export
from imagenet_ddp.exported.formats.registry import FORMATS, graph_format
from imagenet_ddp.exported.graph import Classifier
from imagenet_ddp.launch.stored_config import from_checkpoint
from imagenet_ddp.launch.trained_model import load
from imagenet_ddp.models.layers import average_views
from imagenet_ddp.runs.checkpoint_file import KEY, read
from imagenet_ddp.use.exported_predictor import open_exported
from imagenet_ddp.use.predictor import Predictor, load_net, make_predictor

# a crop, a mirrored mean and a bicubic resize, so that a wrong one of them shows
SEEN = ("data.val_resize=40", "data.val_mirror=true", "data.interpolation=bicubic")


@pytest.fixture(scope="module")
def checkpoint(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The best checkpoint of a run on `tree`."""
    folder = tmp_path_factory.mktemp("trained")
    options = [*small_run("model.name=resnet18"), *SEEN, "trainer.max_epochs=3", "optim.lr=0.02", "data.augment=none"]
    options += [f"data.root={tree}", "hydra.run.dir=r"]
    result = forked_commands.run("imagenet_ddp.train", *options, folder=folder, environment=clean_environ())
    assert result.returncode == 0, result.stdout + result.stderr
    return folder / "r/checkpoints/best.ckpt"


def run_export(checkpoint: Path, *options: str) -> list[str]:
    """As the command, in this process."""
    request = parse.command_line("export", [f"checkpoint={checkpoint}", *options], {})
    config = from_checkpoint(request, checkpoint, {}, ExportConfig)
    return list(export(config, is_data_typed=any(option.startswith("data.") for option in options)))


@pytest.fixture(scope="module")
def files(checkpoint: Path) -> Path:
    """Make one file of each format in one folder, the first by the command itself; each has a card and a program."""
    options = [f"checkpoint={checkpoint}", "license=apache-2.0"]
    folder = checkpoint.parent
    result = forked_commands.run("imagenet_ddp.export", *options, folder=folder, environment=clean_environ())
    assert result.returncode == 0, result.stdout + result.stderr
    assert "onnx and the checkpoint on 11 validation images" in result.stdout
    for kind in ("openvino", "torch_export", "safetensors"):
        run_export(checkpoint, f"format={kind}", "license=apache-2.0")
    folder = checkpoint.parent.parent / "export"
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md", "README_openvino.md", "README_safetensors.md", "README_torch_export.md",
        "classify.py", "classify_openvino.py", "classify_safetensors.py", "classify_torch_export.py",
        "model.bin", "model.onnx", "model.pt2", "model.safetensors", "model.xml",
    ]  # fmt: skip
    return folder


def test_what_stands_beside_a_file_is_replaced_by_that_file_alone(checkpoint: Path, tmp_path: Path) -> None:
    again = ("format=safetensors", "num_images=1", "overwrite=true")
    run_export(checkpoint, *again, f"out={tmp_path}/big_modelé.safetensors")
    first = {path: path.read_bytes() for path in tmp_path.iterdir()}
    run_export(checkpoint, *again, f"out={tmp_path}/big_modelé.safetensors")
    assert {*tmp_path.iterdir()} == {*first}
    run_export(checkpoint, *again, f"out={tmp_path}/modelé.safetensors")
    assert all(path.read_bytes() == content for path, content in first.items() if path.suffix != ".safetensors")


def predictor_of(checkpoint: Path) -> Predictor:
    """predict's own predictor, of the checkpoint."""
    request = parse.command_line(
        "predict", [f"checkpoint={checkpoint}", f"images={checkpoint}", "trainer.accelerator=cpu"], {}
    )
    config = from_checkpoint(request, checkpoint, {}, PredictConfig)
    trained = load(config, checkpoint)
    return make_predictor(config, trained, load_net(config, trained))


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Predictor:
    return predictor_of(checkpoint)


@pytest.fixture(scope="module")
def photos(photographs: list[Path]) -> list[torch.Tensor]:
    """Photographs of different sizes, upright ones among them."""
    found = [decode(path.read_bytes(), str(path), Reading()) for path in photographs]
    assert len({image.shape for image in found}) > 3
    return found


def expected(reference: Predictor, images: list[torch.Tensor]) -> np.ndarray:
    return reference.probabilities([reference.read.prepare(image) for image in images]).numpy()


@pytest.mark.slow
def test_files_give_the_probabilities_of_the_checkpoint(
    files: Path, reference: Predictor, photos: list[torch.Tensor], tmp_path: Path
) -> None:
    wanted = expected(reference, photos)
    assert np.ptp(wanted, axis=0).max() > 0.05, "images that look alike to the net would prove nothing"
    for name, bound in (("model.onnx", 2e-3), ("model.xml", 2e-3), ("model.pt2", 1e-5)):
        got = expected(open_exported(files / name, "auto"), photos)
        assert np.abs(got - wanted).max() < bound, name
    weights = bytearray((files / "model.bin").read_bytes())
    weights[len(weights) // 2] ^= 1
    for copy, content in (("model.xml", (files / "model.xml").read_bytes()), ("model.bin", weights)):
        (tmp_path / copy).write_bytes(content)
        with pytest.raises(ConfigError, match=r"must have model\.bin beside it|has the weights of another file"):
            open_exported(tmp_path / "model.xml", "auto")


@pytest.mark.slow
def test_every_file_has_what_its_user_needs(files: Path) -> None:
    paths = [path for path in files.glob("model.*") if path.suffix != ".bin"]  # the weights beside model.xml
    # the page of format=html is written where its runtime is installed: it is tested in a browser
    assert {path.suffix for path in paths} == {kind.suffix for kind in FORMATS.values()} - {".html"}
    for path in paths:
        kind = graph_format(path)
        opened = None if kind is None else kind.open(path)
        metadata = json.loads(opened[1] if opened is not None else safe_open(path, "pt").metadata()["imagenet_ddp"])
        assert metadata["classes"] == ["cat", "dog", "owl"] == metadata["labels"]
        seen = metadata["eval_transform"]
        assert (seen["image_size"], seen["val_resize"], seen["interpolation"]) == (32, 40, "bicubic")
        assert seen["val_mirror"] is True and len(seen["mean"]) == len(seen["std"]) == 3
        assert metadata["top1"] == pytest.approx(read(files.parent / "checkpoints/best.ckpt")[KEY]["best_score"])
        assert metadata["num_val_images"] == 11
        assert (metadata["license"], metadata["familiarity_threshold"]) == ("apache-2.0", None)
        assert metadata["preprocessing"] == (None if kind is None else "inside")
        assert metadata["comparison"]["num_images"] == 11


@pytest.mark.slow
def test_predict_takes_an_exported_file(files: Path, reference: Predictor, photographs: list[Path], run: Run) -> None:
    images = f"images={photographs[0].parent}"
    result = run("predict", f"checkpoint={files / 'model.onnx'}", images, "format=jsonl", code=0)
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    wanted = reference.predict([reference.read(row["path"]) for row in rows], 3)
    assert rows
    for row, (top, *_) in zip(rows, wanted, strict=True):
        assert [each["class"] for each in row["classes"]] == [reference.classes[index] for index, _ in top]
        assert [each["probability"] for each in row["classes"]] == pytest.approx([p for _, p in top], abs=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["safetensors", "checkpoint"])
def test_a_file_as_weights_is_used_as_its_checkpoint(
    kind: str, files: Path, checkpoint: Path, reference: Predictor, photos: list[torch.Tensor]
) -> None:
    """With the mean over both views, and photographs read as in the training."""
    file = checkpoint if kind == "checkpoint" else files / "model.safetensors"
    options = [
        "model.name=resnet18", f"model.weights={file}", f"images={file}", "trainer.accelerator=cpu",
        "trainer.precision=32-true",
    ]  # fmt: skip
    request = parse.command_line("predict", options, {})
    config = from_checkpoint(request, None, {}, PredictConfig)
    trained = load(config, None)
    predictor = make_predictor(config, trained, load_net(config, trained))
    assert predictor.read.reading == reference.read.reading
    assert np.abs(expected(predictor, photos) - expected(reference, photos)).max() < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(("preprocessing", "batch_size"), [("normalise", 3), ("outside", None)])
def test_other_inputs(
    preprocessing: str, batch_size: int | None, checkpoint: Path, reference: Predictor, photos: list[torch.Tensor],
    tmp_path: Path,
) -> None:  # fmt: skip
    path = tmp_path / 'my "model".onnx'
    more = [f"batch_size={batch_size}"] if batch_size else []
    run_export(checkpoint, quoted(f"out={path}"), f"preprocessing={preprocessing}", "num_images=3", *more)
    session = onnxruntime.InferenceSession(path)
    (image,), (output,) = session.get_inputs(), session.get_outputs()
    assert image.shape == [batch_size or "batch", 3, 32, 32]
    is_outside = preprocessing == "outside"
    assert (image.type, output.name) == (
        ("tensor(float)", "logits") if is_outside else ("tensor(uint8)", "probabilities")
    )
    predictor = open_exported(path, "auto")
    got = predictor.probabilities([predictor.read.prepare(photo) for photo in photos[:4]])  # not a multiple of three
    assert np.abs(got.numpy() - expected(reference, photos[:4])).max() < 1e-5
    run_program(path.parent, photos[0], expected(reference, photos[:1])[0])


# as on a machine without this project: importing it raises ModuleNotFoundError
WITHOUT_PROJECT = """
import runpy, sys
sys.modules["imagenet_ddp"] = None
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_program(folder: Path, photo: torch.Tensor, wanted: np.ndarray, *, turned: bool = False) -> list[str]:
    """Run classify.py, which the card shows, without this project: the classes in the order of the probabilities.
    Returns its command. turned: the camera was held upside down, and has noted it."""
    image, exif = Image.fromarray(photo.permute(1, 2, 0).numpy()), Image.Exif()
    if turned:
        image, exif[ExifTags.Base.Orientation] = image.transpose(Image.Transpose.ROTATE_180), 3
    image.save(folder / "photo.jpg", format="PNG", exif=exif)
    program = folder / "classify.py"
    assert f"```python\n{program.read_text()}```" in (folder / "README.md").read_text()
    words = [sys.executable, "-c", WITHOUT_PROJECT, str(program), str(folder / "photo.jpg")]
    result = subprocess.run(words, capture_output=True, text=True, timeout=300, env=clean_environ())
    assert result.returncode == 0, result.stderr
    got = {line.split()[1]: float(line.split()[0]) for line in result.stdout.splitlines()}
    assert got == pytest.approx(dict(zip(["cat", "dog", "owl"], wanted, strict=True)), abs=0.01)
    assert list(got.values()) == sorted(got.values(), reverse=True)
    return words


@pytest.mark.slow
def test_half_precision_is_half_the_size(
    checkpoint: Path, files: Path, tmp_path: Path, photos: list[torch.Tensor]
) -> None:
    half = tmp_path / "half.onnx"
    run_export(checkpoint, "format=onnx_fp16", f"out={half}", "card=false")
    assert half.stat().st_size == pytest.approx((files / "model.onnx").stat().st_size / 2, rel=0.02)
    found, expected = (open_exported(file, "auto").probabilities(photos[:4]) for file in (half, files / "model.onnx"))
    assert found.dtype == torch.float32 and (found - expected).abs().max() < 1e-2


@pytest.mark.slow
def test_the_model_card(files: Path, reference: Predictor, photos: list[torch.Tensor], tree: Path) -> None:
    for name, file in (("", "model.onnx"), ("_openvino", "model.xml"), ("_safetensors", "model.safetensors")):
        program = (files / f"classify{name}.py").read_text()
        text = (files / f"README{name}.md").read_text()
        assert f"with {file}: python classify{name}.py" in program and program in text and f"| File | {file} |" in text
    text = (files / "README.md").read_text()
    head = yaml.safe_load(text.split("---\n")[1])
    assert (head["library_name"], head["pipeline_tag"]) == ("onnx", "image-classification")
    assert (head["license"], head["datasets"], head["metrics"]) == ("apache-2.0", [tree.name], ["accuracy"])
    (result,) = head["model-index"][0]["results"]
    top1 = read(files.parent / "checkpoints/best.ckpt")[KEY]["best_score"]
    assert result["metrics"][0] == {"type": "accuracy", "name": "top-1", "value": round(top1, 4)}
    assert f"\n# resnet18 trained on {tree.name}\n" in text
    assert str(tree) not in text, "where the images lie is nobody's concern"
    from huggingface_hub import ModelCard

    data: Any = ModelCard(text).data
    (parsed,) = data.eval_results
    assert (parsed.metric_type, parsed.metric_value) == ("accuracy", round(top1, 4))
    words = run_program(files, photos[0], expected(reference, photos[:1])[0])
    Image.fromarray(np.full((40, 50), 40_000, np.uint16)).save(words[-1], format="PNG")
    result = subprocess.run(words, capture_output=True, text=True, timeout=300, env=clean_environ())
    assert result.returncode == 1 and "must have 8 bits per channel" in result.stderr and not result.stdout
    done = subprocess.run([sys.executable, str(files / "classify.py")], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (1, "Type the path of a picture: python classify.py photo.jpg\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "data", "preprocessing"),
    [
        ("torch_export", {"exif_orientation": True}, "short side to 40, centre crop of 32"),
        ("openvino", {"fit": "squash"}, "resized to 32 x 32"),
        ("safetensors", {"fit": "pad", "vflip": 0.5, "rot90": 1.0}, "long side to 32, padded to a square"),
    ],
)
def test_the_card_of_the_other_formats(
    kind: str, data: dict[str, Any], preprocessing: str, checkpoint: Path, photos: list[torch.Tensor], tree: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    suffix = FORMATS[kind].suffix
    (tmp_path / "other").symlink_to(tree)
    stored = torch.load(checkpoint, weights_only=True)
    stored[KEY]["config"]["data"] |= data
    stored[KEY]["config"]["model"]["weights"] = "<img src=x>|"  # the author of a checkpoint may be anybody
    stored[KEY]["eval_transform"] |= {key: value for key, value in data.items() if key != "exif_orientation"}
    torch.save(stored, tmp_path / "trained.ckpt")
    more = ["num_images=3", f"data.root={tmp_path / 'other'}"]
    run_export(tmp_path / "trained.ckpt", f"out={tmp_path / f'm{suffix}'}", f"format={kind}", *more)
    card = (tmp_path / "README.md").read_text()
    assert f"trained on {tree.name}\n" in card, "not on the images of the comparison"
    assert f"| Preprocessing | {preprocessing}" in card
    assert r"initial weights: &lt;img src=x&gt;\| |" in card
    assert "license" not in card.partition("# ")[0], "only where the user gives one"
    wanted = expected(predictor_of(tmp_path / "trained.ckpt"), photos[:1])[0]
    run_program(tmp_path, photos[0], wanted, turned=data.get("exif_orientation", False))


@pytest.mark.slow
@pytest.mark.parametrize(("fit", "rot90"), [("squash", 0.0), ("pad", 1.0)])
def test_the_graph_fits_the_image_as_validation_does(fit: str, rot90: float, photos: list[torch.Tensor]) -> None:
    torch.manual_seed(0)
    transform = EvalTransform(48, 55, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "bilinear", fit, 0, rot90, True)
    net = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(108, 4))
    program = Classifier(net, transform, "inside").export(None)
    converted = torch.onnx.export(program, dynamo=True)
    assert converted is not None
    for image in [*photos, photos[0][:, :9], photos[0][:, :, :50]]:
        pixels = normalise(transform(image)[None], transform.mean, transform.std, False)
        with torch.no_grad():
            wanted = average_views(net, pixels, transform.views).softmax(1)
        torch.testing.assert_close(program.module()(whole(image)[None]), wanted, atol=1e-5, rtol=0)
        torch.testing.assert_close(converted(whole(image)[None])[0], wanted, atol=2e-3, rtol=0)


@pytest.mark.slow(6)
def test_the_accuracy_is_given_for_the_best_weights_only(checkpoint: Path, tmp_path: Path) -> None:
    """last.ckpt may be of the same epoch, but of another step, if validation also runs within epochs."""
    stored = read(checkpoint)
    request = parse.command_line("export", [f"checkpoint={checkpoint}", "out=new.onnx"], {})
    config, contents = from_checkpoint(request, checkpoint, {}, ExportConfig), stored[KEY]

    def top1(step: int, mirror: bool = contents["eval_transform"]["val_mirror"]) -> float | None:
        torch.save({**stored, "global_step": step}, tmp_path / "x.ckpt")
        transform = EvalTransform.of_stored({**contents["eval_transform"], "val_mirror": mirror})
        return _metadata(config, load(config, tmp_path / "x.ckpt"), transform)["top1"]

    assert top1(stored["global_step"]) == contents["best_score"]
    assert top1(stored["global_step"] - 1) is None
    assert top1(stored["global_step"], not contents["eval_transform"]["val_mirror"]) is None


@pytest.mark.slow
def test_the_card_has_the_accuracy_of_an_evaluation_of_this_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint.parent, tmp_path / "r/checkpoints")
    copy, file = tmp_path / "r/checkpoints/best.ckpt", tmp_path / "r/evaluation/evaluation.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"checkpoint": str(copy), "val/top1": 0.1234, "num_val_images": 11}))
    # of the checkpoint, which a resumed run may have replaced since, and with its preprocessing
    for is_newer, *typed in ((True,), (False,), (True, "data.val_resize=36"), (True, "data.val_mirror=false")):
        os.utime(file, (0, copy.stat().st_mtime + (10 if is_newer else -10)))
        run_export(copy, "format=safetensors", "num_images=1", "overwrite=true", *typed)
        card = (tmp_path / "r/export/README.md").read_text()
        assert ("12.34 %" in card) == (is_newer and not typed)
        assert ("| Top-1 |" in card) == (not typed)


@pytest.mark.slow(1)
def test_a_readme_of_a_person_is_never_replaced(checkpoint: Path, tmp_path: Path) -> None:
    options = [f"out={tmp_path / 'm.safetensors'}", "format=safetensors", "num_images=1", "overwrite=true"]
    (tmp_path / "README.md").write_text("# My thesis\n")
    (tmp_path / "classify.py").write_text("print(1)\n")
    assert all("Hint: move it away" in line for line in run_export(checkpoint, *options)[-2:])
    assert (tmp_path / "README.md").read_text() == "# My thesis\n"
    assert (tmp_path / "classify.py").read_text() == "print(1)\n"


@pytest.mark.slow(4)
def test_a_file_that_differs_is_not_kept(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from imagenet_ddp.exported import graph

    monkeypatch.setattr(graph, "_resize_and_crop", lambda images, transform: images[:, :, :32, :32])
    with pytest.raises(RunError, match=r"must be within 0\.001 of the checkpoint's, but differ by \S+\d\. Hint:"):
        run_export(checkpoint, f"out={tmp_path / 'model.pt2'}", "format=torch_export")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("of_probability", "of_familiarity", "wrong"),
    [(0.009, 0.09, ""), (0.011, 0.0, "the probabilities of f must be within 0.01 of the checkpoint's, but differ by "
      "1.1e-02"), (0.0, 0.11, "the familiarities of f must be within 0.1 of the checkpoint's, but differ by 1.1e-01"),
     (0.0, None, "")],
)  # fmt: skip
def test_what_may_differ(of_probability: float, of_familiarity: float | None, wrong: str) -> None:
    """A resize that rounds otherwise changes the familiarity, which is no probability, by more than those."""
    assert Comparison("images", 4, of_probability, 4, None, of_familiarity).excess("f", 0.01) == wrong


@pytest.mark.slow(2)
def test_without_its_images_it_is_compared_on_random_ones(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = torch.load(checkpoint, weights_only=True)
    stored[KEY]["config"]["data"]["root"] = str(tmp_path / "gone")
    moved = tmp_path / "moved.ckpt"
    torch.save(stored, moved)
    said = run_export(moved, "format=safetensors")
    assert "random images" in said[0] and "gone" in said[0]
    assert (tmp_path / "export/model.safetensors").is_file()
    with pytest.raises(ConfigError, match=r"data\.root must be a folder"):
        run_export(moved, f"data.root={tmp_path / 'nowhere'}", f"out={tmp_path / 'x.onnx'}", "card=false")


@pytest.mark.slow
def test_a_model_of_timm(tree: Path, tmp_path: Path, run: Run) -> None:
    net = ("model=timm", "model.name=vit_tiny_patch16_224", "+model.args.depth=2")
    options = [*small_run(*net), "trainer.max_epochs=1", f"data.root={tree}"]
    run("train", *options, "hydra.run.dir=r", "averaging=ema", "optim=lamb", "loss.name=bce", code=0)
    stored = torch.load(tmp_path / "r/checkpoints/last.ckpt", weights_only=True)[KEY]
    assert stored["eval_transform"]["mean"] == [0.5, 0.5, 0.5], "timm's own"
    said = run_export(tmp_path / "r/checkpoints/last.ckpt", f"out={tmp_path / 'vit.onnx'}", "num_images=4")
    assert "same top-1 class for 4" in "\n".join(said)


def runtime_folder() -> Path | None:
    """Return a folder whose node_modules has the runtime of format=html: .ci/run installs it into build/ci."""
    found = (folder for folder in (ROOT / "build/ci", ROOT) if (folder / "node_modules/onnxruntime-web").is_dir())
    return next(found, None)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
@pytest.mark.skipif(runtime_folder() is None, reason="no onnxruntime-web in build/ci: npm install")
def test_the_page_classifies_in_a_browser(
    checkpoint: Path, reference: Predictor, photographs: list[Path], photos: list[torch.Tensor], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """From a file, with files dropped on it, without a network, on a phone, and by its program."""
    stored = torch.load(checkpoint, weights_only=True)
    stored[KEY]["config"]["data"]["exif_orientation"] = True
    torch.save(stored, tmp_path / "trained.ckpt")
    monkeypatch.chdir(str(runtime_folder()))
    run_export(tmp_path / "trained.ckpt", "format=html", f"out={tmp_path / 'model.html'}", "license=apache-2.0")
    run_program(tmp_path, photos[0], expected(reference, photos[:1])[0], turned=True)
    turned, exif = tmp_path / "turned.jpg", Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    with Image.open(photographs[0]) as image:
        image.save(turned, exif=exif)
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    paths = [*photographs[:4], turned]
    predictor = predictor_of(tmp_path / "trained.ckpt")
    wanted = predictor.probabilities([predictor.read(str(path)) for path in paths])  # type: ignore[arg-type]
    with Browser(tmp_path / "profile") as browser:
        browser.resize(390, scheme="dark")
        browser.open((tmp_path / "model.html").as_uri())
        browser.drop(*paths, tmp_path / "broken.jpg")
        browser.evaluate("queue.then(() => true)")
        read = "(meter) => [meter.title, meter.value]"
        items = browser.evaluate(
            "Array.from(document.querySelectorAll('#results > li'), (item) => [item.textContent, "
            f"Object.fromEntries(Array.from(item.querySelectorAll('meter'), {read}))])"
        )
        root = "document.documentElement"
        assert browser.evaluate(f"{root}.scrollWidth - {root}.clientWidth") == 0
        footer = browser.evaluate("document.querySelector('footer').textContent")
        assert "apache-2.0" in footer and re.search(r"right for [\d.]+ % of 11 .*: of new ones .*, expect \d", footer)
        height = browser.evaluate(
            "(() => { facts.labels[0] = 'balle de golf'; const item = element('li'), text = element('div'); "
            "item.append(element('div'), text); document.getElementById('results').append(item); "
            "answer(text, '', { probabilities: facts.labels.map((_, number) => number ? 0 : 0.5) }); "
            "const { offsetHeight } = text.querySelector('ol span'); item.remove(); return offsetHeight; })()"
        )
        browser.drop(*paths)
        assert browser.evaluate("queue.then(() => [rows.size, state.textContent])") == [
            len(items), f"{turned.name} has its answer below."], "a picture has one row"  # fmt: skip
        saved = list(csv.reader(browser.evaluate("table()").splitlines()))
        words = """([share, familiarity]) => {
            const probabilities = facts.labels.map((_, number) => [share, 0.3][number] ?? 0);
            rows.set(item, answer(item, "=1", { probabilities, familiarity }));
            return item.querySelector("h2:last-of-type").textContent;
        }"""
        browser.evaluate("facts.familiarity_threshold = 0.1; var item = results.appendChild(element('li'))")
        unsure = browser.evaluate(f"[[0.6, 0], [0.4, 1], [0.9, 0]].map({words})")
        unsure += browser.evaluate("[table().includes(`\"'=1\"`), item.querySelector('ol').childElementCount]")
        left = "[results.childElementCount, rows.size, more.hidden]"
        cleared = browser.evaluate(f"document.getElementById('clear').click(), {left}")
        assert cleared == [0, 0, True]
        browser.drop(turned)
        assert browser.evaluate("queue.then(() => [rows.size, more.hidden])") == [1, False], "it starts anew"
        assert 0 < height < 30, "on a phone, a name is on one line beside the longest words"
        assert {address.partition(":")[0] for address in browser.addresses} <= {"file", "blob", "data"}
    *found, (broken, nothing) = items
    assert "cannot read" in broken and nothing == {}
    for (text, shares), row, path in zip(found, wanted.tolist(), paths, strict=True):
        assert path.name in text
        all_shares = dict(zip(predictor.labels, row, strict=True))
        assert shares == pytest.approx({label: all_shares[label] for label in shares}, abs=1e-2)
        assert shares and sum(all_shares.values()) - sum(shares.values()) < 1e-2, "only what would be 0.0 % is left out"
    assert saved[0] == ["path", "class_1", "probability_1", "known", "error"]
    assert [line[0] for line in saved[1:]] == [*(path.name for path in paths), "broken.jpg"]
    for line, row in zip(saved[1:], wanted.tolist(), strict=False):
        assert line[1] == predictor.labels[row.index(max(row))] and float(line[2]) == pytest.approx(max(row), abs=1e-2)
    assert saved[-1][1] == "" and "cannot read" in saved[-1][4]
    unlike = "Unlike the training images"
    assert unsure == [unlike, f"Not sure: balle de golf 40 % or {predictor.labels[1]} 30 %", unlike, True, 2]
