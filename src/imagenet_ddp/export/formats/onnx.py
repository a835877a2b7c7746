"""Write and read a single ONNX file that includes the weights, in float32 or with 8 bits."""

import logging
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.export.formats.base import KEY, Format, Function
from imagenet_ddp.system.text import first_line

if TYPE_CHECKING:
    import onnx
    from torch import Tensor

    from imagenet_ddp.export.formats.graph import Classifier

_MAX_BYTES = 2**31 - 2**20  # the limit of a protobuf message, less room for the graph
# Operators that pass on the 8-bit result of a Conv or Gemm without a conversion to floats in between.
_INT8_OPERATORS = ["Conv", "Gemm", "MatMul", "Add", "Relu", "MaxPool", "GlobalAveragePool", "ReduceMean"]


class Onnx(Format):
    name = "onnx"
    suffix = ".onnx"
    packages = ("onnx", "onnxscript", "onnxruntime")
    reader_packages = ("onnxruntime",)
    requirement = "imagenet_ddp[onnx]"
    has_int8 = True
    library_name = "onnx"
    card_imports = ("onnxruntime",)
    card_code = """\
session = onnxruntime.InferenceSession("{{ file }}")
metadata = json.loads(session.get_modelmeta().custom_metadata_map["{{ key }}"])
output = session.run(None, {"images": batch})[0][0]
"""

    def build(self, graph: "Classifier", batch_size: int | None) -> "onnx.ModelProto":
        import torch

        if sum(tensor.nbytes for tensor in graph.state_dict().values()) > _MAX_BYTES:
            raise ConfigError("format=onnx needs weights below 2 GiB, got more. Hint: set format=torch_export.")
        output = "logits" if graph.preprocessing == "outside" else "probabilities"
        exported = graph.export(batch_size)
        try:
            program: Any = torch.onnx.export(
                exported, dynamo=True, verbose=False, input_names=["images"], output_names=[output]
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
        return (lambda batch: torch.from_numpy(session.run(None, {name: batch.numpy()})[0]), text) if text else None

    def quantise(self, path: Path, batches: "Iterable[Tensor]") -> "onnx.ModelProto":
        """Return the model in QDQ format, with one scale per output channel."""
        import onnx
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
        from onnxruntime.quantization.shape_inference import quant_pre_process

        class Reader(CalibrationDataReader):
            feeds = ({"images": batch.numpy()} for batch in batches)

            def get_next(self) -> Any:
                return next(self.feeds, None)

        root = logging.getLogger()
        level = root.level
        root.setLevel(logging.ERROR)  # hides the advice to pre-process the model, which is done here
        try:
            with TemporaryDirectory(dir=path.parent) as folder:
                folded, quantised = Path(folder) / "folded.onnx", Path(folder) / "int8.onnx"
                quant_pre_process(path, folded, skip_symbolic_shape=True)
                quantize_static(
                    folded,
                    quantised,
                    Reader(),
                    quant_format=QuantFormat.QDQ,
                    per_channel=True,
                    # 7-bit weights, because a CPU with AVX2 or AVX-512 but no VNNI adds two products of bytes in 16
                    # bits. With 8-bit weights, that sum overflows, and the results are wrong.
                    reduce_range=True,
                    activation_type=QuantType.QUInt8,
                    weight_type=QuantType.QInt8,
                    op_types_to_quantize=_INT8_OPERATORS,
                )
                return onnx.load(quantised)
        finally:
            root.setLevel(level)
