from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as L
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from imagenet_ddp.config.schema.losses import CrossEntropy
from imagenet_ddp.data.sampler import BatchSampler
from imagenet_ddp.models.lightning_module import ImageClassifier
from imagenet_ddp.models.losses import Loss
from imagenet_ddp.models.sums import Sums, to_host
from imagenet_ddp.models.task import OneLabel


class Shown(nn.Module):
    """The image's first numbers are the logits."""

    def __init__(self, num_classes: int):
        super().__init__()
        self.num_classes = num_classes
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)[:, : self.num_classes] * self.scale


def make(net: nn.Module, num_classes: int, num_val_images: int = 10, **more: Any) -> ImageClassifier:
    keys: dict[str, Any] = {"make_optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1), **more}
    if (smoothing := keys.pop("label_smoothing", None)) is not None:
        keys["task"] = OneLabel(num_classes, Loss(CrossEntropy(label_smoothing=smoothing), num_classes))
    classifier = ImageClassifier(net, num_classes, num_val_images, **keys)
    return as_one_of(classifier, world_size=1)


def as_one_of(classifier: ImageClassifier, world_size: int, accumulate: int = 1) -> ImageClassifier:
    trainer = SimpleNamespace(world_size=world_size, accumulate_grad_batches=accumulate, sanity_checking=False)
    classifier._trainer = trainer  # type: ignore[assignment]
    return classifier


def batch_of(images: Tensor, target: list[int] | Tensor, index: list[int] | None = None, **more: int) -> dict[str, Any]:
    found = {"image": images, "target": torch.as_tensor(target), "index": torch.tensor(index or range(len(images)))}
    return {**found, "num_counted": len(images), "update_images": len(images), **more}


# ---- training ------------------------------------------------------------------------------------------------------


def small_net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 4 * 4, 5), nn.Identity())


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("num_images", "batch_size", "world_size", "accumulate", "num_steps"),
    [
        (29, 4, 2, 1, 99), (11, 2, 3, 1, 99), (2, 4, 3, 1, 99),
        # the last update has fewer batches, by the number of images or of steps; batches of different sizes
        (29, 4, 2, 3, 99), (29, 4, 1, 3, 4), (11, 2, 3, 2, 99), (1, 2, 1, 4, 99),
    ],
)  # fmt: skip
def test_each_update_is_by_the_mean_gradient_over_its_images(
    num_images: int, batch_size: int, world_size: int, accumulate: int, num_steps: int, label_smoothing: float
):
    """However they are split: DDP averages the gradients of the ranks, Lightning divides by accumulate_grad_batches,
    also where an update has fewer batches."""
    generator = torch.Generator().manual_seed(0)
    images, targets = torch.randn(num_images, 3, 6, 6, generator=generator), torch.arange(num_images) % 5
    classifier = as_one_of(make(small_net(), 5, label_smoothing=label_smoothing), world_size, accumulate)
    parameters = list(classifier.net.parameters())
    samplers = [
        BatchSampler(num_images, batch_size, world_size, rank, shuffle=True, seed=1, fill_to=2,
                     accumulate=lambda: accumulate, num_steps=lambda: num_steps)
        for rank in range(world_size)
    ]  # fmt: skip
    steps = list(zip(*samplers, strict=True))[:num_steps]
    for begin in range(0, len(steps), accumulate):
        gradients = [torch.zeros_like(parameter) for parameter in parameters]
        loss_sum, counted = 0.0, []
        for keys in [keys for step in steps[begin : begin + accumulate] for keys in step]:
            index = torch.tensor([key.index for key in keys])
            mine = [key.index for key in keys if key.counts]
            more = {"num_counted": len(mine), "update_images": keys[0].update_images}
            batch = batch_of(images[index], targets[index], index.tolist(), **more)
            result = classifier.training_step(batch, 0)
            for total, part in zip(gradients, torch.autograd.grad(result["loss"], parameters), strict=True):
                total += part / world_size / accumulate
            loss_sum += result["sums"].totals["loss"].item()
            counted += mine
        logits = classifier.net(images[counted])
        loss = F.cross_entropy(logits, targets[counted], label_smoothing=label_smoothing)
        assert loss_sum / len(counted) == pytest.approx(loss.item(), abs=1e-6)
        for found, expected in zip(gradients, torch.autograd.grad(loss, parameters), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_a_weight_multiplies_the_loss_of_its_image():
    """The mean is over the images, so that twice the weights are twice the loss, in full batches and in remainders."""
    classifier, images = as_one_of(make(Shown(3), 3), 1), torch.randn(4, 3, 1, 1)
    target, weight = torch.tensor([0, 1, 2, 0]), torch.tensor([1.0, 0.5, 2.0, 3.0])
    losses = F.cross_entropy(images.flatten(1), target, reduction="none")
    for counted, update_images in ((4, 4), (3, 3), (4, 8)):
        more: Any = {"num_counted": counted, "update_images": update_images, "weight": weight}
        result = classifier.training_step(batch_of(images, target, **more), 0)
        expected = (losses * weight)[:counted].sum().item()
        assert result["loss"].item() == pytest.approx(expected / update_images)
        assert result["sums"].totals["loss"].item() == pytest.approx(expected)


def test_label_smoothing_is_for_training_only():
    logits = torch.tensor([4.0, 0.0, 0.0])
    images = logits.reshape(1, 3, 1, 1)
    log = torch.log_softmax(logits, 0)
    plain, smooth = -log[0].item(), -(0.7 * log[0] + 0.1 * log.sum()).item()  # 0.3 of it spread over three classes
    classifier = as_one_of(make(Shown(3), 3, label_smoothing=0.3), 1)
    assert classifier.training_step(batch_of(images, [0]), 0)["loss"].item() == pytest.approx(smooth)
    assert validated(classifier, [batch_of(images, [0])])["val/loss"] == pytest.approx(plain)


# ---- validation ----------------------------------------------------------------------------------------------------


def validated(classifier: ImageClassifier, batches: list[dict[str, Any]]) -> dict[str, float]:
    logged: dict[str, Tensor] = {}
    classifier.log_dict = logged.update  # type: ignore[method-assign, assignment]
    classifier.on_validation_epoch_start()
    for number, batch in enumerate(batches):
        classifier.validation_step(batch, number)
    classifier.on_validation_epoch_end()
    return {name: value.item() for name, value in logged.items()}


# Logits of seven images over six classes; of the targets' places, 0, 0, 1, 4, 5, 0, 2.
LOGITS = torch.tensor(
    [[9, 5, 4, 3, 2, 1], [8, 5, 4, 3, 2, 1], [5, 9, 4, 3, 2, 1], [2, 9, 5, 4, 3, 1], [1, 9, 5, 4, 3, 2],
     [1, 2, 3, 4, 5, 9], [4, 3, 2, 1, 9, 5]], dtype=torch.float32,
)  # fmt: skip
TARGETS = [0, 0, 0, 0, 0, 5, 0]


def logits_as_images(logits: Tensor) -> Tensor:
    return logits.reshape(len(logits), 3, 1, -1)


def test_top1_and_top5_are_shares_of_images():
    """Not the mean over classes, which would be (2/6 + 1) / 2 and so on: class 5 has a single image."""
    images = logits_as_images(LOGITS)
    batches = [batch_of(images[:4], TARGETS[:4], [0, 1, 2, 3]), batch_of(images[4:], TARGETS[4:], [4, 5, 6])]
    classifier = make(Shown(6), 6, 7)
    validated(classifier, [batch_of(images[:2], [1, 1])])  # is forgotten where the next one begins
    found = validated(classifier, batches)
    assert found["val/top1"] == pytest.approx(3 / 7)
    assert found["val/top5"] == pytest.approx(6 / 7)
    losses = F.cross_entropy(LOGITS, torch.tensor(TARGETS), reduction="none")
    assert found["val/loss"] == pytest.approx(losses.double().mean().item(), rel=1e-12)  # also of larger batches
    assert classifier.counted.compute() == (7, 1)


def test_with_three_classes_top5_is_top3():
    logits = torch.tensor([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]]).reshape(2, 3, 1, 1)
    found = validated(make(Shown(3), 3, 2), [batch_of(logits, [2, 2])])
    assert (found["val/top1"], found["val/top5"]) == (0.5, 1.0)


