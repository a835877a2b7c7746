"""Declare the keys of prepare."""

from dataclasses import field
from typing import Annotated, Any

from omegaconf import MISSING

from imagenet_ddp.config.schema.purpose import Purpose
from imagenet_ddp.config.schema.run import FOLDER_NAME, CommonConfig
from imagenet_ddp.config.section import Section
from imagenet_ddp.config.validators import AUTO, Example, choice, integer, number


class PrepareOptions(Section):
    name: Annotated[
        str,
        choice("imagenet", "pack", "import", "check", "relabel"),
        "imagenet: extract ImageNet's archives; pack: write packed images; import: the same, of Parquet or tar files; "
        "check: decode every image; relabel: correct labels, or give them, as a list says.",
    ] = MISSING
    num_workers: Annotated[
        Any, AUTO | integer(1), "pack, import, check: number of processes; auto: one per CPU core."
    ] = "auto"
    timeout_s: Annotated[
        float, number(above=0), "pack, import, check: seconds after which an image counts as unreadable."
    ] = 60.0
    short_side: Annotated[int, integer(0), "pack, import: largest short side in pixels; 0: the original size."] = 256
    quality: Annotated[int, integer(1, 100), "pack, import: JPEG quality."] = 90
    form: Annotated[str, choice("jpeg", "raw"), "pack, import: store images as jpeg, or raw as uint8 pixels."] = "jpeg"
    shard_mib: Annotated[int, integer(1), "pack, import: approximate size of one file in MiB."] = 64


class PrepareConfig(CommonConfig):
    name: Annotated[str, FOLDER_NAME, Example("my_run"), "check: the report is in runs/<name>/check_<time>."] = (
        "${data.name}"
    )
    prepare: PrepareOptions = field(default_factory=PrepareOptions)
    archive_dir: Annotated[str | None, "imagenet, import: folder of the archives."] = None
    labels: Annotated[
        str | None,
        Example("FILE.csv"),
        "import: table with the columns path and label, for tar files without class folders; null: ImageNet's devkit "
        "or Kaggle's list in archive_dir.",
    ] = None
    names: Annotated[
        str | None, Example("FILE"), "import: names of the classes, one per line; null: those in the Parquet files."
    ] = None
    decisions: Annotated[
        str | None, "relabel: list of a check, or of predict's label_next, with your decisions, CSV."
    ] = None
    unlabelled: Annotated[
        str | None,
        Example("FOLDER"),
        "relabel: folder of images without labels, which the list may move into the class folders.",
    ] = None
    undo: Annotated[bool, "relabel: take the decisions of the list back."] = False
    out: Annotated[str | None, "Folder to write."] = None

    @property
    def purpose(self) -> Purpose:
        return {"check": Purpose.CHECK, "relabel": Purpose.RELABEL}.get(self.prepare.name, Purpose.TRAIN)
