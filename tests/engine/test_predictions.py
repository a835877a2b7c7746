from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from imagenet_ddp.engine.evaluation_results import Predicted, Predictions

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA"))]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    yield torch.device(request.param)
    if request.param == "cuda":
        torch.cuda.set_sync_debug_mode("default")


def collected(batches: list[dict[str, Any]], device: torch.device, **options: Any) -> Predicted:
    """batches: index, logits, target and num_counted; as of one process. No batch may wait for the GPU."""
    callback = Predictions(**options)
    trainer: Any = SimpleNamespace(world_size=1, is_global_zero=True)
    module: Any = SimpleNamespace(top_k=2)
    callback.on_validation_start(trainer, module)
    moved = [{name: torch.as_tensor(each).to(device) for name, each in batch.items()} for batch in batches]
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    for batch, original in zip(moved, batches, strict=True):
        batch["num_counted"] = original["num_counted"]
        counted = batch["num_counted"]
        logits = batch.pop("logits")[:counted]
        losses = F.cross_entropy(logits, batch["target"][:counted], reduction="none")
        outputs = {"logits": logits, "losses": losses} if counted else None
        callback.on_validation_batch_end(trainer, module, outputs, batch, 0)
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("default")
    callback.on_validation_end(trainer, module)
    assert callback.result is not None
    return callback.result


def test_images_are_in_order_without_those_that_do_not_count(device: torch.device):
    logits = torch.tensor([[1.0, 3.0, 2.0], [5.0, 0.0, 0.0], [0.0, 0.0, 9.0]])
    batches = [
        {"index": [4, 2, 3], "logits": logits, "target": [1, 0, 0], "num_counted": 2},
        {"index": [0], "logits": logits[2:], "target": [2], "num_counted": 1},
        {"index": [0], "logits": logits[:1], "target": [2], "num_counted": 0},
    ]
    found = collected(batches, device, keep_scores=True)
    assert found.index.tolist() == [0, 2, 4] and found.loaded.tolist() == [0, 2, 3, 4]
    assert found.classes.tolist() == [[2, 0], [0, 1], [1, 2]]
    probabilities = logits[[2, 1, 0]].softmax(1)
    assert found.scores is not None
    np.testing.assert_allclose(found.scores, probabilities, rtol=1e-5)
    np.testing.assert_allclose(found.probabilities, probabilities.topk(2).values, rtol=1e-5)
    np.testing.assert_allclose(found.gaps, [0, 0, 0])
    np.testing.assert_allclose(found.losses, -probabilities.log()[range(3), [2, 0, 1]], rtol=1e-4, atol=1e-6)
    assert collected(batches, device).scores is None


def test_equal_logits_are_ordered_as_by_argmax(device: torch.device):
    logits = torch.zeros(5, 400)
    logits[:, [7, 31, 300]] = 1.0
    found = collected([{"index": range(5), "logits": logits, "target": [0] * 5, "num_counted": 5}], device)
    assert found.classes.tolist() == [[7, 31]] * 5


def test_no_batch_waits_for_the_device():
    """A meta tensor has no numbers: what would wait for a GPU to copy some fails here."""
    callback = Predictions(keep_scores=True)
    with torch.device("meta"):
        logits, losses, index = torch.zeros(4, 7), torch.zeros(4), torch.zeros(6, dtype=torch.int64)
    module: Any = SimpleNamespace(top_k=5)
    batch = {"index": index, "target": index, "num_counted": 4}
    callback.on_validation_batch_end(Any, module, {"logits": logits, "losses": losses}, batch, 0)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError):  # the end does read them
        callback.on_validation_end(SimpleNamespace(world_size=1), module)  # type: ignore[arg-type]
