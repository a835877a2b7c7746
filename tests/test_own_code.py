"""Code of the user's own, as docs/configuration.md shows it: net, data, callback and logger; and what is said if it is
wrong."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import ROOT, Run

from imagenet_ddp.config.section import make
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models import ImageClassifier

SHORT = (
    "data.image_size=32", "data.batch_size=8", "data.num_workers=0", "trainer.max_epochs=1", "trainer.accelerator=cpu",
    "callbacks.batch_sheet=null", "callbacks.history.curves=false", "cluster.num_threads=1",
)  # fmt: skip
WRONG = """
from mypkg import Pairs, Small
import lightning.pytorch as L
import torch


class Shape(Small):
    def forward(self, images):
        return images.mean((2, 3))[:, :1]


class Many(Small):
    def forward(self, images):
        return (super().forward(images), images)


class Fails(Small):
    def forward(self, images):
        return self.layers[-1](images)  # not a row of features


class Module(L.LightningModule):
    def __init__(self, num_classes):
        super().__init__()
        self.net = Small(num_classes)

    def forward(self, images):
        return self.net(images)


class Floats(Pairs):
    def __getitem__(self, number):
        return torch.zeros(3, 40, 40), 0


def floats():
    return Floats(4), Floats(4)


def one():
    return Pairs(4)
"""


@pytest.fixture
def mypkg(tmp_path: Path) -> str:
    """Write the module of the documentation. Return its section."""
    text = (ROOT / "docs/configuration.md").read_text().partition("## Your own code")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "mypkg.py").write_text(code)
    (tmp_path / "wrong.py").write_text(WRONG)
    return text


def test_the_code_of_the_documentation_trains(mypkg: str, tmp_path: Path, run: Run):
    lines = re.findall(r"^    python -m imagenet_ddp.train (.*mypkg.*)$", mypkg, re.MULTILINE)
    words = [word for line in lines[:5] for word in line.split()]
    done = run("train", *SHORT, *words, code=0)
    (folder,) = (tmp_path / "runs/pairs_Small").iterdir()
    assert "done after step 5" in done.stdout and "Data: mypkg.pairs, 40 training and 10 validation" in done.stdout
    assert "optimizer sgd" in done.stdout, "the recipe of the generated images is not that of other data"
    assert (
        "of 2 classes.\n" in done.stdout
        and ", transform mypkg.Invert." in done.stdout
        and list(folder.rglob("hparams.yaml"))
    )

    file = folder / "checkpoints/best.ckpt"
    with pytest.raises(ConfigError, match=r"must get net=.* mypkg\.Small\. Hint: pass net=Small\(2\)"):
        ImageClassifier.load_from_checkpoint(file)


def test_a_checkpoint_is_a_lightning_module(trained: Path):
    module = ImageClassifier.load_from_checkpoint(trained)
    stored = torch.load(trained, weights_only=True)["state_dict"]
    assert module.classes == ["cat", "dog", "owl"]
    assert all(torch.equal(value, stored[name]) for name, value in module.state_dict().items())
    assert module.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 3)
    with pytest.raises(ConfigError, match="make_optimizer must be a function"):
        module.configure_optimizers()


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("model._target_=wrong.Shape", "must return logits (B, 3) for images (B, 3, 32, 32), got (2, 1) for 2 images"),
        ("model._target_=wrong.Many", "got tuple for 2 images in training."),
        ("model._target_=wrong.Fails", "wrong.py, line 19, in forward). Hint: correct the net there."),
        ("data._target_=wrong.floats", "image 0 must be a PIL image or uint8 (3, H, W), got torch.float32 (3, 40, 40)"),
        ("data._target_=wrong.one", "must return a Source, or a pair of torch Datasets, got Pairs."),
    ],
)
def test_wrong_code_is_refused_in_a_sentence(mypkg: str, tree: Path, option: str, said: str, run: Run):
    data = () if option.startswith("data.") else ("data=imagefolder", f"data.root={tree}")
    done = run("train", *SHORT, *data, option, code=2)
    assert said in " ".join(done.stderr.split()) and "Traceback" not in done.stderr
    assert done.stderr.count(" 1. ") == 1 and "nothing was started" in done.stderr


def test_misspelt_code_is_in_the_list_of_all_mistakes(mypkg: str, refused: Callable[..., str]):
    """Also what only an import or a call can find is said in our own words."""
    wrong = {"data": "mypk.pairs", "loss": "mypkg.Los", "module": "mypkg.Smal", "optim": "torch.optim.Adamm"}
    said = refused("train", "optim.lr=-1", *(f"{group}._target_={target}" for group, target in wrong.items()))
    assert "5 mistakes" in said and all(f"{group}._target_ must name" in said for group in wrong)
    with pytest.raises(ConfigError, match=r"that can be imported, got math\.nothing: No module named") as caught:
        make("model._target_", "math.nothing", {})
    assert "HYDRA" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "target", "arguments", "said"),
    [
        ("model", "no_arguments", "num_classes=..., widht=...", "unexpected keyword argument 'num_classes'. "),
        ("model", "reads", "num_classes=..., widht=...", "(PLACE, line 9, in reads). "),
        ("loss", "plain_loss", "no arguments", "required positional arguments: 'logits' and 'target'. "),
    ],
)
def test_a_factory_that_cannot_be_called_is_told_how_it_is_and_where_its_own_code_failed(
    key: str, target: str, arguments: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The innermost frame of an error may be in Python, Hydra or torch, which the user cannot correct."""
    (tmp_path / f"{key}_{target}.py").write_text(
        "import json\n\n\ndef no_arguments():\n    pass\n\n\n"
        "def reads(num_classes, widht):\n    return json.loads('{')\n\n\ndef plain_loss(logits, target):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    given = dict.fromkeys(re.findall(r"\w+(?==)", arguments), 3)
    with pytest.raises(ConfigError, match=rf"^{key}\._target_=.* must be callable with its arguments") as caught:
        make(f"{key}._target_", f"{key}_{target}.{target}", given)
    text = str(caught.value)
    assert said.replace("PLACE", f"{tmp_path}/{key}_{target}.py") + f"Hint: it is called with {arguments};" in text
    assert ("returns the loss function" in text) == (key == "loss")
    assert text.count(".py") == said.count("PLACE"), text


def test_of_a_lightning_module_only_forward_is_used(mypkg: str, tree: Path, run: Run):
    done = run("train", *SHORT, "data=imagefolder", f"data.root={tree}", "model._target_=wrong.Module", code=0)
    assert "Of wrong.Module, only forward is used: " in done.stdout
