"""export push=hf://OWNER/NAME: the real client, against a server of the hub's protocol; timm reads what is pushed."""

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from conftest import Run, clean_environ, small_run
from helpers import forked_commands, hub_server
from helpers.hints import hint_of
from huggingface_hub import ModelCard
from PIL import Image
from timm.data.config import resolve_data_config
from timm.data.transforms_factory import create_transform

from imagenet_ddp.data.decoding.decode import Pixels
from imagenet_ddp.data.transforms import EvalTransform, empty, normalise
from imagenet_ddp.export import timm_config
from imagenet_ddp.models.check_nets import CLASSIFIERS
from imagenet_ddp.models.weights.pretrained import find_weights
from imagenet_ddp.runs.checkpoint_file import KEY, read

DEAD = "http://127.0.0.1:9"


@pytest.mark.slow
def test_timm_and_this_project_read_what_was_pushed(
    tree: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
):
    options = [*small_run("model.name=resnet18"), f"data.root={tree}", "trainer.max_epochs=1", "hydra.run.dir=r"]
    done = forked_commands.run("imagenet_ddp.train", *options, folder=tmp_path, environment=clean_environ())
    assert done.returncode == 0, done.stdout + done.stderr
    with hub_server.serving() as hub:
        environ = {"HF_TOKEN": hub_server.TOKEN, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
        offline = run("export", "checkpoint=r", "push=hf://me/net", code=1, **environ, HF_ENDPOINT=DEAD)
        assert "model.safetensors, config.json, README.md, classify.py are in r/export/hub." in offline.stderr
        folder, line = tmp_path / "r/export/hub", re.match(r"run `.* -m imagenet_ddp\.(.*)`", hint_of(offline.stderr))
        assert line is not None and hub.requests == []
        written = {path.name: path.read_bytes() for path in folder.iterdir()}
        pushed = run(*shlex.split(line[1]), code=0, **environ, HF_ENDPOINT=hub.address)
        names = "model.safetensors, config.json, README.md, classify.py"
        assert f"Pushed to {hub.address}/me/net: {names}." in pushed.stdout
        found = dict(hub.repositories["me/net"])
        assert found == {path.name: path.read_bytes() for path in folder.iterdir()} and found.keys() == written.keys()
        assert hub.commits == {"me/net": 1} and hub.private == {"me/net"}
        everything = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        everything += [each.encode() for each in (offline.stdout, offline.stderr, pushed.stdout, pushed.stderr)]
        assert not any(hub_server.TOKEN.encode() in each for each in everything)

        hub_server.use(hub.address, tmp_path / "cache", monkeypatch)
        net: Any = timm.create_model("hf_hub:me/net", pretrained=True).eval()
        stored = read(tmp_path / "r/checkpoints/best.ckpt")
        own = torchvision.models.resnet18(num_classes=3).eval()
        own.load_state_dict({key[4:]: each for key, each in stored["state_dict"].items() if key.startswith("net.")})
        images = torch.randn(2, 3, 64, 64)
        with torch.no_grad():
            assert torch.equal(net(images), own(images))
        assert net.pretrained_cfg["label_names"] == ["cat", "dog", "owl"] == stored[KEY]["classes"]
        weights = find_weights("model.weights", "hf://me/net", "torchvision", "resnet18")
        assert weights.facts.classes == ["cat", "dog", "owl"]
        seen = stored[KEY]["eval_transform"]
        assert weights.facts.data == {key: seen[key] for key in weights.facts.data}
    data: Any = ModelCard(found["README.md"].decode()).data
    assert data.library_name == "timm" and data.eval_results[0].metric_value == round(stored[KEY]["best_score"], 4)
    assert 'timm.create_model("hf_hub:me/net", pretrained=True)' in found["README.md"].decode()


SAME = [name for name in CLASSIFIERS if timm_config.architecture({**dict.fromkeys(("_target_", "args")),
        "name": name, "library": "torchvision", "blur_pool": False})]  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_timm_has_the_same_net(name: str):
    with torch.device("meta"):
        theirs, ours = timm.create_model(name, num_classes=3), torchvision.models.get_model(name, num_classes=3)
    shapes = [{key: each.shape for key, each in net.state_dict().items()} for net in (theirs, ours)]
    assert shapes[0] == shapes[1]
    config = metadata(name)["pretrained_cfg"]
    assert {"weight", "bias"} >= {key for key, _ in ours.get_submodule(config["classifier"]).named_parameters()}
    assert shapes[1][f"{config['first_conv']}.weight"][1] == 3


@pytest.mark.parametrize("name", ["resnet18", "resnext50_32x4d", "densenet121"])
def test_it_computes_the_same(name: str):
    torch.manual_seed(0)
    ours, theirs = torchvision.models.get_model(name, num_classes=3).eval(), timm.create_model(name, num_classes=3)
    theirs.load_state_dict(ours.state_dict())
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(theirs.eval()(images), ours(images), atol=1e-6, rtol=0)


TRANSFORM: dict[str, Any] = {
    "image_size": 64, "val_resize": 73, "interpolation": "bicubic", "fit": "crop", "mean": [0.4, 0.5, 0.6],
    "std": [0.2, 0.3, 0.4], "vflip": 0.0, "rot90": 0.0, "val_mirror": False,
}  # fmt: skip


def metadata(name: str = "resnet18", **seen: Any) -> dict[str, Any]:
    model = {"name": name, "library": "torchvision", "_target_": None, "args": {}, "blur_pool": False}
    return timm_config.content(
        {"model": model, "classes": ["n1", "n2"], "labels": ["a cat", "n2"], "eval_transform": TRANSFORM | seen}
    )


@pytest.mark.parametrize("seen", [
    {}, {"val_resize": 100}, {"val_resize": 64, "interpolation": "bilinear"}, {"fit": "pad"}, {"fit": "squash"},
    *({"image_size": 224, "val_resize": side} for side in (232, 236, 249, 256, 300)),
])  # fmt: skip
def test_timm_prepares_an_image_in_the_same_way(seen: dict[str, Any], photographs: list[Path]):
    """Pillow, which timm uses, rounds some pixel values otherwise."""
    config = metadata(**seen)["pretrained_cfg"]
    theirs: Any = create_transform(**resolve_data_config(pretrained_cfg=config))
    transform = EvalTransform.of_stored(TRANSFORM | seen)
    for path in photographs:
        image = Image.open(path).convert("RGB")
        if seen == {"fit": "pad"} and 64 * min(image.size) / max(image.size) % 1 >= 0.5:
            continue  # a short side that timm rounds up
        out = empty(transform.image_size, transform.image_size, 3)
        transform.into(out, Pixels(np.array(image)))
        ours = normalise(out[None], transform.mean, transform.std, False)[0]
        levels = (theirs(image) - ours).abs() * 255 * torch.tensor(transform.std).view(3, 1, 1)
        assert levels.max() <= 2.01 and levels.mean() < 0.05, (levels.max(), levels.mean())


def test_what_timm_cannot_express_is_said():
    assert metadata()["label_descriptions"] == {"n1": "a cat", "n2": "n2"}
    assert metadata("vgg16")["architecture"] == "torchvision.models.vgg16"
    facts = {"eval_transform": TRANSFORM | {"val_mirror": True}, "exif_orientation": True, "white_level": 4095}
    assert re.search(r"over its 2 orientations.*exif_transpose.*4095", "; ".join(timm_config.not_in_timm(facts)))
    plain = {"eval_transform": TRANSFORM, "exif_orientation": False, "white_level": None}
    assert timm_config.not_in_timm(plain) == []
