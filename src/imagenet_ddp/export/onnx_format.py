"""Write a single ONNX file that includes the weights."""

from pathlib import Path
from typing import Any

import onnx
import torch

from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.export.graph import Classifier
from imagenet_ddp.runs.checkpoint_file import KEY
from imagenet_ddp.system.text import first_line

_MAX_BYTES = 2**31 - 2**20  # the limit of a protobuf message, less room for the graph


def build(graph: Classifier, batch_size: int | None) -> onnx.ModelProto:
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


def save(model: onnx.ModelProto, path: Path, metadata: str) -> None:
    onnx.helper.set_model_props(model, {KEY: metadata})
    onnx.save_model(model, str(path))
