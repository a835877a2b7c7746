from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torchvision.ops import sigmoid_focal_loss

from imagenet_ddp.config.schema.losses import Focal, LossConfig, NamedLoss
from imagenet_ddp.config.section import to_config
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.losses import Loss, weights_by_class


def loss(num_train_images: list[int] | None = None, **keys: Any) -> Loss:
    return Loss(cast("NamedLoss", to_config(keys, LossConfig)), 4, num_train_images)


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    logits, target = torch.randn(8, 4) * 3, torch.arange(8) % 4
    return logits, target, torch.softmax(torch.randn(8, 4), 1)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_torchs(batch: Any, smoothing: float):
    logits, target, soft = batch
    made = loss(label_smoothing=smoothing)
    torch.testing.assert_close(made(logits, target).mean(), F.cross_entropy(logits, target, label_smoothing=smoothing))
    expected = F.cross_entropy(logits, soft, label_smoothing=smoothing)
    torch.testing.assert_close(made(logits, target, soft).mean(), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("threshold", [None, 0.2])
def test_bce_is_timms(batch: Any, smoothing: float, threshold: float | None):
    """As in ResNet strikes back: --bce-loss --smoothing --bce-target-thresh."""
    from timm.loss import BinaryCrossEntropy

    logits, target, soft = batch
    made, theirs = (
        loss(name="bce", label_smoothing=smoothing, bce_threshold=threshold),
        BinaryCrossEntropy(smoothing, threshold),
    )
    torch.testing.assert_close(made(logits, target).mean(), theirs(logits, target))
    mixed = soft if smoothing == 0 else soft * (1 - smoothing) + smoothing / 4  # timm's mixup smooths by itself
    torch.testing.assert_close(made(logits, target, soft).mean(), theirs(logits, mixed))


def test_focal_without_gamma_is_cross_entropy_and_with_it_weighs_easy_images_less(batch: Any):
    logits, target, _ = batch
    torch.testing.assert_close(
        loss(name="focal", focal_gamma=0.0)(logits, target), F.cross_entropy(logits, target, reduction="none")
    )
    p = logits.softmax(1)[torch.arange(8), target]
    torch.testing.assert_close(loss(name="focal", focal_gamma=2.0)(logits, target), -((1 - p) ** 2) * p.log())
    certain = torch.tensor([[40.0, 0.0, 0.0, 0.0]], requires_grad=True)
    loss(name="focal", focal_gamma=0.5)(certain, torch.tensor([0])).sum().backward()
    assert certain.grad is not None and certain.grad.isfinite().all()
    # two classes: torchvision's, of the difference of the logits
    two = Loss(Focal(), 2)
    expected = sigmoid_focal_loss(logits[:, 1] - logits[:, 0], (target % 2).float(), alpha=-1, gamma=2)
    torch.testing.assert_close(two(logits[:, :2], target % 2), expected)


def test_balanced_weights_count_every_class_alike():
    counts = [10, 30, 60, 0]
    made = loss(counts, class_weights="balanced")
    logits = torch.zeros(100, 4)
    target = torch.repeat_interleave(torch.arange(4), torch.tensor(counts))
    losses = made(logits, target)
    sums = [losses[target == label].sum().item() for label in range(3)]
    assert sums == pytest.approx([sums[0]] * 3)
    plain = loss([10, 30, 60, 40], class_weights="balanced")
    assert plain.weights is not None
    assert torch.tensor([10.0, 30, 60, 40]) @ plain.weights == pytest.approx(140)  # the mean over the images is 1


@pytest.mark.parametrize("mixed", [False, True], ids=["labels", "mixed"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name", ["cross_entropy", "focal", "bce"])
def test_class_weights_are_torchs(batch: Any, name: str, smoothing: float, mixed: bool):
    logits, target, soft = batch
    weights = torch.tensor([1.0, 3.1463, 0.5, 4.0])
    made = loss(name=name, class_weights=weights.tolist(), label_smoothing=smoothing, focal_gamma=0.0)
    found = made(logits, target, soft if mixed else None)
    labels = soft if mixed else F.one_hot(target, 4).float()
    if name == "bce":
        smooth = labels * (1 - smoothing) + smoothing / 4
        each = F.binary_cross_entropy_with_logits(logits, smooth, reduction="none", pos_weight=weights).mean(1)
    else:
        each = F.cross_entropy(logits, labels, weights, label_smoothing=smoothing, reduction="none")
    torch.testing.assert_close(found, each)
    torch.testing.assert_close(made(logits, target, soft if mixed else None, "mean"), each.mean())
    rounded = made.to(torch.bfloat16)  # as by trainer.precision=bf16-true, which must not reach the loss
    torch.testing.assert_close(rounded(logits, target, soft if mixed else None), each)
    assert not made.state_dict()  # checkpoints stay as they are


def test_weights_by_name_reach_their_class():
    """Classes are sorted as text, so that 10 comes before 2."""
    classes = ["0", "1", "10", "2"]
    with pytest.raises(ConfigError, match="one number for each of 4 classes, got 3"):
        loss(class_weights=[1, 2, 3])
    assert weights_by_class({2: 100, "1": 5}, classes) == [1.0, 5.0, 1.0, 100.0]
    assert weights_by_class([4, 3, 2, 1], classes) == [4, 3, 2, 1]
    with pytest.raises(ConfigError, match=r"must name classes of the data \(0, 1, 2, 10\), but cat is not among them"):
        weights_by_class({"cat": 3}, classes)
