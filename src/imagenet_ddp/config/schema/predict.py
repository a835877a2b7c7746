"""Declare the keys of predict and demo."""

from typing import Annotated

from omegaconf import MISSING

from imagenet_ddp.config.schema.run import CHECKPOINT, TrainedConfig
from imagenet_ddp.config.validators import Example, choice, integer


class PredictConfig(TrainedConfig):
    images: Annotated[str, Example("FOLDER"), "Images: a file, a folder (searched recursively) or a pattern."] = MISSING
    out: Annotated[str | None, "File to write; null: standard output."] = None
    format: Annotated[
        str,
        choice("auto", "csv", "jsonl", "xlsx", "html", meant={"excel": "xlsx"}),
        "One row of CSV or Excel, or one line of JSON, per image, or a page with the pictures (html); auto: by the "
        "suffix of out, else csv, and words on a terminal.",
    ] = "auto"
    top_k: Annotated[int, integer(1), "Number of classes per image, most likely first."] = 5
    label_next: Annotated[
        int | None,
        integer(1),
        Example("50"),
        "Write only this many images, those to label next: first those that are like the training images, of them the "
        "uncertain, unlike each other; null: all images. prepare=relabel reads the list, or what is chosen on the "
        "page (html).",
    ] = None


class DemoConfig(TrainedConfig):
    checkpoint: Annotated[str | None, Example("FILE"), CHECKPOINT.replace(",", ", exported file,", 1)] = None
    host: Annotated[str, "Address to listen on; 0.0.0.0: the whole network can open the page."] = "127.0.0.1"
    port: Annotated[int, integer(1, 65535), "Port to listen on."] = 7860
