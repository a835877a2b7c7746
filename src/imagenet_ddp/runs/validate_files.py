"""Find mistakes in the options for the files that predict and export read and write. Does not import torch."""

import os
import shlex
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from imagenet_ddp.system.paths import IMAGE_EXTENSIONS, describe_path, not_writable_reason
from imagenet_ddp.system.text import install

EXTENSIONS = {"onnx": ".onnx", "torch_export": ".pt2", "safetensors": ".safetensors"}
CARD = "README.md"
# Suffixes of model files, which predict reads and so must not write.
MODELS = (*EXTENSIONS.values(), ".ckpt", ".pt", ".pth")
_PACKAGES = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "safetensors": ("safetensors",)}


def export_path(config: Mapping[str, Any]) -> Path:
    """Return the path of the file that export writes."""
    if config["out"] is not None:
        return Path(config["out"])
    folder = Path(config["checkpoint"] or "model").parent
    run_dir = folder.parent if folder.name == "checkpoints" else folder
    return run_dir / "export" / f"model{'_int8' if config['int8'] else ''}{EXTENSIONS[config['format']]}"


def validate_predict(config: Mapping[str, Any]) -> list[str]:
    found = []
    if str(config["checkpoint"]).endswith(EXTENSIONS["onnx"]):
        found += _packages("checkpoint=*.onnx", "onnx", "onnxruntime")
    if config.get("explain") is not None:
        if not str(config["out"]).lower().endswith(".png"):
            found.append(
                f"explain={config['explain']} needs a contact sheet, got out={config['out']}. Hint: set out=sheet.png."
            )
        if str(config["checkpoint"]).endswith((".onnx", ".pt2")):
            found.append("explain needs a checkpoint: exported files have no gradients. Hint: leave explain out.")
    return found + (_predictions(config) if config.get("out") is not None else [])


def _predictions(config: Mapping[str, Any]) -> list[str]:
    out, example = Path(config["out"]), f"predictions.{'jsonl' if config['format'] == 'jsonl' else 'csv'}"
    if found := _out(config["out"], example):
        return found
    checkpoint = Path(config["checkpoint"] or "")
    if out.exists() and checkpoint.exists() and out.samefile(checkpoint):
        return [f"out must be another file than the checkpoint, got out={out} for both. Hint: set out={example}."]
    suffix = out.suffix.lower()
    if suffix in MODELS or (suffix in IMAGE_EXTENSIONS and suffix != ".png"):  # *.png is a contact sheet
        kind = "a model" if suffix in MODELS else "an image"
        return [
            f"out must be a table such as {example} or a contact sheet (*.png), got {out}, the name of {kind}. "
            f"Hint: set out={example}."
        ]
    return []


def validate_export(config: Mapping[str, Any]) -> list[str]:
    kind = config["format"]
    if kind not in EXTENSIONS:  # reported with the other keys
        return []
    found = _packages(f"format={kind}", kind, *_PACKAGES.get(kind, ()))
    if kind == "safetensors":
        found += [
            f"{key} needs a format with a graph, but format=safetensors stores weights only. Hint: leave {key} out."
            for key in ("preprocessing", "batch_size")
            if config[key] is not None
        ]
    if config["int8"] is True and kind != "onnx":
        found.append(f"int8=true needs format=onnx, got format={kind}. Hint: set format=onnx, or int8=false.")
    return found + _export_out(config)


def _export_out(config: Mapping[str, Any]) -> list[str]:
    path, suffix = export_path(config), EXTENSIONS[config["format"]]
    if config["out"] is None and (reason := not_writable_reason(path.parent.absolute())):
        return [f"the export folder must be writable, but {reason}. Hint: set out=FOLDER/model{suffix}."]
    found = _out(config["out"], f"model{suffix}") if config["out"] is not None else []
    if path.suffix != suffix and not found:
        found.append(f"out must end in {suffix}, got {path.name}. Hint: set out={path.with_suffix(suffix)}.")
    if not found and path.exists() and not config["overwrite"]:
        found.append(
            f"out must be a new file, but {describe_path(path)} exists. Hint: set overwrite=true, or out=FILE."
        )
    return found


def _packages(what: str, extra: str, *names: str) -> list[str]:
    missing = [name for name in names if find_spec(name) is None]
    requirement = f"imagenet_ddp[{extra}]" if extra == "onnx" else extra
    if not missing:
        return []
    return [f"{what} needs packages that are not installed: {', '.join(missing)}. Hint: run `{install(requirement)}`."]


def _out(out: str, example: str) -> list[str]:
    path, hint = Path(out), f"set out={example}"
    folder = path.parent
    if path.is_dir():
        what = f"{describe_path(path)} is a folder"
    elif not folder.is_dir():
        reason = not_writable_reason(folder.absolute())
        what = reason or f"the folder {describe_path(folder)} does not exist"
        if not reason and not out.startswith("~"):  # no shell expands ~ after "out="; a folder ~ is not meant
            hint = f"run `{shlex.join(['mkdir', '-p', str(folder)])}`, or {hint}"
    elif path.exists() and not os.access(path, os.W_OK):
        what = f"{describe_path(path)} is not writable"
    elif (path.is_file() or not path.exists()) and not os.access(folder, os.W_OK):  # a file is written beside it
        what = f"the folder {describe_path(folder)} is not writable"
    else:
        return []
    return [f"out must be the path of a writable file, but {what}. Hint: {hint}."]
