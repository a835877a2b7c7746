"""Write a model card with the YAML header that huggingface_hub reads. It contains only facts of the run."""

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import yaml

from imagenet_ddp.system.text import percent, shorten_list

_READ = """from PIL import Image

image = Image.open("photo.jpg").convert("RGB")
"""
_READ_TURNED = """from PIL import Image, ImageOps

image = ImageOps.exif_transpose(Image.open("photo.jpg")).convert("RGB")
"""
_CROP = """image = image.resize([side * {resize} // min(image.size) for side in image.size], Image.{interpolation})
left, top = (round((side - {size}) / 2) for side in image.size)
image = image.crop((left, top, left + {size}, top + {size}))
"""
_ARRAY = "batch = np.asarray(image).transpose(2, 0, 1)[None]  # uint8 (1, 3, height, width)\n"
_NORMALISE = (
    "batch = ((batch / 255 - np.reshape({mean}, (3, 1, 1))) / np.reshape({std}, (3, 1, 1))).astype(np.float32)\n"
)
_MIRROR = "batch = np.concatenate([batch, batch[..., ::-1]])  # and its mirror image\n"
_SOFTMAX = "output = np.exp(output - output.max())\noutput /= output.sum()\n"
_TOP = """for position in output.argsort()[::-1][:5]:
    print(metadata["labels"][position], output[position])
"""
_RUN = {
    "onnx": """session = onnxruntime.InferenceSession("{file}")
metadata = json.loads(session.get_modelmeta().custom_metadata_map["imagenet_ddp"])
output = session.run(None, {{"images": batch}})[0][0]
""",
    "torch_export": """extra = {{"imagenet_ddp": ""}}
program = torch.export.load("{file}", extra_files=extra)
metadata = json.loads(extra["imagenet_ddp"])
output = program.module()(torch.tensor(batch))[0].detach().numpy()
""",
    "safetensors": """with safetensors.safe_open("{file}", "pt") as file:
    metadata = json.loads(file.metadata()["imagenet_ddp"])
    weights = {{name: file.get_tensor(name) for name in file.keys()}}
net = {net}
net.load_state_dict(weights)
with torch.no_grad():
    output = net.eval()(torch.tensor(batch)).mean(0).numpy()
""",
}
_PROGRAM = "| Program | imagenet_ddp "  # and the version; the row by which a card is known
_IMPORTS = {"onnx": ["onnxruntime"], "torch_export": ["torch"], "safetensors": ["safetensors", "torch"]}


def text(config: Mapping[str, Any], contents: Mapping[str, Any], metadata: Mapping[str, Any], file: str) -> str:
    """Return the model card. config, contents: of the checkpoint; metadata: of the exported file; file: its name."""
    evaluation = _evaluation(config, metadata)
    title = f"{config['model']['name']} ({Path(file).stem})"
    head = yaml.safe_dump(_head(config, metadata, evaluation, title), sort_keys=False, allow_unicode=True)
    rows = [f"| {key} | {value} |" for key, value in _facts(config, contents, metadata, evaluation).items()]
    rows.append(f"{_PROGRAM}{metadata['version']} |")
    parts = ["---", head.rstrip(), "---", "", f"# {title}", "", "| | |", "|---|---|", *rows, "", "## Use", ""]
    if code := _code(config, metadata, file):
        parts += ["```python", code.rstrip(), "```"]
    else:
        parts += [f"Weights of `{config['model']['_target_'] or config['model']['name']}`, to load into that net."]
    return "\n".join([*parts, ""])


