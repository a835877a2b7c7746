"""The weights without a graph, as safetensors stores them."""

from pathlib import Path
from typing import TYPE_CHECKING

from imagenet_ddp.exported.formats.base import KEY, Format

if TYPE_CHECKING:
    from torch import Tensor

    from imagenet_ddp.exported.graph import Classifier


class Safetensors(Format):
    """The weights alone, under the names of torchvision or timm."""

    name = "safetensors"
    suffix = ".safetensors"
    packages = ("safetensors",)
    requirement = "safetensors"
    has_graph = False
    script_imports = ("safetensors", "torch")
    script_code = """\
with safetensors.safe_open(Path(__file__).with_name("{{ file }}"), "pt") as file:
    metadata = json.loads(file.metadata()["{{ key }}"])
    weights = {name: file.get_tensor(name) for name in file.keys()}
net = {{ net }}
net.load_state_dict(weights)
with torch.no_grad():
    output, familiarity = net.eval()(torch.tensor(batch)).mean(0, keepdim=True).numpy(), []
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
