"""Train, in the process of one rank. Does not import torch before the ranks meet."""

from collections.abc import Mapping
from typing import Any

from imagenet_ddp.distributed.place import Place
from imagenet_ddp.launch.job import Job
from imagenet_ddp.launch.ranks import met_ranks, plan_process, with_checkpoint
from imagenet_ddp.runs.disk_errors import folder_errors_as_run_error
from imagenet_ddp.runs.signals import Signals, raise_on_signal
from imagenet_ddp.system.process import import_torch


def train(place: Place, job: Job, facts: Mapping[str, Any]) -> float | None:
    """Train in this process; return the best score, or None without validation. facts: see meet_ranks."""
    signals = Signals(place.node_rank if place.is_worker else None).install()
    with met_ranks(place, job.config, facts, job=job) as world:
        with raise_on_signal(), import_torch():
            from imagenet_ddp.training import batch_finder, fit

        job = with_checkpoint(job, world)
        plan = plan_process(job, world)
        with raise_on_signal():
            found = batch_finder.find_batch(job, plan, world)
        if found.config != job.config:
            plan = plan_process(found, world)
        with folder_errors_as_run_error(found.run_dir):
            return fit.run(found, plan, world, signals)
