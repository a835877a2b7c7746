"""One of each from a package outside of src/, as the documentation says: optimizer, schedule, loss, source, logger, and
a callback whose metric selects best.ckpt. What else can be added is one row of this package."""

import json
import re
from pathlib import Path

import pytest
import torch
from conftest import ROOT, SMALL, Run

from imagenet_ddp.config.schema.evaluate import METRICS
from imagenet_ddp.distributed.launchers import table
from imagenet_ddp.exported.formats import check_model_file, registry
from imagenet_ddp.exported.formats.safetensors import Safetensors
from imagenet_ddp.use.further_metrics import further_metrics

MINE = """
import numpy as np
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger
from pathlib import Path
from PIL import ImageOps
from imagenet_ddp.data import Images, Source

class Shades(Images):
    def __init__(self, length):
        self.targets = np.arange(length) % 3

    def read(self, index):
        return torch.full((3, 40, 40), int(80 * self.targets[index]), dtype=torch.uint8)

def shades():
    return Source(["dark", "grey", "light"], Shades(24), Shades(6))

class Brier(Callback):
    def on_validation_batch_end(self, trainer, module, outputs, batch, *rest):
        shares, labels = outputs["logits"].softmax(1), batch["target"][: len(outputs["logits"])]
        self.score = (shares - torch.nn.functional.one_hot(labels, 3)).square().sum(1).mean()

    def on_validation_epoch_end(self, trainer, module):
        module.log("val/brier", self.score)

class Lines(CSVLogger):
    pass

class Signs(torch.optim.Optimizer):
    def __init__(self, params, lr, scale=1.0):
        super().__init__(params, {"lr": lr, "scale": scale})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.sub_(weight.grad.sign(), alpha=group["lr"] * group["scale"])
        return loss

class Invert:
    def __init__(self, below):
        self.below = below

    def __call__(self, image):
        Path("inverted").touch()
        return ImageOps.invert(image) if np.random.random() < self.below else image

def steep(epochs, power):
    return lambda elapsed: (1 - elapsed / epochs) ** power

class Hinge(torch.nn.Module):
    def __init__(self, margin):
        super().__init__()
        self.margin = margin
        Path("loss_was_made").touch()

    def forward(self, logits, target):
        return torch.nn.functional.multi_margin_loss(logits, target, margin=self.margin, reduction="none")
"""
# with the LightningModule of docs/library.md
MINE += re.findall(r"```python\n(.*?)```", (ROOT / "docs/library.md").read_text(), re.DOTALL)[-1]
OWN = [
    "optim._target_=mine.Signs", "optim.lr=0.01", "optim.reference_batch=null", "+optim.args.scale=0.1",
    "schedule._target_=mine.steep", "+schedule.args.power=2", "loss._target_=mine.Hinge", "+loss.args.margin=0.5",
    "transform._target_=mine.Invert", "+transform.args.below=0.5",
    "module._target_=mine.Mine", "+module.args.weight=0.01",
    "data._target_=mine.shades", "+callbacks.brier._target_=mine.Brier", "callbacks.checkpoint.monitor=val/brier",
    "callbacks.checkpoint.mode=min", "+logger.mine._target_=mine.Lines",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _mine(tmp_path: Path) -> None:
    """Write the package in the folder in which the commands run, where `python -m` finds it."""
    (tmp_path / "mine.py").write_text(MINE)


def test_one_of_each_takes_steps(run: Run, tmp_path: Path) -> None:
    options = [*SMALL, "trainer.max_epochs=2", "trainer.log_every_n_steps=1", "hydra.run.dir=r"]
    done = run("train", *options, *OWN, code=0)
    assert "Data: mine.shades, 24 training and 6 validation images of 3 classes" in done.stdout
    stored = torch.load(tmp_path / "r/checkpoints/best.ckpt", weights_only=True)["imagenet_ddp"]
    assert (
        stored["monitor"] == "val/brier" and stored["best_score"] > 0 and list((tmp_path / "r").rglob("hparams.yaml"))
    )
    assert (
        "optimizer mine.Signs," in done.stdout
        and "schedule mine.steep, loss mine.Hinge, transform mine.Invert, steps of mine.Mine." in done.stdout
    )
    assert json.loads((tmp_path / "r/summary.json").read_text())["epochs"] == 2
    assert "train/penalty" in (tmp_path / "r/metrics.csv").read_text()
    # a checkpoint names no code that an evaluation runs
    (tmp_path / "loss_was_made").unlink()
    (tmp_path / "inverted").unlink()
    done = run("evaluate", "checkpoint=r", "allow_targets=[mine.shades]", code=0)
    assert "top-1" in done.stdout and not {"loss_was_made", "inverted"} & {each.name for each in tmp_path.iterdir()}
    # a resume of the first epoch's checkpoint refuses the stored code, and ends as the unbroken run if it is allowed
    ended = torch.load(tmp_path / "r/checkpoints/last.ckpt", weights_only=True)["state_dict"]
    (tmp_path / "r/summary.json").unlink()
    resume = "resume=r/checkpoints/previous.ckpt"
    refused = "".join(run("train", resume, code=2).stderr.split())
    [allowed] = set(re.findall(r"allow_targets=\[mine[^\]]*\]", refused))
    assert all(f"mine.{name}" in allowed for name in ("Signs", "steep", "Hinge", "Invert", "Mine"))
    run("train", resume, allowed, code=0)
    assert json.loads((tmp_path / "r/summary.json").read_text())["epochs"] == 2
    again = torch.load(tmp_path / "r/checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(value, again[name]) for name, value in ended.items())


def test_what_is_a_row_of_this_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A metric of evaluate, an export format and a launcher."""
    monkeypatch.setitem(METRICS, "jaccard", ("MulticlassJaccardIndex", {"average": "macro"}))
    found = further_metrics(["jaccard"], torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0]), 2)
    assert found["jaccard"] == pytest.approx((1 / 2 + 1 / 2) / 2)

    class Half(Safetensors):
        name, suffix = "half", ".half"

    monkeypatch.setitem(registry.FORMATS, "half", Half())
    config = {"format": "half", "out": None, "checkpoint": f"{tmp_path}/best.ckpt", "overwrite": False, "push": None}
    assert check_model_file.validate({**config, "preprocessing": None, "batch_size": None}, "export") == []
    assert check_model_file.export_path(config).name == "model.half"

    row = table.ProcessLauncher("mine", "MINE_SIZE", "MINE_RANK", ("MINE_LOCAL_RANK",), ("MINE_LOCAL_SIZE",), "mine(1)")
    monkeypatch.setattr(table, "PROCESS_LAUNCHERS", (*table.PROCESS_LAUNCHERS, row))
    assert table.process_launcher({"MINE_SIZE": "2", "MINE_RANK": "1"}) == row


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["loss._target_=torch.nn.CrossEntropyLoss"], "must return the loss of each image, float (B,), for logits"),
        (["module._target_=lightning.pytorch.LightningModule"], "got an unexpected keyword"),
        (["module._target_=builtins.dict"], "must be a class derived from imagenet_ddp.models.ImageClassifier"),
        (["model._target_=builtins.dict"], "must return a torch.nn.modules.module.Module, got dict"),
        (["optim._target_=builtins.dict"], "must return a torch.optim.optimizer.Optimizer, got dict"),
        (["+callbacks.x._target_=builtins.dict"], "must return a lightning.pytorch.callbacks.callback.Callback, got"),
        (["+logger.x._target_=builtins.dict"], "must return a lightning.pytorch.loggers.logger.Logger, got dict"),
        (["schedule._target_=builtins.dict"], "must return a function from the epochs since the warm-up to a factor"),
        (
            ["loss._target_=mine.Hinge", "loss.label_smoothing=0.1"],
            "gets its arguments from loss.args",
        ),
        (["transform._target_=torchvision.transforms.v2.RandomPerspectiv"], "RandomPerspective"),
        (["transform._target_=mine.steep"], "name a function or class that returns the transform function"),
        (["transform._target_=mine.Hinge", "+transform.args.margin=1"], "must accept an RGB image of Pillow"),
        (
            ["transform._target_=torchvision.transforms.v2.Resize", "+transform.args.size=[8,9]"],
            "must return an RGB image of the size that it gets, 32 × 32 pixels of uint8, got Image uint8 (8, 9, 3)",
        ),
        (["schedule._target_=mine.steep", "schedule.gamma=0.1"], "has no effect"),
    ],
)
def test_what_does_not_fit_is_refused(typed: list[str], said: str, run: Run, tree: Path) -> None:
    done = run("train", *SMALL, f"data.root={tree}", "trainer.max_epochs=1", *typed, code=2)
    assert said in " ".join(done.stderr.split()) and "Hint: " in done.stderr


def test_what_lightning_rejects_in_code_of_ones_own_is_said_with_its_place(
    run: Run, tree: Path, tmp_path: Path
) -> None:
    method = "    def on_train_batch_end(self, trainer, module, *_):\n        module.log('a/dataloader_idx_0', 1.0)\n"
    (tmp_path / "wrong.py").write_text(f"from lightning.pytorch import Callback\nclass Wrong(Callback):\n{method}")
    options = [*SMALL, f"data.root={tree}", "trainer.max_epochs=1", "+callbacks.wrong._target_=wrong.Wrong"]
    done = run("train", *options, code=1)
    said = f"Lightning rejects a call of your own code ({tmp_path}/wrong.py, line 4, in on_train_batch_end): "
    assert said in " ".join(done.stderr.split()) and "Hint: correct that place." in done.stderr


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("return super().training_step(batch, batch_idx)['loss']", "must return the sums that are logged beside the"),
        ("return {'los': 0}", "Lightning rejects what training_step returned: "),
        ("x, y = batch", "ValueError: too many values to unpack (expected 2) (PLACE). Hint: correct that place: batch"),
        ("return self(batch['images'])", "KeyError: 'images' (PLACE)."),
        ("return self('image')", "'str' object has no attribute 'dtype' (PLACE)."),
    ],
)
def test_a_first_step_of_ones_own_that_fails_is_explained(
    step: str, said: str, run: Run, tree: Path, tmp_path: Path
) -> None:
    code = f"class Wrong(ImageClassifier):\n    def training_step(self, batch, batch_idx):\n        {step}\n"
    (tmp_path / "wrong.py").write_text(f"from imagenet_ddp.models import ImageClassifier\n{code}")
    options = [*SMALL, f"data.root={tree}", "trainer.max_epochs=1", "module._target_=wrong.Wrong"]
    done = run("train", *options, code=1)
    text, place = " ".join(done.stderr.split()), f"{tmp_path}/wrong.py, line 4, in training_step"
    assert said.replace("PLACE", place) in text and "docs/library.md" in text and "Traceback" not in text
