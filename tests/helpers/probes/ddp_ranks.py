"""Run one of two ranks over Gloo: python ddp_ranks.py RANK FOLDER.

The rank trains a small net once per entry of RUNS, with make_strategy and Lightning's Trainer, and writes its weights
and collectives to FOLDER/rank<RANK>.pt.
"""

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
import torch.nn.functional as F
from torch import distributed, nn
from torch.distributed import FileStore
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset

from imagenet_ddp.config.schema.distributed import StrategyConfig
from imagenet_ddp.distributed.place import Address, Place
from imagenet_ddp.strategies import ddp
from imagenet_ddp.strategies.ddp import DetectedEnvironment

BATCHES = 6
PORT = 29500  # never bound, because the ranks meet through a file
SMALL_MB = 0.02  # MiB per bucket, so small that the net has several buckets
# name -> (keys of strategy that differ from the defaults, batches per optimizer step)
RUNS: dict[str, tuple[dict[str, Any], int]] = {
    "plain": ({}, 1),
    "sent_buffers": ({"forward_sync_buffers": True}, 1),
    "accumulated": ({}, 2),
    "fp16": ({"comm_hook": "fp16"}, 1),
    "bf16": ({"comm_hook": "bf16"}, 1),
    "static_graph": ({"static_graph": True, "find_unused_parameters": True}, 1),
    "no_init_sync": ({"init_sync": False}, 1),
    "other_options": (
        {"find_unused_parameters": True, "gradient_as_bucket_view": False, "forward_sync_buffers": False,
         "bucket_cap_mb": SMALL_MB, "timeout_s": 77.0}, 1,
    ),
}  # fmt: skip
DIFFERENT_START = ("no_init_sync", "other_options")  # ranks draw different weights
START = ("net.4.weight", "net.1.running_mean")  # a weight and a buffer


class Small(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 128), nn.ReLU(),
            nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4),
        )  # fmt: skip
        dict(self.net.named_buffers())["1.running_mean"].fill_(torch.rand(()).item())
        self.unused = nn.Linear(3, 3)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


class Watch(L.Callback):
    """Record the collectives of each batch: all of them, as the profiler sees them, and those called from Python, with
    type and bytes."""

    def __init__(self) -> None:
        self.collectives: list[list[str]] = []
        self.sent: list[list[tuple[str, int]]] = []
        self.options: dict[str, Any] = {}
        self.start: list[torch.Tensor] = []
        self._all_reduce = distributed.all_reduce

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.start = [pl_module.state_dict()[name].clone() for name in START]
        model = trainer.strategy.model
        assert isinstance(model, DistributedDataParallel)
        self.options = {
            name: getattr(model, name)
            for name in ("static_graph", "find_unused_parameters", "gradient_as_bucket_view", "bucket_bytes_cap")
        }
        self.options["sync_buffers"] = model.will_sync_module_buffers()
        group = distributed.distributed_c10d._get_default_group()
        self.options["timeout"] = group._get_backend(torch.device("cpu")).options._timeout

        def counted(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.sent[-1].append((str(tensor.dtype).removeprefix("torch."), tensor.numel() * tensor.element_size()))
            return self._all_reduce(tensor, *args, **kwargs)

        distributed.all_reduce = counted

    def on_train_batch_start(self, *args: Any, **kwargs: Any) -> None:
        self.sent.append([])
        self._profile = profile(activities=[ProfilerActivity.CPU])
        self._profile.__enter__()

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self._profile.__exit__(None, None, None)
        self.collectives.append(collectives(self._profile))

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        distributed.all_reduce = self._all_reduce


def collectives(profiled: profile) -> list[str]:
    names = [event.name for event in profiled.events() or []]
    return sorted(name.removeprefix("c10d::").rstrip("_") for name in names if name.startswith("c10d::"))


def images(rank: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(rank)
    return TensorDataset(torch.randn(4 * BATCHES, 3, 8, 8, generator=generator), torch.arange(4 * BATCHES) % 4)


def train(name: str, rank: int, store: FileStore) -> dict[str, Any]:
    changed, accumulate = RUNS[name]
    torch.manual_seed(rank if name in DIFFERENT_START else 0)
    model = Small()
    if not (changed.get("find_unused_parameters") or changed.get("static_graph")):
        del model.unused
    strategy = ddp.make_strategy(StrategyConfig(**changed), 2, store, kind="cpu")
    place = Place(rank=rank, local_rank=rank, world_size=2, local_world_size=2, address=Address("127.0.0.1", PORT))
    watch = Watch()
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy=strategy, plugins=[DetectedEnvironment(place)], callbacks=[watch],
        max_epochs=1, accumulate_grad_batches=accumulate, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # as callbacks/graceful_stop.py does
    trainer.fit(model, DataLoader(images(rank), batch_size=4))
    return {
        "weights": torch.cat([parameter.detach().flatten() for parameter in model.net.parameters()]),
        "start": watch.start,
        "collectives": watch.collectives,
        "sent": watch.sent,
        "options": watch.options,
    }


def bare(rank: int, accumulate: int) -> dict[str, Any]:
    """Train in the same way with DistributedDataParallel alone, without sending buffers."""
    torch.manual_seed(0)
    net = Small().net
    without: Any = {"forward_sync_buffers" if "forward_sync_buffers" in ddp.KNOWN else "broadcast_buffers": False}
    wrapped = DistributedDataParallel(net, gradient_as_bucket_view=True, **without)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05)
    counted = []
    for number, (image, target) in enumerate(DataLoader(images(rank), batch_size=4)):
        steps = (number + 1) % accumulate == 0
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            with nullcontext() if steps else wrapped.no_sync():
                (F.cross_entropy(wrapped(image), target) / accumulate).backward()
            if steps:
                optimizer.step()
                optimizer.zero_grad()
        counted.append(collectives(profiled))
    return {"weights": torch.cat([p.detach().flatten() for p in net.parameters()]), "collectives": counted}


def main() -> None:
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    store = FileStore(str(folder / "store"), 2)  # a port that is free now may be in use when it is bound
    seen = {}
    for name in RUNS:
        if distributed.is_initialized() and "timeout_s" in RUNS[name][0]:
            distributed.destroy_process_group()  # otherwise the timeout of the first run remains
            store = FileStore(str(folder / "second_store"), 2)
        seen[name] = train(name, rank, store)
    seen["bare"], seen["bare_accumulated"] = bare(rank, 1), bare(rank, 2)
    torch.save(seen, folder / f"rank{rank}.pt")
    distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # without waiting a second for threads


if __name__ == "__main__":
    main()
