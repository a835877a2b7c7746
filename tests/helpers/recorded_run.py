"""Train in this process, with the typed options set up as `train` sets them up, and record each step."""

import copy
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from helpers import plain_loop
from helpers.plans import plan_of
from torch import Tensor

from imagenet_ddp.data.mixing import Mixing
from imagenet_ddp.launch.job import Job
from imagenet_ddp.launch.world import World
from imagenet_ddp.runs.log import Log
from imagenet_ddp.runs.signals import Signals
from imagenet_ddp.training import build


@dataclass
class Recording(L.Callback):
    """What a training run did.

    epochs: the batches of each epoch as the loader returned them, with the random choices for their mixing.
    """

    start: dict[str, Tensor] = field(default_factory=dict)  # the net's state before the first step
    epochs: list[list[plain_loop.Batch]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    weight_decays: dict[str, float] = field(default_factory=dict)  # of each parameter
    end: dict[str, Tensor] = field(default_factory=dict)  # the final state, averaged if averaging is on

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        names = {id(parameter): name for name, parameter in pl_module.net.named_parameters()}
        groups = trainer.optimizers[0].param_groups
        self.weight_decays = {names[id(each)]: group["weight_decay"] for group in groups for each in group["params"]}

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.epochs.append([])

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.losses.append(outputs["loss"].item())
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])


def record(options: list[str], run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """Train with these options in this process on the CPU, and return the recording."""
    recording, log = Recording(), Log(None, 0, io.StringIO())
    plan = plan_of(*options)
    job = Job(plan.config, run_dir)
    run = build.make_run(job, plan, World(plan.place, plan.device), log, Signals())
    recording.start = copy.deepcopy(run.module.net.state_dict())
    drawn: list[Any] = []
    draw, finish = Mixing.draw, run.data.finish

    def recorded_draw(*args: Any) -> Any:
        drawn.append(draw(*args))
        return drawn[-1]

    def recorded_finish(batch: Any, *, training: bool) -> Any:
        pixels = batch["image"].clone(memory_format=torch.contiguous_format)
        flip, target = batch["flip"].clone(), batch["target"].clone()
        drawn.clear()
        finished = finish(batch, training=training)
        if training:
            mix = plain_loop.Mix(*drawn[0]) if drawn and drawn[0] else None
            recording.epochs[-1].append(plain_loop.Batch(pixels, flip, target, mix))
        return finished

    monkeypatch.setattr(Mixing, "draw", recorded_draw)
    monkeypatch.setattr(run.data, "finish", recorded_finish)
    run.trainer.callbacks.append(recording)  # type: ignore[attr-defined]
    try:
        run.trainer.fit(run.module, datamodule=run.data)
    finally:
        run.data.close()
    recording.end = {name: value.clone() for name, value in run.module.net.state_dict().items()}
    return recording
