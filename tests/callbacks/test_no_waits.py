"""No step without figures waits for the device: whole steps by Lightning's Trainer with a run's own callbacks, on the
meta device, where there are no values to wait for."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from imagenet_ddp.callbacks.graceful_stop import GracefulStop
from imagenet_ddp.callbacks.learning_rate import LearningRate
from imagenet_ddp.callbacks.progress import Progress
from imagenet_ddp.callbacks.run_files import History
from imagenet_ddp.callbacks.train_log import TrainLog
from imagenet_ddp.callbacks.weight_average import WeightAverage
from imagenet_ddp.config.schema.learning import LossConfig
from imagenet_ddp.data.module import ImageDataModule
from imagenet_ddp.engine.evaluate import Predictions
from imagenet_ddp.models.lightning_module import ImageClassifier
from imagenet_ddp.models.losses import Loss
from imagenet_ddp.models.teacher import Teacher
from imagenet_ddp.runs.signals import Signals

pytestmark = pytest.mark.usefixtures("one_thread")
CLASSES, SIZE, NUM_IMAGES = 10, 8, 4
NUM_STEPS, FIRST = 6, 3  # of a run; the steps before this one may copy constants to the device


class WaitError(Exception):
    pass


class NoCopies(TorchFunctionMode):
    """Raise WaitError where a number or a tensor of the host is copied to the meta device. Reading a value there raises
    by itself."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in ("tensor", "as_tensor", "asarray", "to", "cuda", "copy_", "from_numpy"):
            source = args[1] if func.__name__ == "copy_" else args[0]
            is_on_device = isinstance(source, Tensor) and source.is_meta
            if isinstance(found, Tensor) and found.is_meta and not is_on_device:
                raise WaitError(f"{func.__name__} copies from the host to the device")
        return found


class Watched(ImageDataModule):
    """Batches of generated pixels. From the step FIRST on, NoCopies is active from one copy of a batch to the next.
    counted: images that count, the others fill up."""

    counted = NUM_IMAGES
    num_watched = 0
    _is_watched = False

    def batches(self) -> Iterator[dict[str, Any]]:
        self._watch = NoCopies()
        for number in range(NUM_STEPS + 1):
            yield {
                "image": torch.randint(0, 256, (NUM_IMAGES, 3, SIZE, SIZE), dtype=torch.uint8),
                "flip": torch.arange(NUM_IMAGES) % 2 == 0,
                "target": torch.arange(NUM_IMAGES) % CLASSES,
                "index": torch.arange(NUM_IMAGES),
                "weight": torch.ones(NUM_IMAGES),
                "num_counted": self.counted,
                "step_images": self.counted,
                "update_images": self.counted,
                "seed": number,
            }

    def train_dataloader(self) -> Any:
        return Sized(self.batches)

    val_dataloader = train_dataloader

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """The one copy of a step."""
        self.end_watch()
        moved = super().transfer_batch_to_device(batch, device, dataloader_idx)
        if batch["seed"] >= FIRST:
            self._watch.__enter__()
            self.num_watched += 1
            self._is_watched = True
        return moved

    def end_watch(self) -> None:
        if self._is_watched:
            self._is_watched = False
            self._watch.__exit__(None, None, None)


class Sized:
    def __init__(self, batches: Callable[[], Iterator[Any]]):
        self._batches = batches

    def __len__(self) -> int:
        return NUM_STEPS + 1  # the last step of an epoch has figures

    def __iter__(self) -> Iterator[Any]:
        return self._batches()


class EnoughError(Exception):
    """Ends a run after its last step: the end of an epoch reads its figures."""


class Leave(L.Callback):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx + 1 == NUM_STEPS:
            raise EnoughError

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if batch_idx + 1 == NUM_STEPS:
            raise EnoughError


class AnyDevice(CPUAccelerator):
    def setup_device(self, device: torch.device) -> None:
        pass


class MetaStrategy(SingleDeviceStrategy):
    def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Lightning reads the number of batches from it before it begins."""
        return torch.ones_like(tensor, device="cpu")

    def teardown(self) -> None:
        """Leave the net there: it cannot be copied back."""


def make_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5),
        nn.Linear(4, CLASSES),
    )  # fmt: skip


def run(
    verb: str, tmp_path: Path, loss: dict[str, Any], more: list[L.Callback], data: dict[str, Any], counted: int
) -> int:
    """Fit or validate; return the number of watched steps."""
    callbacks = [
        LearningRate(lambda epochs: 1 / (1 + epochs)), TrainLog(), Progress(val_log_every_n_steps=1000), History(),
        *deepcopy(more), Leave(), GracefulStop(Signals()),
    ]  # fmt: skip
    trainer = L.Trainer(
        strategy=MetaStrategy(torch.device("meta"), AnyDevice()), max_epochs=1, log_every_n_steps=1000,
        callbacks=callbacks, logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tmp_path, num_sanity_val_steps=0, use_distributed_sampler=False,
    )  # fmt: skip
    module = ImageClassifier(
        make_net(), CLASSES, NUM_IMAGES, make_optimizer=lambda each: torch.optim.SGD(each, lr=0.1, momentum=0.9),
        loss=Loss(LossConfig(**loss), CLASSES), teacher=Teacher(make_net(), 0.5, 2.0), val_views=2,
    )  # fmt: skip
    made: Any = Watched.from_options("shapes", num_workers=0, batch_size=NUM_IMAGES, image_size=32, **data)
    made.counted = counted
    try:
        with pytest.raises(EnoughError):
            getattr(trainer, verb)(module, datamodule=made)
    finally:
        made.end_watch()
    return made.num_watched


@pytest.mark.parametrize(
    ("loss", "more", "data", "counted"),
    [
        ({}, [Predictions()], {}, NUM_IMAGES - 1),
        ({"name": "bce", "class_weights": [1.0] * CLASSES}, [WeightAverage(0.9)], {}, NUM_IMAGES),
        ({"name": "focal", "label_smoothing": 0.1}, [], {"mixup_alpha": 0.2}, NUM_IMAGES),
        ({"label_smoothing": 0.1}, [WeightAverage(None)], {"cutmix_alpha": 1.0}, NUM_IMAGES),
    ],
    ids=["remainder", "bce", "mixup", "cutmix"],
)
@pytest.mark.parametrize("verb", ["fit", "validate"])
def test_a_step_neither_reads_nor_writes_values_of_the_device(
    verb: str, tmp_path: Path, loss: dict, more: list[L.Callback], data: dict, counted: int
) -> None:
    assert run(verb, tmp_path, loss, more, data, counted) == NUM_STEPS - FIRST
