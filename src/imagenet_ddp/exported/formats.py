"""Define the export formats, and check the options of the files that predict, demo and export read and write. A further
format is a class here; if it needs packages, also an extra in pyproject.toml.

A command line is checked before torch is imported. The methods of the formats therefore import torch, and the packages
that the format needs, themselves.
"""

import io
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagenet_ddp.config.validators import choice, expect
from imagenet_ddp.errors import RunError
from imagenet_ddp.mistakes import Mistake, must_be, setting, without
from imagenet_ddp.models.weights import hub
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.system.files import describe_path, not_writable_reason
from imagenet_ddp.system.packages import missing_package
from imagenet_ddp.system.text import first_line

if TYPE_CHECKING:
    import onnx
    from torch import Tensor
    from torch.export import ExportedProgram

    from imagenet_ddp.exported.graph import Classifier

KEY = "imagenet_ddp"  # of the metadata of this project in a file
CARD = "README.md"
CONFIG = "config.json"  # timm's, in a repository of the hub
# (B, 3, H, W) -> [(B, num_classes)], followed by the familiarity, (B,), if the file has it
Function = Callable[["Tensor"], "Sequence[Tensor]"]


class Format(ABC):
    """One value of format=. `built` is whatever `build` returns."""

    name: str
    suffix: str
    packages: tuple[str, ...] = ()  # that write and read a file
    reader_packages: tuple[str, ...] = ()  # those that predict needs
    requirement: str = ""  # what to install for them
    has_graph = True  # False: the file has the weights alone
    is_safe = True  # False: reading a file runs code of its author, so predict and demo do not
    library_name = "pytorch"  # in the header of the model card
    card_imports: tuple[str, ...]  # of the card's program
    card_code: str  # lines of that program, a Jinja template: batch -> metadata, and output (num_classes,)

    def max_difference(self, preprocessing: str | None) -> float:
        """Return the largest difference of a probability from the checkpoint's that export accepts by default."""
        return 1e-3

    @abstractmethod
    def build(self, graph: "Classifier", batch_size: int | None) -> Any:
        """Convert the graph. batch_size: None for any size. Raises RunError if it cannot be converted."""

    @abstractmethod
    def save(self, built: Any, path: Path, metadata: str) -> None: ...

    def open(self, path: Path) -> "tuple[Function, str] | None":
        """Return (the graph on the CPU, the metadata); None if export did not write the file. Raises any exception for
        a file of another kind."""
        raise NotImplementedError(f"{self.name} has no graph")

    def read_weights(self, path: Path) -> "dict[str, Tensor]":
        """Return the weights of a file without a graph."""
        raise NotImplementedError(f"{self.name} has a graph")


class Onnx(Format):
    """A single file that includes the weights."""

    name = "onnx"
    suffix = ".onnx"
    packages = ("onnx", "onnxscript", "onnxruntime")
    reader_packages = ("onnxruntime",)
    requirement = "imagenet_ddp[onnx]"
    library_name = "onnx"
    card_imports = ("onnxruntime",)
    card_code = """\
session = onnxruntime.InferenceSession("{{ file }}")
metadata = json.loads(session.get_modelmeta().custom_metadata_map["{{ key }}"])
output = session.run(None, {"images": batch})[0][0]
"""

    def max_difference(self, preprocessing: str | None) -> float:
        return 1e-2 if preprocessing == "inside" else 1e-3  # its resize rounds some pixel values otherwise

    def build(self, graph: "Classifier", batch_size: int | None) -> "onnx.ModelProto":
        import torch

        output = "logits" if graph.preprocessing == "outside" else "probabilities"
        outputs = [output] if graph.head is None else [output, "familiarity"]
        exported = graph.export(batch_size)
        try:
            program: Any = torch.onnx.export(
                exported, dynamo=True, verbose=False, input_names=["images"], output_names=outputs
            )
        except Exception as error:  # the type depends on the operators of the net
            raise RunError(
                f"torch.onnx must support every operator of this net, but does not ({first_line(error).rstrip('.')}). "
                "Hint: set format=torch_export."
            ) from error
        model = program.model_proto
        if not batch_size:
            for value in (*model.graph.input, *model.graph.output):
                value.type.tensor_type.shape.dim[0].dim_param = "batch"
        return model

    def save(self, built: "onnx.ModelProto", path: Path, metadata: str) -> None:
        import onnx

        onnx.helper.set_model_props(built, {KEY: metadata})
        onnx.save_model(built, str(path))

    def open(self, path: Path) -> tuple[Function, str] | None:
        import onnxruntime
        import torch

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        text = session.get_modelmeta().custom_metadata_map.get(KEY)

        def run(batch: "Tensor") -> "list[Tensor]":
            return [torch.from_numpy(output) for output in session.run(None, {name: batch.numpy()})]

        return (run, text) if text else None


