"""An optimizer, a schedule and a loss of one's own, from a package outside of src/."""

import json
from pathlib import Path

import pytest
from conftest import SMALL, Run

MINE = """
import torch
from pathlib import Path

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
OWN = [
    "optim._target_=mine.Signs", "optim.lr=0.01", "optim.reference_batch=null", "+optim.args.scale=0.1",
    "schedule._target_=mine.steep", "+schedule.args.power=2", "loss._target_=mine.Hinge", "+loss.args.margin=0.5",
]  # fmt: skip


@pytest.fixture
def package(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "mine.py").write_text(MINE)
    return {"PYTHONPATH": str(tmp_path)}


def test_one_of_each_takes_steps(run: Run, tree: Path, tmp_path: Path, package: dict[str, str]) -> None:
    options = [*SMALL, f"data.root={tree}", "trainer.max_epochs=2", "trainer.log_every_n_steps=1", "hydra.run.dir=r"]
    done = run("train", *options, *OWN, **package, code=0)
    assert "optimizer mine.Signs," in done.stdout and "schedule mine.steep, loss mine.Hinge." in done.stdout
    assert json.loads((tmp_path / "r/summary.json").read_text())["epochs"] == 2
    # a checkpoint names no code that an evaluation runs
    (tmp_path / "loss_was_made").unlink()
    done = run("evaluate", "checkpoint=r", **package, code=0)
    assert "top-1" in done.stdout and not (tmp_path / "loss_was_made").exists()
    again = run("train", "resume=r", "trainer.max_epochs=3", **package, code=2)
    assert "allow_targets=[mine.Signs,mine.steep,mine.Hinge]" in " ".join(again.stderr.split())


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["loss._target_=torch.nn.CrossEntropyLoss"], "must return the loss of each image, float (B,), for logits"),
        (["schedule._target_=builtins.dict"], "must return a function from the epochs since the warm-up to a factor"),
        (["loss._target_=mine.Hinge", "loss.label_smoothing=0.1"], "read only if loss._target_ is null"),
        (["schedule._target_=mine.steep", "schedule.gamma=0.1"], "has no effect"),
    ],
)
def test_what_does_not_fit_is_refused(
    typed: list[str], said: str, run: Run, tree: Path, package: dict[str, str]
) -> None:
    done = run("train", *SMALL, f"data.root={tree}", "trainer.max_epochs=1", *typed, **package, code=2)
    assert said in " ".join(done.stderr.split()) and "Hint: " in done.stderr
