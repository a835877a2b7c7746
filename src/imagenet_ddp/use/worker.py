"""Evaluate in the process of a rank. Does not import torch before the ranks meet."""

from typing import TYPE_CHECKING

from imagenet_ddp.distributed.place import Place
from imagenet_ddp.launch.job import Job
from imagenet_ddp.launch.ranks import make_plan, met_ranks
from imagenet_ddp.runs.signals import exit_on_signal
from imagenet_ddp.system.process import import_torch

if TYPE_CHECKING:
    from imagenet_ddp.distributed.meet import Meeting


def evaluate(place: Place, job: Job, meeting: "Meeting | None" = None) -> float:
    """Evaluate in this process; return the top-1, a fraction."""
    exit_on_signal()
    with met_ranks(place, job.config, meeting) as world:
        with import_torch():
            from imagenet_ddp.use import evaluate as engine_evaluate

        return engine_evaluate.run(job, make_plan(job, world), world)
