"""Find mistakes in the options for the files that predict, demo and export read and write. Does not import torch."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imagenet_ddp.config.validators import choice, expect
from imagenet_ddp.export.formats.registry import FORMATS, graph_format
from imagenet_ddp.runs.checkpoints import CheckpointStore
from imagenet_ddp.system.files import IMAGE_EXTENSIONS, describe_path, not_writable_reason
from imagenet_ddp.system.text import missing_package

CARD = "README.md"
# Suffixes of model files, which predict reads and so must not write.
MODELS = (*(each.suffix for each in FORMATS.values()), ".ckpt", ".pt", ".pth")


def export_path(config: Mapping[str, Any]) -> Path:
    """Return the path of the file that export writes."""
    if config["out"] is not None:
        return Path(config["out"])
    checkpoint = Path(config["checkpoint"] or "model")
    return (
        (CheckpointStore.run_dir_of(checkpoint) or checkpoint.parent)
        / "export"
        / f"model{FORMATS[config['format']].suffix}"
    )


def validate(config: Mapping[str, Any], verb: str) -> list[str]:
    """Return the mistakes. verb: predict, demo or export."""
    return _export(config) if verb == "export" else _predict(config)


def _predict(config: Mapping[str, Any]) -> list[str]:
    found = []
    kind = graph_format(config["checkpoint"])
    if kind is not None:
        found += missing_package(f"checkpoint=*{kind.suffix}", *kind.reader_packages, requirement=kind.requirement)
    return found + (_predictions(config) if config.get("out") is not None else [])


def _predictions(config: Mapping[str, Any]) -> list[str]:
    out, example = Path(config["out"]), f"predictions.{'jsonl' if config['format'] == 'jsonl' else 'csv'}"
    if found := _out(config["out"], example):
        return found
    inputs = (Path(config[key]) for key in ("checkpoint", "images") if config.get(key))
    if out.exists() and any(path.exists() and out.samefile(path) for path in inputs):
        return [f"out must be a new file, but {out} is an input of this command. Hint: set out={example}."]
    suffix = out.suffix.lower()
    if suffix in (*MODELS, *IMAGE_EXTENSIONS):
        kind = "a model" if suffix in MODELS else "an image"
        return [f"out must be a table such as {example}, got {out}, the name of {kind}. Hint: set out={example}."]
    return []


def _export(config: Mapping[str, Any]) -> list[str]:
    if found := expect("format", config["format"], choice(*FORMATS), "format=onnx"):
        return found
    kind = FORMATS[config["format"]]
    found = missing_package(f"format={kind.name}", *kind.packages, requirement=kind.requirement)
    found += [
        f"{key} needs a format with a graph, but format={kind.name} stores weights only. Hint: leave {key} out."
        for key in ("preprocessing", "batch_size")
        if config[key] is not None and not kind.has_graph
    ]
    path, suffix = export_path(config), kind.suffix
    if config["out"] is not None:
        found += _out(config["out"], f"model{suffix}")
    elif reason := not_writable_reason(path.parent):
        found.append(f"the export folder must be writable, but {reason}. Hint: set out=FOLDER/model{suffix}.")
    if path.suffix != suffix:
        found.append(f"out must end in {suffix}, got {path.name}. Hint: set out={path.with_suffix(suffix)}.")
    elif path.is_file() and not config["overwrite"]:
        found.append(
            f"out must be a new file, but {describe_path(path)} exists. Hint: set overwrite=true, or out=FILE."
        )
    return found


def _out(out: str, example: str) -> list[str]:
    path, hint = Path(out), f"set out={example}"
    if path.is_dir():
        what = f"{describe_path(path)} is a folder"
    elif not path.parent.is_dir():
        what = f"the folder {describe_path(path.parent)} does not exist"
        hint = f"run `{shlex.join(['mkdir', '-p', str(path.parent)])}`, or {hint}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        what = f"{describe_path(path)} is not writable"
    else:
        return []
    return [f"out must be the path of a writable file, but {what}. Hint: {hint}."]
