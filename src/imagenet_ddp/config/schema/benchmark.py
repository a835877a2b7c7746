"""Declare the keys of benchmark."""

from dataclasses import field
from typing import Annotated

from omegaconf import MISSING

from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.config.section import Section
from imagenet_ddp.config.validators import Example, choice, integer, list_of

BENCHMARKS = ("loader", "train", "step")


class BenchmarkOptions(Section):
    name: Annotated[str, choice(*BENCHMARKS), "What to measure."] = MISSING
    num_images: Annotated[int, integer(8), "loader, train: number of training images to read."] = 500
    num_steps: Annotated[int, integer(1), "Training steps in each measurement."] = 20
    repeats: Annotated[int, integer(1), "Repetitions of each measurement; the median is reported."] = 5
    num_workers: Annotated[
        list[int] | None,
        list_of(integer(0), "a list of numbers of loader processes"),
        Example("[0,1,2]"),
        "loader: numbers to compare; null: 0, 1, 2, 4, ... up to the number of cores.",
    ] = None
    short_side: Annotated[int, integer(8), "loader: short side of the packed images in pixels."] = 256
    quality: Annotated[int, integer(1, 100), "loader: JPEG quality of the packed images."] = 90


class BenchmarkConfig(CommonConfig):
    benchmark: BenchmarkOptions = field(default_factory=BenchmarkOptions)
