import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.engine.evaluation_results import Predicted, further_results, prediction_columns, results_lines
from imagenet_ddp.models.calibration import log_sums
from imagenet_ddp.runs import predictions_file

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


def test_metrics_are_named_and_said(predicted: Predicted):
    found = further_results(predicted, np.array([0, 1, 1, 1]), CLASSES, ["f1", "per_class"], None)
    assert found["metrics"] == {
        "f1": pytest.approx(2 / 3),
        "per_class": {CLASSES[0]: 1.0, CLASSES[1]: 0.5, CLASSES[2]: None},
    }
    assert results_lines(found)[1:] == [
        "f1: 0.6667", f"per_class: lowest {CLASSES[1]} 50.00 %, {CLASSES[0]} 100.00 %",
    ]  # fmt: skip


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_row_for_each_image(form: str, predicted: Predicted, tmp_path: Path):
    columns = prediction_columns(predicted, Named(), CLASSES, {"1.jpg": "the file is empty"})
    path = tmp_path / predictions_file.FILES[form]
    predictions_file.write(path, columns)
    if form == "csv":
        rows = list(csv.DictReader(path.read_text().splitlines()))
        number: Callable = float
        empty = ""
    else:
        rows = pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
        number, empty = float, None
    assert list(rows[0]) == [
        "index", "path", "label", "prediction", "confidence", "loss", "label_probability",
        "class_1", "probability_1", "class_2", "probability_2", "class_3", "probability_3", "error",
    ]  # fmt: skip
    assert [int(row["index"]) for row in rows] == [0, 1, 2, 3]
    assert [row["path"] for row in rows] == ["a \\udcff,b.jpg", "1.jpg", "2.jpg", "3.jpg"]
    assert [row["label"] for row in rows] == [CLASSES[0], CLASSES[1], CLASSES[2], CLASSES[1]]
    assert [row["prediction"] for row in rows] == [CLASSES[0], empty, CLASSES[1], CLASSES[0]]
    assert [row["class_3"] for row in rows] == [CLASSES[2], empty, CLASSES[0], CLASSES[2]]
    assert [row["error"] for row in rows] == [empty, "the file is empty", empty, empty]
    assert {rows[1][name] for name in list(rows[1])[3:-1]} == {empty}
    p = torch.tensor([2.0, 1.0, 0.0]).softmax(0).tolist()
    for row, label_probability in ((rows[0], p[0]), (rows[2], p[1]), (rows[3], p[1])):
        assert number(row["confidence"]) == pytest.approx(p[0], rel=1e-5)
        assert number(row["probability_2"]) == pytest.approx(p[1], rel=1e-5)
        assert number(row["label_probability"]) == pytest.approx(label_probability, rel=1e-5)
        assert number(row["loss"]) == pytest.approx(-np.log(label_probability), rel=1e-5)


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