def is_card(path: Path) -> bool:
    """Return whether the file was written by export."""
    try:
        return f"\n{_PROGRAM}" in path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _evaluation(config: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of this checkpoint: those of `evaluate` in the run folder, else those of its training. An int8
    file only has its own."""
    if config["int8"]:
        found = metadata["comparison"]["int8"]
        return {"val/top1": found["top1"][1], "num_val_images": found["num_images"]} if found["top1"] else {}
    checkpoint = Path(config["checkpoint"]).resolve()
    for name in ("evaluation/evaluation.json", "summary.json"):
        try:
            found = json.loads((checkpoint.parent.parent / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        own = found.get("checkpoint") == str(checkpoint) or (
            "checkpoint" not in found and metadata["top1"] is not None and found.get("val/top1") == metadata["top1"]
        )
        if own:
            return found
    return {} if metadata["top1"] is None else {"val/top1": metadata["top1"]}


def _head(
    config: Mapping[str, Any], metadata: Mapping[str, Any], evaluation: Mapping[str, Any], title: str
) -> dict[str, Any]:
    data = _data_name(config)
    head: dict[str, Any] = {
        "library_name": "onnx" if config["format"] == "onnx" else "pytorch",
        "pipeline_tag": "image-classification",
        "tags": ["image-classification"],
        "datasets": [data],
        "metrics": ["accuracy"],
    }
    if metadata["license"]:
        head["license"] = metadata["license"]
    figures = [
        {"type": "accuracy", "name": f"top-{k}", "value": round(evaluation[f"val/top{k}"], 4)}
        for k in (1, 5)
        if f"val/top{k}" in evaluation and k < len(metadata["classes"])
    ]
    if figures:
        result = {
            "task": {"type": "image-classification"},
            "dataset": {"name": data, "type": data, "split": "validation"},
            "metrics": figures,
        }
        head["model-index"] = [{"name": title, "results": [result]}]
    return head


def _facts(
    config: Mapping[str, Any], contents: Mapping[str, Any], metadata: Mapping[str, Any], evaluation: Mapping[str, Any]
) -> dict[str, str]:
    model, seen = config["model"], metadata["eval_transform"]
    inputs = {
        "inside": "uint8 (batch, 3, height, width), RGB, of any size; resized, cropped and normalised inside",
        "normalise": f"uint8 (batch, 3, {seen['image_size']}, {seen['image_size']}), RGB; normalised inside",
    }
    outside = f"float32 (batch, 3, {seen['image_size']}, {seen['image_size']}), RGB, normalised"
    logits = metadata["preprocessing"] not in inputs
    labels = escape(shorten_list(metadata["labels"], 10), quote=False).replace("|", "\\|")
    facts = {
        "Network": str(model["_target_"] or f"{model['name']} of {model['library']}"),
        "Classes": f"{len(metadata['classes'])}: {labels}",
        "Input": inputs.get(metadata["preprocessing"], outside),
        "Batch size": str(metadata["batch_size"] or "any"),
        "Output": "logits" if logits else "probabilities",
        "Preprocessing": f"short side to {seen['val_resize']} ({seen['interpolation']}, antialiased), centre crop of "
        f"{seen['image_size']}, mean {seen['mean']}, std {seen['std']}",
        "Mirrored": "mean of the logits of image and mirror image" if seen["val_mirror"] else "no",
        "Training data": f"{_data_name(config)}, {contents.get('num_train_images', 'unknown')} images",
        "Training": f"{metadata['epochs']} epochs, {config['optim']['name']}, global batch "
        f"{contents['global_batch_size']}, weights at the start: {model['weights'] or 'random'}",
    }
    for k in (1, 5):
        if (key := f"val/top{k}") in evaluation and k < len(metadata["classes"]):
            count = f" of {evaluation['num_val_images']} validation images" if "num_val_images" in evaluation else ""
            facts[f"Top-{k}"] = f"{percent(evaluation[key])}{count}"
    for name, found in metadata["comparison"].items():
        same = f"top-1 class the same in {found['num_same_top1'][1]} of {found['num_images']} {found['images']}"
        facts[f"{name} compared with the checkpoint"] = f"{same}, probabilities within {found['max_difference'][1]:.1e}"
        if found["top1"] is not None:
            facts[f"{name}: top-1 on these"] = f"{percent(found['top1'][1])}; checkpoint {percent(found['top1'][0])}"
    return facts


def _code(config: Mapping[str, Any], metadata: Mapping[str, Any], file: str) -> str:
    """Return a program that classifies photo.jpg; "" if the net is not torchvision's or timm's own."""
    kind, seen, model = config["format"], metadata["eval_transform"], config["model"]
    makers = {"torchvision": "torchvision.models.get_model", "timm": "timm.create_model"}
    libraries = list(_IMPORTS[kind])
    net = ""
    if kind == "safetensors":
        if model["_target_"] or model["blur_pool"] or model["args"]:
            return ""
        libraries.append(model["library"])
        net = f'{makers[model["library"]]}("{model["name"]}", num_classes={len(metadata["classes"])})'
    inside, normalised = metadata["preprocessing"] == "inside", metadata["preprocessing"] not in ("inside", "normalise")
    parts = ["import json\n\n", *(f"import {name}\n" for name in sorted(["numpy as np", *libraries]))]
    parts.append(_READ_TURNED if metadata["exif_orientation"] else _READ)
    parts += [] if inside else [_CROP]
    parts += [_ARRAY, *([_NORMALISE] if normalised else [])]
    if kind == "safetensors" and seen["val_mirror"]:
        parts.append(_MIRROR)
    if metadata["batch_size"]:
        parts.append(f"batch = np.repeat(batch, {metadata['batch_size']}, axis=0)\n")
    parts += [_RUN[kind], *([_SOFTMAX] if normalised else []), _TOP]
    return "".join(parts).format(
        file=file,
        net=net,
        size=seen["image_size"],
        resize=seen["val_resize"],
        interpolation=seen["interpolation"].upper(),
        mean=seen["mean"],
        std=seen["std"],
    )


def _data_name(config: Mapping[str, Any]) -> str:
    """Return only the folder's name: its path is private."""
    root = config["data"]["root"]
    return Path(root).name if root else config["data"]["name"]
