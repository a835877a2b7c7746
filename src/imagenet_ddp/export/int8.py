"""Quantise an ONNX file to 8 bits with onnxruntime."""

import logging
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import Tensor

# Operators that pass on the 8-bit result of a Conv or Gemm without a conversion to floats in between.
_OPERATORS = ["Conv", "Gemm", "MatMul", "Add", "Relu", "MaxPool", "GlobalAveragePool", "ReduceMean"]


class _Reader(CalibrationDataReader):
    def __init__(self, name: str, batches: Iterable[Tensor]):
        self._feeds = ({name: batch.numpy()} for batch in batches)

    def get_next(self) -> Any:
        return next(self._feeds, None)


def quantise(path: Path, batches: Iterable[Tensor]) -> onnx.ModelProto:
    """Return the model of an ONNX file quantised to 8 bits, in QDQ format with one scale per output channel. batches:
    inputs for the calibration."""
    name = onnx.load(path).graph.input[0].name
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
                _Reader(name, batches),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                # 7-bit weights, because a CPU with AVX2 or AVX-512 but no VNNI adds two products of bytes in 16 bits.
                # With 8-bit weights, that sum overflows, and the results are wrong.
                reduce_range=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                op_types_to_quantize=_OPERATORS,
            )
            return onnx.load(quantised)
    finally:
        root.setLevel(level)
