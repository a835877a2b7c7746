"""Check the options of the files that predict, demo and export read and write, before torch is imported."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imagenet_ddp.config.validators import choice, expect
from imagenet_ddp.exported.formats.base import CARD, CONFIG
from imagenet_ddp.exported.formats.registry import FORMATS, format_of, graph_format
from imagenet_ddp.mistakes import Fix, Mistake, meant, must_be, setting, without
from imagenet_ddp.models.weights import hub
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.system import table_files
from imagenet_ddp.system.files import contains, describe_path, not_writable_reason
from imagenet_ddp.system.packages import missing_package

# Suffixes of model files, which predict reads and so must not write.
MODELS = (*(suffix for each in FORMATS.values() for suffix in (each.suffix, *each.also)), ".ckpt", ".pt", ".pth")
PAGE = "imagenet_ddp.predict"  # in the head of a page of predictions

# (a format, what it is for, formats in whose place it serves)
_SERVES = (
    ("onnx", "which onnxruntime runs, also on a phone",
     ("tflite", "litert", "coreml", "mlmodel", "mlpackage", "saved_model", "pb", "tf", "ncnn", "mnn", "paddle")),
    ("onnx", "from which trtexec of TensorRT builds an engine", ("engine", "tensorrt", "trt", "plan")),
    ("torch_export", "which has taken the place of TorchScript", ("torchscript", "ts", "jit")),
    ("html", "a page that classifies in a browser", ("tfjs", "js", "web", "browser")),
    ("safetensors", "which holds the weights", ("pth", "pt", "bin", "pytorch", "state_dict", "h5", "keras")),
)  # fmt: skip
_INSTEAD = {other: (name, why) for name, why, others in _SERVES for other in others}
_SAME = {"pt2": "torch_export", "exported_program": "torch_export", "fp16": "onnx_fp16", "half": "onnx_fp16",
         "ov": "openvino", "page": "html"}  # fmt: skip


def export_path(config: Mapping[str, Any]) -> Path:
    if config["out"] is not None:
        return Path(config["out"])
    checkpoint = Path(config["checkpoint"] or "model")
    folder = CheckpointStore.run_dir_of(checkpoint) or checkpoint.parent
    inside = Path("export", "hub") if config["push"] else Path("export")
    return folder / inside / f"model{format_of(config).suffix}"


def validate(config: Mapping[str, Any], verb: str) -> list[Mistake]:
    """Return the mistakes. verb: predict, demo or export."""
    if verb == "export":
        wrong = expect("format", config["format"], choice(None, *FORMATS), _other_format(str(config["format"])))
        return wrong or [*_check_export(config), *(_check_push(config) if config["push"] else [])]
    found, kind = list[Mistake](), graph_format(config["checkpoint"])
    if kind is not None and not kind.is_safe:
        what = (
            f"checkpoint must be a file that runs no code when it is read, got {config['checkpoint']}, of which "
            "torch.export.load would run code of its author"
        )
        hint = (
            "use the checkpoint that it was made of, or export that with format=onnx; in a program of your own, "
            "torch.export.load reads a file that you trust"
        )
        found.append(Mistake(what, ("checkpoint",), hint=hint))
    elif kind is not None:
        found += missing_package(f"checkpoint=*{kind.suffix}", *kind.reader_packages, requirement=kind.requirement)
    if kind is not None and config.get("label_next") is not None:
        what = f"label_next needs a checkpoint, which gives features, got {config['checkpoint']}"
        found.append(Mistake(what, ("label_next", "checkpoint"), (without("label_next"),)))
    return found + (_check_predictions(config) if config.get("out") is not None else [])


def _check_export(config: Mapping[str, Any]) -> list[Mistake]:
    kind, path = format_of(config), export_path(config)
    found = kind.missing()
    found += [
        Mistake(
            f"{key} needs a format with a graph, but format={kind.name} stores weights only",
            (key, "format"),
            (without(key),),
        )
        for key in ("preprocessing", "batch_size")
        if config[key] is not None and not kind.has_graph
    ]
    found += [
        must_be(key, f"{value} for format={kind.name}", str(config[key]), setting(f"{key}={value}"))
        for key, value in kind.only.items()
        if config[key] not in (None, value)
    ]
    found += _check_out(path, f"model{kind.suffix}")
    if path.is_dir():  # which may have no name, as `.`
        return found
    if path.suffix != kind.suffix:
        fix = _of_suffix(config, path) or meant(f"out={path.with_suffix(kind.suffix)}")
        found.append(Mistake(f"out must end in {kind.suffix}, got {path.name}", ("out", "format"), (fix,)))
    elif not config["overwrite"]:
        ways = setting("out=FILE"), setting("overwrite=true")
        files = [*kind.paths(path), *(path.with_name(name) for name in (CONFIG, CARD) if config["push"])]
        found += [
            Mistake(f"out must be a new file, but {describe_path(each)} exists", ("out",), ways)
            for each in files
            if each.is_file()
        ][:1]
    return found


def _other_format(word: str) -> Fix:
    """Return the fix of a format that is not written here. word: as typed."""
    name, why = _INSTEAD.get(word.lower(), ("onnx", ""))
    near = _SAME.get(word.lower()) or choice(*FORMATS).nearest(word)
    return meant(f"format={near}") if near and not why else setting(f"format={name}", aim=f"({why})" if why else "")


def _of_suffix(config: Mapping[str, Any], path: Path) -> Fix | None:
    """Return the fix of a file whose suffix names a format, if none is typed; None if it names none."""
    if config["format"] is not None or config["push"]:
        return None
    if kind := graph_format(path) or next((each for each in FORMATS.values() if each.suffix == path.suffix), None):
        return meant(f"format={kind.name}")
    name, why = _INSTEAD.get(path.suffix[1:].lower(), ("", ""))
    return setting(f"format={name}", f"out={path.with_suffix(FORMATS[name].suffix)}", aim=f"({why})") if name else None


def _check_push(config: Mapping[str, Any]) -> list[Mistake]:
    kind, path, found = format_of(config), export_path(config), hub.check_push()
    if kind.name != "safetensors":
        what = f"push needs format=safetensors, which timm and model.weights=hf://OWNER/NAME read, got {kind.name}"
        found.append(Mistake(what, ("format", "push"), (setting("format=safetensors"),)))
    elif path.name != f"model{kind.suffix}" and not path.is_dir():
        fix = meant(f"out={path.with_name(f'model{kind.suffix}')}")
        found.append(must_be("out", f"a file named model{kind.suffix} with push", path.name, fix))
    return found


def _check_predictions(config: Mapping[str, Any]) -> list[Mistake]:
    from imagenet_ddp.data.sources.walk import IMAGE_EXTENSIONS

    out, example = Path(config["out"]), f"predictions.{'jsonl' if config['format'] == 'jsonl' else 'csv'}"
    inputs = (Path(config[key]) for key in ("checkpoint", "images") if config.get(key))
    is_input = out.exists() and any(path.exists() and out.samefile(path) for path in inputs)
    if table_files.format_of(config["format"], config["out"]) == "html":
        if out.is_file() and not contains(out, f"<!-- {PAGE} -->"):
            fix = setting(f"out={out.with_name('predictions.html')}")
            return [must_be("out", "a new file or an earlier page of predictions", f"{out}, another page", fix)]
    elif is_input or out.suffix.lower() in (*MODELS, *IMAGE_EXTENSIONS):
        allowed, got = f"a table such as {example}", f"{out}, a model or an image"
        return [must_be("out", allowed, got, setting(f"out={example}"))]
    return _check_out(out, example)


def _check_out(path: Path, example: str) -> list[Mistake]:
    reason, instead = "" if path.exists() else not_writable_reason(path.parent), Path(example)
    if path.is_dir():
        reason, instead = f"{describe_path(path)} is a folder", path / example
    what = f"out must be a file that can be written, but {reason}"
    return [Mistake(what, ("out",), (setting(f"out={instead}"),))] if reason else []
