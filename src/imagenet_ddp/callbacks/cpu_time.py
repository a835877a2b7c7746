"""Measure the CPU seconds of a training process and its loader workers."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

import lightning.pytorch as L

from imagenet_ddp.data.workers import loader_workers


def cpu_s(trainer: L.Trainer) -> float:
    """Return the CPU seconds used so far by this process and its running loader workers."""
    loaders = [trainer.train_dataloader, trainer.val_dataloaders]
    workers = [worker for loader in loaders for worker in loader_workers(loader)]
    return time.process_time() + process_cpu_s(worker.pid for worker in workers)


def process_cpu_s(pids: Iterable[int]) -> float:
    """Return the total CPU seconds used so far by the running processes with these ids; 0 on systems without /proc."""
    total = 0.0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime: man 5 proc
    return total
