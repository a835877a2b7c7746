"""Describe the hardware of a run in one line, as read from the machine."""

from collections import Counter
from collections.abc import Sequence

from imagenet_ddp.distributed.devices import cpu_has_bf16
from imagenet_ddp.system.cpu_cores import cpu_model, num_cores
from imagenet_ddp.system.text import count_noun


def describe_hardware(kind: str, gpu_models: Sequence[str], num_nodes: int = 1) -> str:
    """Return "8 × NVIDIA H200", or "Intel Xeon 8481C, 2 cores, with bf16 units". kind: cpu, cuda or mps.

    gpu_models: of all ranks. Only the cores that this node's processes may use (the affinity mask) are counted.
    """
    if gpu_models:
        return " + ".join(f"{number} × {model}" for model, number in sorted(Counter(gpu_models).items()))
    if kind == "mps":
        return f"{cpu_model()}, GPU (mps)"
    units = "with" if cpu_has_bf16() else "without"
    nodes = f"{num_nodes} × " if num_nodes > 1 else ""
    return f"{nodes}{cpu_model()}, {count_noun(num_cores(), 'core')}, {units} bf16 units"
