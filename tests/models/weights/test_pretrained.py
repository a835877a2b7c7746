"""Weights from every place people have them."""

import argparse
import errno
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from conftest import ROOT, Run
from huggingface_hub import constants
from safetensors.torch import save_file
from torch.optim.swa_utils import AveragedModel
from torchvision.models import DenseNet, VisionTransformer

from imagenet_ddp.config.schema.learning import ModelConfig
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.factory import create_model
from imagenet_ddp.models.head import head_names
from imagenet_ddp.models.weights.facts import KEY
from imagenet_ddp.models.weights.load import load_weights_into, num_outputs
from imagenet_ddp.models.weights.pretrained import Weights, find_weights
from imagenet_ddp.runs.checkpoint_file import read

NAME = "shufflenet_v2_x0_5"


def found(path: Path, library: str = "torchvision", name: str = NAME) -> Weights:
    return find_weights("model.weights", str(path), library, name)


@pytest.fixture(scope="module")
def net() -> torch.nn.Module:
    return create_model(NAME, 6, 1, 32)


PREFIXES = ("backbone.", "model._orig_mod.", "module.backbone.body.")


def _beside_backbone(name: str) -> str:
    return f"head.{name}" if name.startswith("fc.") else f"backbone.{name}"


def forms(net: torch.nn.Module) -> dict[str, Any]:
    """As each program stores the same weights."""
    state = net.state_dict()
    prefixed = {f"module.{name}": value for name, value in state.items()}
    average = AveragedModel(net).state_dict()
    return {
        "checkpoint.pth.tar": {"epoch": 3, "arch": NAME, "state_dict": prefixed, "best_acc1": torch.tensor(1.0)},
        "model_3.pth": {"model": state, "args": argparse.Namespace(lr=0.1), "epoch": 3},
        "ema.pth": {"model": {n: v + 1 for n, v in state.items()}, "model_ema": average, "epoch": 3},
        "compiled.pt": {f"_orig_mod.{name}": value for name, value in state.items()},
        "lightning.ckpt": {"state_dict": {f"net.{name}": value for name, value in state.items()}},
        "dino.pth": {"student": {n: v + 1 for n, v in prefixed.items()}, "teacher": prefixed, "epoch": 3},
        "distilled.pth": {"model": prefixed, "teacher": {n: v + 1 for n, v in prefixed.items()}, "epoch": 3},
        "timm_ema.pth.tar": {"state_dict": {n: v + 1 for n, v in state.items()}, "state_dict_ema": prefixed},
        "other_key.pt": {"network": state, "optimizer": {"state": {0: {"exp_avg": torch.ones(1)}}}},
        "options_beside.pt": {"model": {"name": NAME}, "state_dict": state},
        **{f"{prefix}pt": {f"{prefix}{name}": value for name, value in state.items()} for prefix in PREFIXES},
        "mmpretrain.pth": {"state_dict": {_beside_backbone(name): value for name, value in state.items()}},
        "encoder.pth": {
            f"classifier.{name[3:]}" if name.startswith("fc.") else f"student.encoder.{name}": value
            for name, value in state.items()
        },
        "other_head.pth": {name.replace("fc.", "classifier.1."): value for name, value in state.items()},
        "model.safetensors": {name: value.contiguous() for name, value in state.items()},
    }


@pytest.mark.parametrize("name", [*forms(torch.nn.Linear(1, 1))])
def test_every_form_of_file(net: torch.nn.Module, tmp_path: Path, name: str):
    stored = forms(net)[name]
    if name.endswith(".safetensors"):
        save_file(stored, tmp_path / name)
    else:
        torch.save(stored, tmp_path / name)
    other = create_model(NAME, 6, 2, 32)
    sentence, head_fits = load_weights_into(other, found(tmp_path / name), ("fc",), list("abcdef"))
    assert all(torch.equal(a, b) for a, b in zip(other.state_dict().values(), net.state_dict().values(), strict=True))
    assert head_fits and "is new" not in sentence and "not used" not in sentence


