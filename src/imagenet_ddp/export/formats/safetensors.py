"""Write only the weights, under the names of torchvision or timm."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagenet_ddp.export.formats.base import KEY, Format

if TYPE_CHECKING:
    from torch import Tensor

    from imagenet_ddp.export.formats.graph import Classifier


class Safetensors(Format):
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

    def check(self, config: Mapping[str, Any]) -> list[str]:
        return [
            f"{key} needs a format with a graph, but format=safetensors stores weights only. Hint: leave {key} out."
            for key in ("preprocessing", "batch_size")
            if config[key] is not None
        ]

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
