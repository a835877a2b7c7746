"""Declare the keys of tune."""

from dataclasses import field
from typing import Annotated, Any

from imagenet_ddp.config.schema.run import RunConfig
from imagenet_ddp.config.section import Section
from imagenet_ddp.config.validators import Example, choice, integer, number


class TuneOptions(Section):
    num_trials: Annotated[int, integer(1), "Trials, including pruned and failed ones."] = 20
    num_at_once: Annotated[int, integer(1), "Concurrent trials, each with its share of GPUs and CPU cores."] = 1
    sampler: Annotated[str, choice("tpe", "random"), "How options are suggested; tpe learns from trials."] = "tpe"
    num_random_trials: Annotated[int, integer(1), "tpe: random trials at the start."] = 10
    pruner: Annotated[
        str, choice("median", "none"), "median: end a trial that is below the median of earlier ones at the same epoch."
    ] = "median"
    pruner_num_trials: Annotated[int, integer(1), "Trials that must finish before any is pruned."] = 4
    pruner_num_epochs: Annotated[int, integer(1), "Epochs before a trial may be pruned."] = 3
    timeout_s: Annotated[
        float | None, number(above=0), Example("3600"), "Seconds after which no further trial starts; null: no limit."
    ] = None
    max_failures: Annotated[int, integer(1), "Consecutive failed trials that end the study."] = 3


class TuneConfig(RunConfig):
    tune: TuneOptions = field(default_factory=TuneOptions)
    search: Annotated[dict[str, Any], "Keys to search (docs/tuning.md)."] = field(default_factory=dict[str, Any])