@pytest.mark.parametrize(("prefix", "other"), [
    ("module.encoder_q.", "module.encoder_k."), ("teacher.backbone.", "student.backbone."), ("model.", "criterion."),
    ("model.", "teacher."), ("net.", "teacher_model."), ("net_ema.", "net."),
])  # fmt: skip
def test_of_two_nets_in_a_file_one_is_loaded_and_the_other_named(
    net: torch.nn.Module, tmp_path: Path, prefix: str, other: str
):
    """Also if the other one comes first, as averages and teachers may."""
    state = net.state_dict()
    stored = {f"{prefix}{name}": value for name, value in state.items()}
    stored = {f"{other}{name}": value + 1 for name, value in state.items() if other != "criterion."} | stored
    if other == "module.encoder_k.":  # equals: the first of them counts
        stored = dict(reversed(stored.items()))
    torch.save({"state_dict": stored | {f"{other}queue": torch.ones(2)}}, tmp_path / "x.pt")
    fresh = create_model(NAME, 6, 2, 32)
    sentence, head_fits = load_weights_into(fresh, found(tmp_path / "x.pt"), ("fc",), list("abcdef"))
    assert all(torch.equal(a, b) for a, b in zip(fresh.state_dict().values(), state.values(), strict=True))
    assert head_fits and re.search(rf"tensors? not used \({re.escape(other)}", sentence)


def test_the_body_of_a_fastai_net_is_loaded_beside_a_new_head(tmp_path: Path):
    """fastai numbers the parts of a net of torchvision, with one head for all nets."""
    source, net = (torchvision.models.resnet18(num_classes=4) for _ in "ab")
    body = torch.nn.Sequential(*[*source.children()][:-2])
    head = {"1.2.weight": torch.ones(1024), "1.4.weight": torch.ones(512, 1024), "1.8.weight": torch.ones(4, 512)}
    stored = {f"0.{name}": value for name, value in body.state_dict().items()} | head
    torch.save({"model": stored, "opt": None}, tmp_path / "model.pth")
    sentence, head_fits = load_weights_into(
        net, found(tmp_path / "model.pth", "torchvision", "resnet18"), ("fc",), list("abcd")
    )
    assert "120 tensors loaded; fc is new (not in the file); 3 tensors not used (1.2.weight, " in sentence
    loaded, expected = net.state_dict(), source.state_dict()
    assert not head_fits and all(torch.equal(loaded[name], expected[name]) for name in expected if "fc." not in name)


OF_MLP = {"0": "linear_1", "3": "linear_2"}


@pytest.mark.parametrize(
    ("create", "name"),
    [
        (lambda: DenseNet(4, (2, 2, 1, 1), 8, num_classes=3), "features.denseblock1.denselayer1.norm.1.weight"),
        (
            lambda: VisionTransformer(32, 16, 2, 2, 8, 16, num_classes=3),
            "encoder.layers.encoder_layer_1.mlp.linear_2.bias",
        ),
    ],
    ids=["densenet", "vit"],
)
def test_the_names_in_older_files_of_torchvision_are_known(
    create: Callable[[], torch.nn.Module], name: str, tmp_path: Path
):
    source, net = create(), create()
    for tensor in net.parameters():
        torch.nn.init.normal_(tensor)
    stored = source.state_dict()
    for new in list(stored):
        old = re.sub(r"(layer\d+\.(?:norm|conv))([12])", r"\1.\2", new)
        old = re.sub(r"(?<=mlp\.)[03]", lambda found: OF_MLP[found[0]], old)
        stored[old] = stored.pop(new)
    assert name in stored
    torch.save(stored, tmp_path / "x.pt")
    assert load_weights_into(net, found(tmp_path / "x.pt", "", ""), head_names(net, 3), list("abc"))[1]
    assert all(torch.equal(net.state_dict()[name], tensor) for name, tensor in source.state_dict().items())