class OnnxFp16(Onnx):
    """The same in half precision, at half the size, for GPUs and browsers: a CPU computes in float32 anyway. The types
    of the input and the output stay."""

    name = "onnx_fp16"

    def max_difference(self, preprocessing: str | None) -> float:
        return 2e-2

    def build(self, graph: "Classifier", batch_size: int | None) -> "onnx.ModelProto":
        from onnxruntime.transformers.float16 import convert_float_to_float16

        model = super().build(graph, batch_size)
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # one for each weight close to 0
            return convert_float_to_float16(model, keep_io_types=True)


class TorchExport(Format):
    """A .pt2 file of torch.export."""

    name = "torch_export"
    suffix = ".pt2"
    is_safe = False  # torch.export.load unpickles, and evaluates expressions
    card_imports = ("torch",)
    card_code = """\
extra = {"{{ key }}": ""}
program = torch.export.load("{{ file }}", extra_files=extra)
metadata = json.loads(extra["{{ key }}"])
output = program.module()(torch.tensor(batch)){{ "[0]" if has_familiarity }}[0].detach().numpy()
"""

    def build(self, graph: "Classifier", batch_size: int | None) -> "ExportedProgram":
        return graph.export(batch_size)

    def save(self, built: "ExportedProgram", path: Path, metadata: str) -> None:
        import torch

        buffer = io.BytesIO()  # torch's own writer of files ends the process (SIGABRT) on a full disk
        torch.export.save(built, buffer, extra_files={KEY: metadata})
        path.write_bytes(buffer.getbuffer())

    def open(self, path: Path) -> tuple[Function, str] | None:
        import torch

        extra = {KEY: ""}
        program = torch.export.load(path, extra_files=extra)
        module: Any = program.module()

        def run(batch: "Tensor") -> "Sequence[Tensor]":
            found = module(batch)
            return found if isinstance(found, tuple) else (found,)

        return (run, extra[KEY]) if extra[KEY] else None


class Safetensors(Format):
    """The weights alone, under the names of torchvision or timm."""

    name = "safetensors"
    suffix = ".safetensors"
    packages = ("safetensors",)
    requirement = "safetensors"
    has_graph = False
    card_imports = ("safetensors", "torch")
    card_code = """\
with safetensors.safe_open("{{ file }}", "pt") as file:
    metadata = json.loads(file.metadata()["{{ key }}"])
    weights = {name: file.get_tensor(name) for name in file.keys()}
net = {{ net }}
net.load_state_dict(weights)
with torch.no_grad():
    output = net.eval()(torch.tensor(batch)).mean(0).numpy()
"""

    def build(self, graph: "Classifier", batch_size: int | None) -> "dict[str, Tensor]":
        # cloned, because shared and strided tensors cannot be stored
        return {name: tensor.clone().contiguous() for name, tensor in graph.net.state_dict().items()}

    def save(self, built: "dict[str, Tensor]", path: Path, metadata: str) -> None:
        import safetensors.torch

        # save_file would make the file readable only by its owner
        path.write_bytes(safetensors.torch.save(built, {"format": "pt", KEY: metadata}))

    def read_weights(self, path: Path) -> "dict[str, Tensor]":
        from safetensors.torch import load_file

        return load_file(path)


FORMATS: dict[str, Format] = {each.name: each for each in (Onnx(), OnnxFp16(), TorchExport(), Safetensors())}


