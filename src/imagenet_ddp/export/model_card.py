"""Write a model card, which contains only facts about the run, with the YAML header that huggingface_hub reads."""

import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from imagenet_ddp.config.paths import HUB
from imagenet_ddp.config.schema.commands import ExportConfig
from imagenet_ddp.data.transforms import EvalTransform, mean_colour
from imagenet_ddp.export import timm_config
from imagenet_ddp.exported.formats import KEY, format_of
from imagenet_ddp.launch.stored_config import data_name, model_title
from imagenet_ddp.launch.trained_model import TrainedModel
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.system.files import read_mapping
from imagenet_ddp.system.text import class_list, percent, without_secrets

_PROGRAM = "| Program | imagenet_ddp "  # followed by the version; this row identifies a file as a model card
_VIEWS = {
    1: "no",
    2: "the image and its mirror image",
    4: "the image, mirrored, upside down, and both",
    8: "the image in all eight orientations",
}


def text(config: ExportConfig, trained: TrainedModel, metadata: Mapping[str, Any], file: str) -> str:
    """Return the model card, rendered from the template card.md. config: the resolved options.
    metadata: the metadata of the exported file. file: name of that file."""
    evaluation, model, seen = _evaluation(config, metadata), config.model, metadata["eval_transform"]
    num_classes, size = len(metadata["classes"]), seen["image_size"]
    kind, transform = format_of(config), EvalTransform.of_stored(seen)
    accuracies = {k: evaluation[f"val/top{k}"] for k in (1, 5) if f"val/top{k}" in evaluation and k < num_classes}
    contents, data, title = trained.contents, "unknown", trained.origin
    if contents:
        source = contents["config"]["data"]  # what the net was trained on, whatever was typed for the comparison
        data, title = data_name(source), model_title(model, source)
    inputs = {
        "inside": "uint8 (batch, 3, height, width), RGB, of any size; the model resizes, crops and normalises it",
        "normalise": f"uint8 (batch, 3, {size}, {size}), RGB; the model normalises it",
    }
    outside = f"float32 (batch, 3, {size}, {size}), RGB, normalised"
    timm_name = timm_config.architecture(model) if config.push else None
    net, libraries = "", list(kind.card_imports)
    if not kind.has_graph and not (model["_target_"] or model["blur_pool"] or model["args"]):
        maker = {"torchvision": "torchvision.models.get_model", "timm": "timm.create_model"}[model["library"]]
        net = f'{maker}("{model["name"]}", num_classes={num_classes})'
        libraries.append(model["library"])
    library = "timm" if timm_name else kind.library_name
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["percent"] = percent
    code = environment.from_string(kind.card_code).render(
        file=file, key=KEY, net=net, has_familiarity=metadata["familiarity_threshold"] is not None
    )
    card = environment.get_template("card.md").render(
        head=yaml.safe_dump(_head(library, metadata, accuracies, title, data), sort_keys=False, allow_unicode=True),
        title=title, model=model, metadata=metadata, contents=contents, seen=seen, size=size, data=data, file=file,
        labels=escape(class_list(metadata["labels"], 10), quote=False).replace("|", "\\|"),
        input=inputs.get(metadata["preprocessing"], outside), normalised=metadata["preprocessing"] not in inputs,
        optimizer=config.optim.name, accuracies=accuracies, num_images=evaluation.get("num_val_images"),
        program=_PROGRAM, has_graph=kind.has_graph, net=net, imports=sorted(["numpy as np", *libraries]), code=code,
        repository=(config.push or "").removeprefix(HUB), timm_name=timm_name,
        not_in_timm=timm_config.not_in_timm(metadata), views=_VIEWS[transform.views], fill=mean_colour(transform.mean),
    )  # fmt: skip
    return without_secrets(card)


def is_card(path: Path) -> bool:
    """Return whether the file is a model card that export wrote."""
    try:
        return f"\n{_PROGRAM}" in path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _evaluation(config: ExportConfig, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of this checkpoint: from its evaluation in the run folder if there is one, else from its
    training."""
    if config.checkpoint is not None:
        checkpoint = Path(config.checkpoint).resolve()
        run_dir = CheckpointStore.run_dir_of(checkpoint) or checkpoint.parent.parent
        file = run_dir / "evaluation" / "evaluation.json"
        found = read_mapping(file)
        # an evaluation from before the checkpoint was written is that of an earlier one of this name
        if found.get("checkpoint") == str(checkpoint) and file.stat().st_mtime >= checkpoint.stat().st_mtime:
            return found
    return {} if metadata["top1"] is None else {"val/top1": metadata["top1"]}


def _head(
    library: str, metadata: Mapping[str, Any], accuracies: Mapping[int, float], title: str, data: str
) -> dict[str, Any]:
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
        head["model-index"] = [{"name": title, "results": [result]}]
    return head