def test_a_layer_that_another_one_follows_is_no_head(net: torch.nn.Module, tmp_path: Path):
    stored = {name: value for name, value in net.state_dict().items() if not name.startswith("fc.")}
    for number, (outputs, inputs) in enumerate(((50, 1024), (6, 50))):
        stored |= {f"h.{number}.weight": torch.ones(outputs, inputs), f"h.{number}.bias": torch.ones(outputs)}
    torch.save(stored, tmp_path / "x.pt")
    weights = found(tmp_path / "x.pt")
    assert num_outputs(net, weights, ("fc",)) is None


def test_if_nothing_fits_the_message_has_names_of_both_sides(net: torch.nn.Module, tmp_path: Path):
    torch.save({f"blocks.{n}.w": torch.ones(2) for n in range(9)}, tmp_path / "x.pt")
    weights, before = found(tmp_path / "x.pt"), net.state_dict()
    with pytest.raises(
        ConfigError, match=r"x\.pt must hold .*: conv1\.0\.weight, .*; it has blocks\.0\.w, blocks\.1\.w"
    ):
        load_weights_into(net, weights, ("fc",), list("abcdef"))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize(("classes", "stored_classes", "is_new"), [
    (list("abcdefgh"), None, True), (list("abcdef"), None, False),
    (list("abcdef"), list("abcdef"), False), (list("ghijkl"), list("abcdef"), True),
])  # fmt: skip
def test_the_head_is_replaced_where_the_classes_differ(
    net: torch.nn.Module, tmp_path: Path, classes: list[str], stored_classes: list[str] | None, is_new: bool
):
    stored = {"state_dict": {f"net.{name}": value for name, value in net.state_dict().items()}}
    if stored_classes:
        stored["imagenet_ddp"] = {"classes": stored_classes}
    torch.save(stored, tmp_path / "best.ckpt")
    other = create_model(NAME, len(classes), 2, 32)
    sentence, head_fits = load_weights_into(other, found(tmp_path / "best.ckpt"), ("fc",), classes)
    assert (other.get_parameter("fc.weight").abs().max() < 1e-3) == is_new
    assert torch.equal(other.get_parameter("conv1.0.weight"), net.get_parameter("conv1.0.weight"))
    assert ("fc is new" in sentence) == is_new != head_fits


def test_weights_that_are_not_finite_are_refused(net: torch.nn.Module, tmp_path: Path):
    """Also those of the head, where the classes are the same."""
    tensors = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    head = [name for name in tensors if name.endswith("bias")][-1]
    tensors[head][0] = torch.nan
    torch.save(tensors, tmp_path / "diverged.pt")
    with pytest.raises(ConfigError, match=rf"diverged\.pt must hold finite weights, but 1 .*\({head}\)"):
        load_weights_into(net, found(tmp_path / "diverged.pt"), (head.rpartition(".")[0],), list("abcdef"))


def test_a_mistyped_file_is_taken_for_one_with_a_similar_name(net: torch.nn.Module, tmp_path: Path):
    (tmp_path / "lite0.txt").touch()  # no weights
    torch.save(net.state_dict(), tmp_path / "lite0.pth")
    for typed, fix in (("lit0.pth", str(tmp_path / "lite0.pth")), ("lite1.pth", "DEFAULT")):
        with pytest.raises(ConfigError) as caught:
            found(tmp_path / typed)
        [mistake] = caught.value.mistakes
        assert [each.options for each in mistake.fixes] == [(f"model.weights={fix}",)]


