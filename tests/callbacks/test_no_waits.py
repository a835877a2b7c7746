"""No step without figures waits for the device: whole steps by Lightning's Trainer with a run's own callbacks, on the
meta device, where there are no values to wait for."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import numpy as np
import pytest
import torch
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

from imagenet_ddp.callbacks.learning_rate import LearningRate
from imagenet_ddp.callbacks.progress import Progress
from imagenet_ddp.callbacks.run_files import History
from imagenet_ddp.callbacks.sequence import in_order
from imagenet_ddp.callbacks.train_log import TrainLog
from imagenet_ddp.callbacks.weight_average import WeightAverage
from imagenet_ddp.config.schema.losses import LossConfig
from imagenet_ddp.config.schema.optimizers import OPTIMIZERS
from imagenet_ddp.config.section import to_config
from imagenet_ddp.data.module import ImageDataModule
from imagenet_ddp.models.lightning_module import ImageClassifier
from imagenet_ddp.models.losses import make_loss
from imagenet_ddp.models.optimizers import make_optimizer
from imagenet_ddp.models.task import OneLabel
from imagenet_ddp.models.teacher import Teacher
from imagenet_ddp.runs.signals import Signals
from imagenet_ddp.use.evaluate import Predictions

CLASSES, SIZE, NUM_IMAGES = 10, 8, 4
FIRST, LAST = 3, 5  # the watched steps; those before may copy constants to the device
TRAINING: dict[str, Any] = {"max_epochs": 1, "log_every_n_steps": 1000, "num_sanity_val_steps": 0, "logger": False,
                            "enable_progress_bar": False, "enable_model_summary": False,
                            "use_distributed_sampler": False}  # fmt: skip


class AllWatchedError(Exception):
    """Ends a run after its last step: the end of an epoch reads its figures."""


class NoCopies(TorchFunctionMode):
    """Fail where a number or a tensor of the host is copied to the meta device. Reading a value there raises by
    itself."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in ("tensor", "as_tensor", "asarray", "to", "cuda", "copy_", "from_numpy"):
            source = args[1] if name == "copy_" else args[0]
            is_from_host = not isinstance(source, Tensor) or not source.is_meta
            assert not (isinstance(found, Tensor) and found.is_meta and is_from_host), f"{name} copies from the host"
        return found


class Watch(L.Callback):
    def __init__(self) -> None:
        self.active = ExitStack()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, *_: Any) -> None:
        if batch_idx == FIRST:
            self.active.enter_context(NoCopies())

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        if batch_idx == LAST:
            self.active.close()
            raise AllWatchedError

    on_validation_batch_start: Any = on_train_batch_start
    on_validation_batch_end: Any = on_train_batch_end


class MetaStrategy(SingleDeviceStrategy):
    def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Lightning reads the number of batches from it before it begins."""
        return torch.ones_like(tensor, device="cpu")

    def teardown(self) -> None:
        """Leave the net there: it cannot be copied back."""


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_optimizer_waits_but_the_one_that_says_so(name: str):
    with torch.device("meta"):
        net = make_net()
    optimizer = make_optimizer(OPTIMIZERS[name](), net, 0.1)

    def step() -> None:
        for parameter in net.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()

    if name == "adafactor":  # as conf/optim/adafactor.yaml says
        with pytest.raises(RuntimeError, match="item"):
            step()
        return
    step()  # which makes the state
    with NoCopies():
        step()


def make_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5),
        nn.Linear(4, CLASSES),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("loss", "more", "data", "counted"),
    [
        ({}, Predictions, {}, NUM_IMAGES - 1),
        ({"name": "bce", "class_weights": [1.0] * CLASSES}, lambda: WeightAverage(0.9), {}, NUM_IMAGES),
        ({"name": "focal", "label_smoothing": 0.1}, L.Callback, {"mixup_alpha": 0.2}, NUM_IMAGES),
        ({"label_smoothing": 0.1}, lambda: WeightAverage(None), {"cutmix_alpha": 1.0}, NUM_IMAGES),
    ],
    ids=["remainder", "bce", "mixup", "cutmix"],
)
@pytest.mark.parametrize("verb", ["fit", "validate"])
def test_a_step_neither_reads_nor_writes_values_of_the_device(
    verb: str, loss: dict, more: Any, data: dict, counted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CPUAccelerator, "setup_device", lambda self, device: None)  # it takes no other device
    with torch.device("meta"):
        tensors = {"image": torch.zeros(NUM_IMAGES, 3, SIZE, SIZE, dtype=torch.uint8),
                   "flip": torch.zeros(NUM_IMAGES, dtype=torch.bool), "target": torch.arange(NUM_IMAGES),
                   "index": torch.arange(NUM_IMAGES)}  # fmt: skip
    counts = {"num_counted": counted, "step_images": counted, "update_images": counted}
    batches = [{**tensors, **counts, "seed": number} for number in range(LAST + 2)]  # the last step has figures
    made: Any = ImageDataModule.from_options("shapes", num_workers=0, batch_size=NUM_IMAGES, image_size=32, **data)
    made.train_dataloader = made.val_dataloader = lambda: DataLoader(batches, batch_size=None)  # type: ignore[arg-type]
    made.train_images.weights = np.ones(made.num_train_images, np.float32)
    module = ImageClassifier(
        make_net(), CLASSES, NUM_IMAGES, make_optimizer=lambda each: torch.optim.SGD(each, lr=0.1, momentum=0.9),
        task=OneLabel(CLASSES, make_loss(to_config(loss, LossConfig), list(map(str, range(CLASSES))), [1] * CLASSES)),
        teacher=Teacher(make_net(), 0.5, 2.0), val_views=2,
    )  # fmt: skip
    watch = Watch()
    callbacks = [LearningRate(lambda epochs: 1 / (1 + epochs)), TrainLog(), Progress(val_log_every_n_steps=1000),
                 History(), more(), watch]  # fmt: skip
    strategy = MetaStrategy(torch.device("meta"), CPUAccelerator())
    trainer = L.Trainer(
        strategy=strategy, callbacks=in_order(callbacks, Signals()), default_root_dir=tmp_path, **TRAINING
    )
    with pytest.raises(AllWatchedError), watch.active:
        getattr(trainer, verb)(module, datamodule=made)
