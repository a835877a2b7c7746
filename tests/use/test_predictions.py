from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.testing import CompileCounter

from imagenet_ddp.curation.unknown import Reference
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.models.calibration import log_sums
from imagenet_ddp.models.task import OneLabel
from imagenet_ddp.use.evaluation_results import Predicted, further_results, prediction_columns, results_lines
from imagenet_ddp.use.feature_collector import Collect
from imagenet_ddp.use.predictions import Predictions

CLASSES = ["n01440764", "n01443537", "n01484850"]
TARGETS = np.array([0, 1, 2, 1])


class Named(Images):
    targets = TARGETS

    def path(self, index: int) -> str:
        return f"{index}.jpg" if index else "a \udcff,b.jpg"  # a byte that is no text


@pytest.fixture
def predicted() -> Predicted:
    """Of four images, the second of which cannot be read."""
    logits, index = torch.tensor([[2.0, 1.0, 0.0], [1.0, 3.0, 2.0], [3.0, 2.0, 1.0]]), np.array([0, 2, 3])
    target = torch.from_numpy(TARGETS[index])
    values, classes = logits.softmax(1).sort(descending=True)
    gaps = logits.amax(1) - logits[range(3), target]
    losses = F.cross_entropy(logits, target, reduction="none")
    arrays: Any = (each.numpy() for each in (classes, values, losses, log_sums(logits), gaps))
    return Predicted(index, *arrays, scores=None, loaded=np.arange(4))


def test_a_net_is_compiled_once_for_all_views_of_an_image_whose_features_are_collected(tmp_path: Path):
    trainer: Any = SimpleNamespace(is_global_zero=False)
    for collects in ("familiarity", "features"):
        torch.compiler.reset()
        net, counter = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), CompileCounter()
        net.compile(backend=counter, dynamic=False)
        module: Any = SimpleNamespace(net=net, device=torch.device("cpu"))
        rows, ones = np.ones((3, 12), np.float32), np.ones(12, np.float32)
        reference = Reference(rows, ones[:3], ones, rows, rows[:, :3], 0.5, "")
        collected = Collect("1", np.arange(2), "", tmp_path)
        callback = collected if collects == "features" else Predictions(reference, net[1])
        callback.on_validation_start(trainer, module)
        with torch.inference_mode():
            for value in range(4):
                net(torch.full((2, 3, 2, 2), float(value)))
        kept: Any = callback._input
        assert (kept[0, 0], counter.frame_count) == (3.0, 1), collects


def test_an_image_is_right_by_any_of_its_reassessed_labels(predicted: Predicted):
    """Predicted: the first, the second, the first class."""
    first, second, third = ({name} for name in CLASSES)
    for labels, top1, count in (
        ([first, first, second, third], 2 / 3, 3),
        ([first | third, first, set(), third], 1 / 2, 2),
        ([third, first, first, first | second], 1 / 3, 3),
    ):
        found = further_results(predicted, TARGETS, CLASSES, [], labels)
        assert found["real"] == {"top1": pytest.approx(top1), "num_images": count}
        assert results_lines(found)[-1] == f"ReaL top-1 {100 * top1:.2f} % of {count} images"
    assert further_results(predicted, TARGETS, CLASSES, [], None).keys() == {"calibration"}


def test_an_output_that_is_not_finite_is_no_class(predicted: Predicted):
    predicted.classes[1], predicted.probabilities[1] = -1, np.nan
    found = further_results(predicted, TARGETS, CLASSES, ["per_class", "auroc"], [set(CLASSES)] * 4)
    assert found == {
        "num_without_class": 1,
        "metrics": {"per_class": {CLASSES[0]: 1.0, CLASSES[1]: 0.0, CLASSES[2]: 0.0}},
        "real": {"top1": pytest.approx(2 / 3), "num_images": 3},
    }
    assert results_lines(found)[0].startswith("For 1 image the output of the net is NaN or inf: counted as wrong")
    columns = prediction_columns(predicted, Named(), CLASSES, {})
    assert columns["prediction"][2] is None and columns["error"][2] == "the output of the net is NaN or inf"


def test_equal_logits_are_ordered_as_by_argmax_and_nan_is_no_class():
    callback, logits = Predictions(), torch.zeros(5, 400)
    logits[:, [7, 31, 300]] = 1.0
    logits[4, 5] = torch.nan
    trainer: Any = SimpleNamespace(world_size=1, is_global_zero=True)
    module: Any = SimpleNamespace(task=OneLabel(2))
    callback.on_validation_start(trainer, module)
    batch = {"index": torch.arange(5), "target": torch.zeros(5, dtype=torch.int64), "num_counted": 5}
    callback.on_validation_batch_end(trainer, module, {"logits": logits, "losses": torch.zeros(5)}, batch, 0)
    callback.on_validation_end(trainer, module)
    assert callback.result is not None and callback.result.classes.tolist() == [[7, 31]] * 4 + [[-1, -1]]