def test_a_damaged_file_and_a_pipe_are_refused(net: torch.nn.Module, tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.pt")
    with pytest.raises(ConfigError, match=r"pipe\.pt cannot be read \(it is not a regular file\)"):
        found(tmp_path / "pipe.pt")
    path = tmp_path / "x.pt"
    torch.save(net.state_dict(), path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1  # which torch.load does not notice
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"x\.pt cannot be read \(its part .* has another checksum\)"):
        found(path).tensors  # noqa: B018
    torch.save({"conv1.weight": torch.zeros(1).expand(10**13)}, path)
    with pytest.raises(
        ConfigError, match=r"x\.pt cannot be read \(the numbers of conv1\.weight are not stored in it\)"
    ):
        found(path)


def small_vit(image_size: int) -> VisionTransformer:
    return VisionTransformer(image_size, 32, num_layers=1, num_heads=2, hidden_dim=64, mlp_dim=64, num_classes=5)


def endless(make: Callable[[Any], Any]) -> Any:
    content = make(1)
    for _ in range(45):
        content = make(content)
    return content


SEEN = {"image_size": 32, "val_resize": 36, "interpolation": "bilinear", "mean": [0.5] * 3, "std": [0.5] * 3}
STATED = {"eval_transform": SEEN, "classes": ["a"], "labels": ["A"]}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "content",
    [
        {"x": endless(lambda inner: {"a": inner, "b": inner})}, {"classes": endless(lambda inner: [inner, inner])},
        {KEY: {"format": endless(lambda inner: [inner, inner])}}, {KEY: {**STATED, "labels": ["a", "b"]}},
        {KEY: {**STATED, "classes": 3}}, {KEY: {**STATED, "eval_transform": 3}}, {KEY: {"eval_transform": SEEN}},
        *({KEY: {**STATED, "eval_transform": {**SEEN, name: value}}}
          for name, value in {"image_size": 10**9, "val_resize": None, "mean": "x", "interpolation": [1]}.items()),
        {KEY: {**STATED, "config": {"data": 3}}}, {KEY: {**STATED, "white_level": "x"}},
    ],
)  # fmt: skip
def test_what_a_file_states_about_itself_is_checked(content: Any, net: torch.nn.Module, tmp_path: Path):
    torch.save({"state_dict": net.state_dict(), KEY: STATED}, tmp_path / "x.pt")
    assert found(tmp_path / "x.pt").facts.labels == ["A"]
    torch.save({"state_dict": net.state_dict(), **content}, tmp_path / "x.pt")
    with pytest.raises(ConfigError, match=r"x\.pt cannot be read \(it"):
        found(tmp_path / "x.pt")
    with pytest.raises(ConfigError, match=r"x\.pt must"):
        read(tmp_path / "x.pt")


@pytest.mark.parametrize("classes", [{"a": 0, "b": "x"}, {"a": [1]}, {1: 0}])
def test_classes_without_an_order_are_no_names(classes: Any, net: torch.nn.Module, tmp_path: Path):
    torch.save({"state_dict": net.state_dict(), "class_to_idx": classes}, tmp_path / "x.pt")
    assert found(tmp_path / "x.pt").facts.classes == []


@pytest.mark.parametrize(("library", "name"), [("torchvision", "vit_b_32"), ("timm", "vit_tiny_patch16_224")])
def test_a_vision_transformer_takes_weights_of_another_image_size(tmp_path: Path, library: str, name: str):
    keys = ModelConfig(name=name, library=library)
    nets = (small_vit(each) if library == "torchvision" else create_model(keys, 5, each, each) for each in (64, 96))
    small, large = nets
    torch.save(small.state_dict(), tmp_path / "small.pt")
    load_weights_into(large, found(tmp_path / "small.pt", library, name), head_names(large, 5), list("abcde"))
    key = next(key for key in large.state_dict() if "pos_embed" in key)
    before, after = small.state_dict()[key], large.state_dict()[key]
    assert after.shape[1] > before.shape[1]
    torch.testing.assert_close(after[:, 0], before[:, 0])  # the class token
    torch.testing.assert_close(after[:, 1:].mean(), before[:, 1:].mean(), atol=2e-3, rtol=0)


