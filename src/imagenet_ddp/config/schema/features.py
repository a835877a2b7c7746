"""Declare the keys of features."""

from typing import Annotated

from imagenet_ddp.config.schema.purpose import Purpose
from imagenet_ddp.config.schema.run import TrainedConfig
from imagenet_ddp.config.validators import Example, PerMachine, matching


class FeaturesConfig(TrainedConfig):
    out: Annotated[
        str | None,
        matching(r"(?s).+\.(npz|parquet)", "a file that ends in .npz or .parquet"),
        Example("features.npz"),
        PerMachine(),
        "Also write the file here; null: only in runs/features, where the other commands find it.",
    ] = None

    @property
    def purpose(self) -> Purpose:
        return Purpose.CHECK
