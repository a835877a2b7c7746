"""Write a model card, which contains only facts about the run, with the YAML header that huggingface_hub reads."""

import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import yaml

from imagenet_ddp.config.figures import START
from imagenet_ddp.config.paths import HUB
from imagenet_ddp.config.schema.export import ExportConfig
from imagenet_ddp.data.transforms import EvalTransform, mean_colour
from imagenet_ddp.export import timm_config
from imagenet_ddp.export.program import templates
from imagenet_ddp.exported.formats.registry import format_of
from imagenet_ddp.launch.stored_config import data_name
from imagenet_ddp.launch.trained_model import TrainedModel
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.runs.read_results import read_results
from imagenet_ddp.system.files import contains
from imagenet_ddp.system.text import class_list, percent, printable, without_secrets

_PROGRAM = "| Program | imagenet_ddp "  # followed by the version; this row identifies a file as a model card
_VIEWS = {
    1: "no",
    2: "the image and its mirror image",
    4: "the image, mirrored, upside down, and both",
    8: "the image in all eight orientations",
}


def text(config: ExportConfig, trained: TrainedModel, metadata: Mapping[str, Any], file: str, program: str) -> str:
    """Return the model card, rendered from the template card.md. config: the resolved options.
    metadata, file: of the exported file. program: result of program.text."""
    evaluation, model, seen = _evaluation(config, trained, metadata), config.model, metadata["eval_transform"]
    num_classes, size = len(metadata["classes"]), seen["image_size"]
    kind, transform = format_of(config), EvalTransform.of_stored(seen)
    accuracies = {k: evaluation[f"val/top{k}"] for k in (1, 5) if f"val/top{k}" in evaluation and k < num_classes}
    contents, data = trained.contents, "unknown"
    if contents:  # what the net was trained on, whatever was typed for the comparison
        data = data_name(contents["config"]["data"])
    inputs = {
        "inside": "uint8 (batch, 3, height, width), RGB, of any size; the model resizes, crops and normalises it",
        "normalise": f"uint8 (batch, 3, {size}, {size}), RGB; the model normalises it",
    }
    outside = f"float32 (batch, 3, {size}, {size}), RGB, normalised"
    timm_name = timm_config.architecture(model) if config.push else None
    library = "timm" if timm_name else kind.library_name
    environment = templates()
    environment.filters |= {"percent": percent, "cell": _cell}
    card = environment.get_template("card.md").render(
        head=yaml.safe_dump(_head(library, metadata, accuracies, data), sort_keys=False, allow_unicode=True),
        model=model, file=file, metadata=metadata, contents=contents, seen=seen, size=size, data=data,
        labels=class_list(metadata["labels"], 10),
        input=inputs.get(metadata["preprocessing"], outside), normalised=metadata["preprocessing"] not in inputs,
        optimizer=config.optim.name, accuracies=accuracies, num_images=evaluation.get("num_val_images"),
        program=_PROGRAM, program_text=program, repository=(config.push or "").removeprefix(HUB), timm_name=timm_name,
        start=contents.get("start", START),
        not_in_timm=timm_config.not_in_timm(metadata), views=_VIEWS[transform.views], fill=mean_colour(transform.mean),
    )  # fmt: skip
    return without_secrets(card)


def is_of(path: Path, file: str) -> bool:
    """Return whether a card that export wrote is that of a model file of this name."""
    return contains(path, f"| File | {_cell(file)} |")


def _cell(text: str) -> str:
    """Return text of a checkpoint, whose author may be anybody, as text in a table of Markdown."""
    return escape(printable(text), quote=False).replace("|", "\\|")


def is_card(path: Path) -> bool:
    """Return whether the file is a model card that export wrote."""
    return contains(path, f"\n{_PROGRAM}")


def _evaluation(config: ExportConfig, trained: TrainedModel, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of this checkpoint: from its evaluation in the run folder if there is one, else from its
    training; {} if the file prepares images in another way, such as at another size, which changes the accuracy."""
    if metadata["eval_transform"] != trained.contents.get("eval_transform"):
        return {}
    if config.checkpoint is not None:
        checkpoint = Path(config.checkpoint).resolve()
        run_dir = CheckpointStore.run_dir_of(checkpoint) or checkpoint.parent.parent
        file = run_dir / "evaluation" / "evaluation.json"
        found = read_results(file)
        # an evaluation from before the checkpoint was written is that of an earlier one of this name
        if found.get("checkpoint") == str(checkpoint) and file.stat().st_mtime >= checkpoint.stat().st_mtime:
            return found
    if metadata["top1"] is None:
        return {}
    return {"val/top1": metadata["top1"], "num_val_images": metadata["num_val_images"]}


def _head(library: str, metadata: Mapping[str, Any], accuracies: Mapping[int, float], data: str) -> dict[str, Any]:
    head: dict[str, Any] = {
        "library_name": library,
        "pipeline_tag": "image-classification",
        "tags": ["image-classification"],
        "metrics": ["accuracy"],
    }
    if re.fullmatch(r"\w[\w.-]*", data):  # the hub refuses a card with another name here
        head["datasets"] = [data]
    if metadata["license"]:
        head["license"] = metadata["license"]
    figures = [{"type": "accuracy", "name": f"top-{k}", "value": round(value, 4)} for k, value in accuracies.items()]
    if figures:
        result = {
            "task": {"type": "image-classification"},
            "dataset": {"name": data, "type": data, "split": "validation"},
            "metrics": figures,
        }
        head["model-index"] = [{"name": metadata["title"], "results": [result]}]
    return head
