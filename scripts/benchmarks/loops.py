"""Loops that training is compared with, with the same net and optimizer: a bare loop and plain Lightning; and a probe
that lets them take turns with the steps of a training run."""

import contextlib
import copy
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
import torch.distributed as dist
import torch.nn.functional as F
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torchmetrics.classification import MulticlassAccuracy

from imagenet_ddp.benchmark.probe import SETTLE, Probe, Ready
from imagenet_ddp.training.step_timer import synchronize
from imagenet_ddp.training.trial_step import AUTOCAST


class OneLayer(nn.Sequential):
    """A net with negligible computation, whose step time is almost only the host's overhead."""

    def __init__(self, num_classes: int):
        super().__init__(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, num_classes))


class BareLoop:
    """A hand-written training loop on copies of the net and optimizer of a trainer that is about to start.

    Each step does the same work as the trainer's, without gradient clipping or fp16. It copies uint8 images to the
    device, flips and normalises them, runs the forward and backward passes in the same precision and memory format, and
    steps the optimizer. If there is a process group, the net is wrapped in a plain DistributedDataParallel.
    """

    def __init__(self, trainer: L.Trainer, module: Any, batches: Sequence[Mapping[str, Any]]):
        net = module.net
        self.net, self.optimizer = copy.deepcopy((net, trainer.optimizers[0]))
        self.net.train()
        self.batches = batches
        self._device = module.device
        self._autocast = AUTOCAST.get(str(trainer.precision))
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        transform = data.eval_transform
        self._scale = torch.tensor([255 * std for std in transform.std], device=self._device).view(3, 1, 1)
        self._shift = torch.tensor([255 * mean for mean in transform.mean], device=self._device).view(3, 1, 1)
        convolution = next((weight for weight in self.net.parameters() if weight.dim() == 4), None)
        is_last = convolution is not None and convolution.is_contiguous(memory_format=torch.channels_last)
        self._format = torch.channels_last if is_last else torch.contiguous_format
        self._dtype = next(self.net.parameters()).dtype
        self._model: nn.Module = self.net
        if dist.is_initialized():
            ids = [self._device] if self._device.type == "cuda" else None
            self._model = DistributedDataParallel(self.net, device_ids=ids)

    def prepare(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the input of the net: the batch's images on the device, flipped and normalised."""
        images = batch["image"].to(self._device, non_blocking=True)
        flip = batch["flip"].to(self._device, non_blocking=True).view(-1, 1, 1, 1)
        images = torch.where(flip, images.flip(3), images).to(torch.float32, memory_format=self._format)
        return images.sub_(self._shift).div_(self._scale).to(self._dtype)

    def loss(self, batch: Mapping[str, Any]) -> Tensor:
        device = self._device.type
        images, target = self.prepare(batch), batch["target"].to(self._device, non_blocking=True)
        with torch.autocast(device, self._autocast) if self._autocast else contextlib.nullcontext():
            logits = self._model(images)
        return F.cross_entropy(logits.float(), target)

    def step(self, number: int) -> None:
        self.loss(self.batches[number % len(self.batches)]).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def turn(self, num_steps: int) -> float:
        """Run num_steps steps and return the mean seconds per step."""
        for number in range(SETTLE):
            self.step(number)
        synchronize(self._device)
        start = time.perf_counter()
        for number in range(num_steps):
            self.step(number)
        synchronize(self._device)
        return (time.perf_counter() - start) / num_steps


class _NaiveModule(L.LightningModule):
    """A LightningModule in the style of tutorials, which updates and logs two accuracies in every step. With logs=False
    it logs nothing."""

    def __init__(self, loop: BareLoop, num_classes: int, logs: bool):
        super().__init__()
        self._logs = logs
        self.net = loop.net
        self._loop = [loop]  # in a list, because the loop's net is already registered as self.net
        self.top1 = MulticlassAccuracy(num_classes)
        self.top5 = MulticlassAccuracy(num_classes, top_k=min(5, num_classes))

    def training_step(self, batch: Mapping[str, Any], batch_idx: int) -> Tensor:
        logits, target = self.net(self._loop[0].prepare(batch)), batch["target"]
        loss = F.cross_entropy(logits.float(), target)
        if not self._logs:
            return loss
        self.top1(logits, target)
        self.top5(logits, target)
        self.log("train/loss", loss, prog_bar=True)
        self.log("train/top1", self.top1, on_step=True, on_epoch=False, prog_bar=True)
        self.log("train/top5", self.top5, on_step=True, on_epoch=False, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self._loop[0].optimizer


class _Clock(L.Callback):
    """Time num_steps steps of an epoch after its first SETTLE steps, including everything that happens between them."""

    def __init__(self) -> None:
        self.num_steps, self.step_s = 0, 0.0

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx in (SETTLE, SETTLE + self.num_steps):
            synchronize(pl_module.device)
            now = time.perf_counter()
            self.step_s = now if batch_idx == SETTLE else (now - self.step_s) / self.num_steps


class NaiveLightning:
    """A loop in plain Lightning with two accuracies, a progress bar and CSVLogger. With logs=False, only Lightning's
    loop remains. Each turn is one epoch of the same Trainer."""

    def __init__(self, trainer: L.Trainer, module: Any, loop: BareLoop, folder: Path, *, logs: bool):
        self._module, self._clock = _NaiveModule(loop, module.net[-1].out_features, logs), _Clock()
        self._batches, device = loop.batches, module.device
        self._trainer = L.Trainer(
            accelerator=device.type,
            devices=1 if device.type == "cpu" else [device.index or 0],
            precision=trainer.precision,
            max_epochs=0,
            log_every_n_steps=trainer.log_every_n_steps,  # type: ignore[attr-defined]
            callbacks=[self._clock, *([TQDMProgressBar()] if logs else [])],
            logger=CSVLogger(folder) if logs else False,
            enable_progress_bar=logs,
            enable_checkpointing=False,
            enable_model_summary=False,
        )

    def turn(self, num_steps: int) -> float:
        """Run num_steps steps and return the mean seconds per step."""
        self._clock.num_steps = num_steps
        assert self._trainer.fit_loop.max_epochs is not None
        self._trainer.fit_loop.max_epochs += 1
        with (
            Path(os.devnull).open("w", encoding="utf-8") as sink,
            contextlib.redirect_stdout(sink),
            contextlib.redirect_stderr(sink),
        ):
            self._trainer.fit(self._module, Ready([*map(dict, self._batches)], SETTLE + num_steps + 1))
        return self._clock.step_s


class FirstStep(Probe):
    """Also record when the first step ended."""

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        super().on_train_batch_end(trainer, *args, **kwargs)
        self.found.setdefault("first_step_at", time.time())


class Alternating(Probe):
    """Time the steps of a training run on batches in memory in turns with other loops, so that other work on the
    machine affects all of them. against: "bare" (BareLoop), "naive" (NaiveLightning), "loop" (NaiveLightning that logs
    nothing). counts: also count the collectives of the steps, of a run of several ranks against a bare loop."""

    def __init__(self, out: str, *, against: Sequence[str], counts: bool = False, **options: Any):
        super().__init__(out, ready=True, **options)
        self._against, self._counts = tuple(against), counts
        self._others: dict[str, Any] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for name in self._against:
            loop: Any = BareLoop(trainer, pl_module, self.batches)
            if name != "bare":
                loop = NaiveLightning(trainer, pl_module, loop, self.out.parent, logs=name == "naive")
            self._others[name] = loop
        self.found["others_s"] = {name: [] for name in self._against}
        super().on_train_start(trainer, pl_module)

    def measure_turn(self, device: torch.device) -> Iterator[None]:
        for name, other in self._others.items():
            self.found["others_s"][name].append(other.turn(self.steps))
        if not self._counts:
            yield from super().measure_turn(device)
            return
        with profile(activities=[ProfilerActivity.CPU], acc_events=True) as ours:
            yield from super().measure_turn(device)
        with profile(activities=[ProfilerActivity.CPU], acc_events=True) as of_bare:
            for number in range(SETTLE + self.steps):
                self._others["bare"].step(number)
        self.found["collectives"] = {"ours": _collectives(ours), "bare": _collectives(of_bare)}


def _collectives(profiled: profile) -> dict[str, int]:
    """Count the calls of each collective operation in torch's dispatcher, which also sees the calls from
    DistributedDataParallel's C++ code."""
    return dict(Counter(event.name for event in profiled.events() or () if event.name.startswith("c10d::")))