def format_of(config: Mapping[str, Any]) -> Format:
    """Return the format that export writes. config: with the keys of ExportConfig."""
    return FORMATS[config["format"] or ("safetensors" if config["push"] else "onnx")]


def graph_format(path: Path | str | None) -> Format | None:
    """Return the format of an exported file with a graph; None for a checkpoint or another file."""
    suffix = Path(path).suffix if path is not None else ""
    return next((each for each in FORMATS.values() if each.has_graph and each.suffix == suffix), None)


# ---- the command line ----------------------------------------------------------------------------------------------

# Suffixes of model files, which predict reads and so must not write.
MODELS = (*(each.suffix for each in FORMATS.values()), ".ckpt", ".pt", ".pth")


def export_path(config: Mapping[str, Any]) -> Path:
    """Return the path of the file that export writes."""
    if config["out"] is not None:
        return Path(config["out"])
    checkpoint = Path(config["checkpoint"] or "model")
    folder = CheckpointStore.run_dir_of(checkpoint) or checkpoint.parent
    inside = Path("export", "hub") if config["push"] else Path("export")
    return folder / inside / f"model{format_of(config).suffix}"


def validate(config: Mapping[str, Any], verb: str) -> list[Mistake]:
    """Return the mistakes. verb: predict, demo or export."""
    if verb == "export":
        wrong = expect("format", config["format"], choice(None, *FORMATS), setting("format=onnx"))
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
    found = missing_package(f"format={kind.name}", *kind.packages, requirement=kind.requirement)
    found += [
        Mistake(
            f"{key} needs a format with a graph, but format={kind.name} stores weights only",
            (key, "format"),
            (without(key),),
        )
        for key in ("preprocessing", "batch_size")
        if config[key] is not None and not kind.has_graph
    ]
    found += _check_out(path, f"model{kind.suffix}")
    if path.suffix != kind.suffix:
        fix = setting(f"out={path.with_suffix(kind.suffix)}")
        found.append(Mistake(f"out must end in {kind.suffix}, got {path.name}", ("out", "format"), (fix,)))
    elif not config["overwrite"]:
        ways = setting("out=FILE"), setting("overwrite=true")
        files = [path, *(path.with_name(name) for name in (CONFIG, CARD) if config["push"])]
        found += [
            Mistake(f"out must be a new file, but {describe_path(each)} exists", ("out",), ways)
            for each in files
            if each.is_file()
        ][:1]
    return found


def _check_push(config: Mapping[str, Any]) -> list[Mistake]:
    kind, path, found = format_of(config), export_path(config), hub.check_push()
    if kind.name != "safetensors":
        what = f"push needs format=safetensors, which timm and model.weights=hf://OWNER/NAME read, got {kind.name}"
        found.append(Mistake(what, ("format", "push"), (setting("format=safetensors"),)))
    elif path.name != f"model{kind.suffix}":
        fix = setting(f"out={path.with_name(f'model{kind.suffix}')}")
        found.append(must_be("out", f"a file named model{kind.suffix} with push", path.name, fix))
    return found


def _check_predictions(config: Mapping[str, Any]) -> list[Mistake]:
    from imagenet_ddp.data.sources.walk import IMAGE_EXTENSIONS

    out, example = Path(config["out"]), f"predictions.{'jsonl' if config['format'] == 'jsonl' else 'csv'}"
    inputs = (Path(config[key]) for key in ("checkpoint", "images") if config.get(key))
    is_input = out.exists() and any(path.exists() and out.samefile(path) for path in inputs)
    if is_input or out.suffix.lower() in (*MODELS, *IMAGE_EXTENSIONS):
        allowed, got = f"a table such as {example}", f"{out}, a model or an image"
        return [must_be("out", allowed, got, setting(f"out={example}"))]
    return _check_out(out, example)


def _check_out(path: Path, example: str) -> list[Mistake]:
    reason = f"{describe_path(path)} is a folder" if path.is_dir() else ""
    if not path.exists():
        reason = not_writable_reason(path.parent)
    what = f"out must be a file that can be written, but {reason}"
    return [Mistake(what, ("out",), (setting(f"out={example}"),))] if reason else []
