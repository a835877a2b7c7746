"""Evaluate, or compute features, in the process of one rank. Does not import torch before the ranks meet."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from imagenet_ddp.distributed.place import Place
from imagenet_ddp.launch.job import Job
from imagenet_ddp.launch.ranks import met_ranks, plan_process, with_checkpoint
from imagenet_ddp.runs.signals import exit_on_signal
from imagenet_ddp.system.process import import_torch


def evaluate(place: Place, job: Job, facts: Mapping[str, Any]) -> float:
    """Evaluate in this process; return the score, such as top-1 as a fraction. facts: see meet_ranks."""
    return _run("evaluate", place, job, facts)


def features(place: Place, job: Job, facts: Mapping[str, Any]) -> int:
    """Compute features in this process; return the number of images. facts: see meet_ranks."""
    return _run("feature_pass", place, job, facts)


def _run(module: str, place: Place, job: Job, facts: Mapping[str, Any]) -> Any:
    """Meet the other ranks, and call run(job, plan, world) of a module of this package, which imports torch."""
    exit_on_signal()
    with met_ranks(place, job.config, facts, job=job) as world:
        with import_torch():
            run = import_module(f"imagenet_ddp.use.{module}").run
        job = with_checkpoint(job, world)
        return run(job, plan_process(job, world), world)
