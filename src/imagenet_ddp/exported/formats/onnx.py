"""ONNX, in single and in half precision."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagenet_ddp.errors import RunError
from imagenet_ddp.exported.formats.base import KEY, Format, Function
from imagenet_ddp.system.text import first_line

if TYPE_CHECKING:
    import onnx
    from torch import Tensor

    from imagenet_ddp.exported.graph import Classifier

_LEAST_HALVED = 1024  # elements of a tensor; halving smaller ones would save nothing


class Onnx(Format):
    """A single file that includes the weights."""

    name = "onnx"
    suffix = ".onnx"
    packages = ("onnx", "onnxscript", "onnxruntime")
    reader_packages = ("onnxruntime",)
    requirement = "imagenet_ddp[onnx]"
    library_name = "onnx"
    script_imports = ("onnxruntime",)
    script_code = """\
session = onnxruntime.InferenceSession(Path(__file__).with_name("{{ file }}"))
metadata = json.loads(session.get_modelmeta().custom_metadata_map["{{ key }}"])
output, *familiarity = session.run(None, {"images": batch})
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

        onnx.save_model(with_metadata(built, metadata), str(path))

    def open(self, path: Path) -> tuple[Function, str] | None:
        return open_session(path)


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


def with_metadata(model: "onnx.ModelProto", metadata: str) -> "onnx.ModelProto":
    import onnx

    onnx.helper.set_model_props(model, {KEY: metadata})
    return model


def open_session(model: Path | bytes) -> tuple[Function, str] | None:
    """Return (the graph on the CPU, the metadata) of a file or its content; None if it has no metadata."""
    import onnxruntime
    import torch

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    text = session.get_modelmeta().custom_metadata_map.get(KEY)

    def run(batch: "Tensor") -> "list[Tensor]":
        return [torch.from_numpy(output) for output in session.run(None, {name: batch.numpy()})]

    return (run, text) if text else None


def halve_weights(model: "onnx.ModelProto") -> None:
    """Store the large float32 weights of a model in half precision. A runtime converts them back when it loads the
    model, and computes in float32."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    graph, casts = model.graph, list[Any]()
    for tensor in graph.initializer:
        if tensor.data_type != TensorProto.FLOAT or np.prod(tensor.dims) < _LEAST_HALVED:
            continue
        name = tensor.name
        with np.errstate(over="ignore"):  # infinite weights differ from the checkpoint, which export compares with
            half = numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(half, f"{name}.half"))
        casts.append(helper.make_node("Cast", [tensor.name], [name], to=TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
