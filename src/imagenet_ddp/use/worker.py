"""Evaluate, or compute features, in the process of one rank. Does not import torch before the ranks meet."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from imagenet_ddp.distributed.place import Place
from imagenet_ddp.launch.job import Job
from imagenet_ddp.launch.ranks import met_ranks, plan_process, with_checkpoint
from imagenet_ddp.runs.signals import exit_on_signal
from imagenet_ddp.system.process import import_torch

T = TypeVar("T")


def evaluate(place: Place, job: Job, facts: Mapping[str, Any]) -> float:
    """Evaluate in this process; return the score, such as top-1 as a fraction. facts: see meet_ranks."""

    def imported() -> Callable[..., float]:
        from imagenet_ddp.use.evaluate import run

        return run

    return _run(imported, place, job, facts)


def features(place: Place, job: Job, facts: Mapping[str, Any]) -> int:
    """Compute features in this process; return the number of images. facts: see meet_ranks."""

    def imported() -> Callable[..., int]:
        from imagenet_ddp.use.feature_pass import run

        return run

    return _run(imported, place, job, facts)


def _run(imported: Callable[[], Callable[..., T]], place: Place, job: Job, facts: Mapping[str, Any]) -> T:
    """Meet the other ranks, and run. imported: imports torch, and returns a function of (job, plan, world)."""
    exit_on_signal()
    with met_ranks(place, job.config, facts, job=job) as world:
        with import_torch():
            run = imported()
        job = with_checkpoint(job, world)
        return run(job, plan_process(job, world), world)