def test_sums_so_far_are_those_of_this_ranks_images():
    images = logits_as_images(LOGITS)
    classifier = make(Shown(6), 6, 7)
    classifier.on_validation_epoch_start()
    assert to_host(classifier.validation_sums()) == [Sums({"loss": 0, "top1": 0, "top5": 0})]
    for end in (4, 7):
        part = slice(0 if end == 4 else 4, end)
        classifier.validation_step(batch_of(images[part], TARGETS[part], list(range(7))[part]), 0)
        [sums] = to_host(classifier.validation_sums())
        expected = F.cross_entropy(LOGITS[:end], torch.tensor(TARGETS[:end])).item()
        assert sums.means()["loss"] == pytest.approx(expected, abs=1e-6)
        assert (sums.totals["top1"], sums.totals["top5"], sums.images) == {4: (2, 4, 4), 7: (3, 6, 7)}[end]


# ---- in Lightning's hands ------------------------------------------------------------------------------------------


def fit(classifier: ImageClassifier, max_epochs: int, ckpt_path: Path | None = None) -> L.Trainer:
    images = torch.randn(5, 6, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    batches: Any = [batch_of(part, torch.arange(6) % 5) for part in images]  # a list is data set enough
    trainer = L.Trainer(
        accelerator="cpu", devices=1, max_epochs=max_epochs, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1,
    )  # fmt: skip
    training, validation = (DataLoader(part, batch_size=None) for part in (batches[:-1], batches[-1:]))
    trainer.fit(classifier, training, validation, ckpt_path=ckpt_path, weights_only=True)
    assert "_current_fx_name" in vars(classifier)  # Lightning's, which __setattr__ expects
    return trainer


def test_ranks_and_seeds_draw_differently():
    def draw(seed: int, rank: int, step: int) -> int:
        classifier = make(Shown(3), 3, seed=seed)
        loop = SimpleNamespace(epoch_loop=SimpleNamespace(total_batch_idx=step))
        classifier._trainer = SimpleNamespace(global_rank=rank, fit_loop=loop)  # type: ignore[assignment]
        classifier.on_train_batch_start({}, 0)
        return int(torch.randint(2**62, ()))

    places = [(seed, rank, step) for seed in (0, 1, 2**32 - 1) for rank in range(3) for step in range(3)]
    drawn = [draw(*place) for place in places]
    assert len(set(drawn)) == len(places)
    assert [draw(*place) for place in places] == drawn


def test_only_the_net_is_saved():
    classifier = make(small_net(), 5)
    validated(classifier, [batch_of(torch.randn(2, 3, 6, 6), [0, 1])])
    assert set(classifier.state_dict()) == {f"net.{name}" for name in classifier.net.state_dict()}


# ---- resumed, and in other precisions ----------------------------------------------------------------------------


class Counting(torch.optim.SGD):
    """Counts its steps in its settings, as some optimizers do."""

    def __init__(self, parameters: Any, **settings: Any):
        super().__init__(parameters, **settings)
        for group in self.param_groups:
            group.setdefault("steps", 0)

    def step(self, closure: Any = None) -> Any:
        self.param_groups[0]["steps"] += 1
        return super().step(closure)


def test_options_of_the_optimizer_that_are_changed_on_resume_reach_it(tmp_path: Path):
    def settings(**changed: Any) -> ImageClassifier:
        keys = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4, **changed}
        return make(small_net(), 5, 6, make_optimizer=lambda parameters: Counting(parameters, **keys))

    fit(settings(), 1).save_checkpoint(tmp_path / "a.ckpt")
    same, changed = settings(), settings(weight_decay=0.5, momentum=0.0)
    for classifier, expected in ((same, (0.9, 1e-4)), (changed, (0.0, 0.5))):
        [group] = fit(classifier, 2, tmp_path / "a.ckpt").optimizers[0].param_groups
        assert (group["momentum"], group["weight_decay"], group["steps"]) == (*expected, 8)


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-true"])
def test_the_loss_is_exact_in_every_precision(precision: str):
    """bf16 holds 8 bits: a sum of 500 losses stands still at a few hundred."""
    dtype = {"32-true": torch.float32, "64-true": torch.float64, "bf16-true": torch.bfloat16}[precision]
    logits = torch.tensor([0.0, 1.0, -2.0]).repeat(500, 1).to(dtype)
    classifier = make(Shown(3), 3, 500).to(dtype)
    found = validated(classifier, [batch_of(part.reshape(-1, 3, 1, 1), [0] * len(part)) for part in logits.split(20)])
    expected = -torch.log_softmax(torch.tensor([0.0, 1.0, -2.0], dtype=torch.float64), 0)[0].item()
    assert found["val/loss"] == pytest.approx(expected, rel=1e-9 if precision == "64-true" else 1e-6)
