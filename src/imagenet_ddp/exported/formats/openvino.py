"""OpenVINO's own format: a file of operations, and one of weights beside it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagenet_ddp.errors import RunError
from imagenet_ddp.exported.formats.base import KEY, Function
from imagenet_ddp.exported.formats.onnx import Onnx
from imagenet_ddp.system.files import sha256
from imagenet_ddp.system.text import first_line

if TYPE_CHECKING:
    from torch import Tensor

    from imagenet_ddp.exported.graph import Classifier

WEIGHTS = f"{KEY}_weights"  # SHA-256 of the file of weights
_SINGLE_PRECISION = {"INFERENCE_PRECISION_HINT": "f32"}  # by default, OpenVINO computes in bfloat16 where it can


class OpenVino(Onnx):
    """The graph of format=onnx, converted. It stores the weights in half precision if that agrees with the checkpoint;
    a CPU computes in single precision in either case."""

    name = "openvino"
    suffix = ".xml"
    also = (".bin",)
    packages = ("onnx", "onnxscript", "openvino")
    reader_packages = ("openvino",)
    requirement = "imagenet_ddp[openvino]"
    library_name = "openvino"
    script_imports = ("openvino",)
    script_code = f"""\
core = openvino.Core()
model = core.read_model(Path(__file__).with_name("{{{{ file }}}}"))
metadata = json.loads(model.get_rt_info(["{{{{ key }}}}"]).value)
compiled = core.compile_model(model, "CPU", {_SINGLE_PRECISION})
output, *familiarity = compiled({{"images": batch}}).values()
"""

    def candidates(self, graph: "Classifier", batch_size: int | None) -> Iterator[Any]:
        model = self.build(graph, batch_size)
        yield model, True
        yield model, False

    def build(self, graph: "Classifier", batch_size: int | None) -> Any:
        import openvino

        content = super().build(graph, batch_size).SerializeToString()
        try:
            model = openvino.Core().read_model(content)  # not convert_model, which reports its use to a server
            _antialias(model)
        except Exception as error:  # a RuntimeError that depends on the operators of the net
            raise RunError(
                "openvino must support every operator of this net, but does not "
                f"({first_line(error).rstrip('.')}). Hint: set format=onnx."
            ) from error
        return model

    def save(self, built: Any, path: Path, metadata: str) -> None:
        import openvino

        model, is_half = built
        model.set_rt_info(metadata, [KEY])
        openvino.save_model(model, path, compress_to_fp16=is_half)
        model.set_rt_info(sha256(path.with_suffix(".bin")), [WEIGHTS])
        openvino.save_model(model, path, compress_to_fp16=is_half)

    def open(self, path: Path) -> tuple[Function, str] | None:
        import openvino
        import torch

        core = openvino.Core()
        try:
            model = core.read_model(path)
        except RuntimeError as error:  # its first lines name places in OpenVINO's sources
            raise ValueError(str(error).strip().splitlines()[-1]) from error
        weights = path.with_suffix(".bin")
        if model.has_rt_info([WEIGHTS]) and model.get_rt_info([WEIGHTS]).value != sha256(weights):
            raise ValueError(f"{weights} has the weights of another file")
        options = {**_SINGLE_PRECISION, "INFERENCE_NUM_THREADS": torch.get_num_threads()}
        compiled: Any = core.compile_model(model, "CPU", options)

        def run(batch: "Tensor") -> "list[Tensor]":
            return [torch.from_numpy(output) for output in compiled([batch.numpy()]).values()]

        return (run, model.get_rt_info([KEY]).value) if model.has_rt_info([KEY]) else None


def _antialias(model: Any) -> None:
    """Resize as Pillow does. On a CPU, OpenVINO ignores the antialiasing that an ONNX graph asks for, except in these
    modes."""
    from openvino import opset11

    modes = {"linear_onnx": "bilinear_pillow", "cubic": "bicubic_pillow"}
    for node in model.get_ops():
        if node.get_type_name() == "Interpolate" and (found := node.get_attributes())["antialias"]:
            inputs = [each.get_source_output() for each in node.inputs()]
            options = {"shape_calculation_mode": found["shape_calculation_mode"], "cube_coeff": found["cube_coeff"]}
            resized = opset11.interpolate(inputs[0], inputs[1], modes[found["mode"]], axes=None, **options)
            node.output(0).replace(resized.output(0))
    model.validate_nodes_and_infer_types()