@pytest.mark.parametrize("library", ["torchvision", "timm"])
@pytest.mark.parametrize("error", [socket.gaierror(-2, "Name or service not known"), OSError(errno.ENETUNREACH, "no")])
def test_without_internet_the_message_says_so_and_what_to_type(
    library: str, error: OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "_hub_dir", None)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    name = {"torchvision": "resnet18", "timm": "mobilenetv3_small_050"}[library]

    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(ConfigError) as caught:
        find_weights("model.weights", "DEFAULT", library, name)
    [sentence] = map(str, caught.value.mistakes)
    url = torchvision.models.get_model_weights("resnet18")["DEFAULT"].url if library == "torchvision" else "https://"
    assert f"could not be downloaded from {url}" in sentence and "(no internet: this machine cannot reach " in sentence
    assert "Hint: set model.weights=FILE to read weights that this machine has, such as " in sentence
    assert not re.search(r"\bErrno\b|urlopen|checkpoints/", sentence)


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_a_damaged_file_in_a_librarys_cache_is_named(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "_hub_dir", None)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    if library == "timm":
        repository, commit = tmp_path / "models--timm--mobilenetv3_small_050.lamb_in1k", "0" * 40
        path = repository / "snapshots" / commit / "model.safetensors"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text(commit)
    else:
        path = tmp_path / "hub/checkpoints" / torchvision.models.ResNet18_Weights.DEFAULT.url.rpartition("/")[2]
    path.parent.mkdir(parents=True)
    path.write_bytes(b"<html>")
    name = {"timm": "mobilenetv3_small_050", "torchvision": "resnet18"}[library]
    with pytest.raises(ConfigError, match=f"{re.escape(str(path))} cannot be read .* delete it and download"):
        find_weights("model.weights", "DEFAULT", library, name).tensors  # noqa: B018


def test_a_part_of_the_net_that_is_named_as_a_prefix_stays(tmp_path: Path):
    net, other = (torch.nn.ModuleDict({"backbone": torch.nn.Linear(3, 9), "head": torch.nn.Linear(9, 2)}) for _ in "ab")
    torch.save({"state_dict": {f"net.{name}": value for name, value in net.state_dict().items()}}, tmp_path / "x.pt")
    assert load_weights_into(other, found(tmp_path / "x.pt"), ("head",), ["a", "b"])[1]
    assert torch.equal(other.state_dict()["backbone.weight"], net.state_dict()["backbone.weight"])


@pytest.mark.parametrize(
    ("more", "net"),
    [
        ({"arch": "resnet18", "best_acc1": torch.tensor(3.0)}, ["model.name=resnet18"]),  # of pytorch/examples
        (
            {"arch": "tf_efficientnet_lite0", "args": argparse.Namespace(lr=0.1)},  # of timm
            ["model.name=tf_efficientnet_lite0", "model.library=timm"],
        ),
        ({"args": argparse.Namespace(lr=0.1)}, ["model.name=NAME"]),  # of torchvision's reference scripts
    ],
)
def test_a_training_of_another_program_is_continued_from_its_weights_alone(
    run: Run, tmp_path: Path, more: dict[str, Any], net: list[str]
):
    path = tmp_path / "last.pth.tar"
    torch.save({"epoch": 3, "state_dict": torch.nn.Linear(2, 2).state_dict(), "optimizer": {}, **more}, path)
    said = " ".join(run("train", f"resume={path}", code=2).stderr.split())
    assert f"Hint: set model.weights={path} {' '.join(net)} and leave resume out to begin with its weights; its" in said
    assert ("Corrected command" in said) == ("NAME" not in net[0])
    said = " ".join(run("predict", f"checkpoint={path}", f"images={ROOT}", code=2).stderr.split())
    assert f"got weights of another program. Hint: set {' '.join(net)}" in said
