"""Compile a net with torch.compile: check the requirements, choose the compiled batches, and report the cost."""

import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import count_noun

CXX = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")  # torch's default compilers
# Maximum number of graphs per code object. Above it, torch runs eagerly without an error. Its default of 8 is too low
# for the image sizes of progressive training.
RECOMPILE_LIMIT = 64
# Modes with CUDA graphs, and the same modes without them.
WITHOUT_GRAPHS = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}


def missing_compiler(kind: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return a message with a hint if torch.compile cannot be used on this machine, else "". kind: cpu, cuda or mps."""
    if kind == "mps":
        return "torch.compile for Apple GPUs is unfinished. Hint: set compile=off."
    if kind == "cuda" and importlib.util.find_spec("triton") is None:
        return "torch.compile on GPUs needs the package triton, which is not installed. Hint: set compile=off."
    # triton compiles the C functions that launch its kernels
    name, variable, where = ("C", "CC", "GPUs") if kind == "cuda" else ("C++", "CXX", "CPUs")
    compiler = "gcc" if kind == "cuda" else "g++"
    known = ["gcc", "clang"] if kind == "cuda" else [CXX]
    programs = [environ[variable]] if environ.get(variable) else known
    if not any(map(shutil.which, programs)):
        return (
            f"torch.compile needs a {name} compiler on {where}, but there is no {' or '.join(programs)}. "
            f"Hint: install {compiler}, put {variable}=PROGRAM before the command, or set compile=off."
        )
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return (
            "torch.compile needs Python's header files, but there is no Python.h. "
            "Hint: install python3-dev (or python3-devel), or set compile=off."
        )
    return ""


def choose_compile(name: str, kind: str, num_own_devices: int, accumulates: bool) -> tuple[str, str]:
    """Return (mode of torch.compile or off, reason). name: compile.name. kind: cpu, cuda or mps. accumulates: whether
    an update may have several batches. Raises ConfigError if this machine cannot compile.

    CUDA graphs are left out if gradients are accumulated: each replay writes its gradients to the same memory, where
    torch reports that the previous ones, which are still needed, were overwritten.
    """
    if name == "off":
        return name, "as set"
    if num_own_devices > 1:
        lacking = f"compile={name} needs a process per device, but strategy=dp uses threads. Hint: set strategy=ddp."
    else:
        lacking = missing_compiler(kind)
    if lacking:
        raise ConfigError(lacking)
    if kind == "cuda" and name in WITHOUT_GRAPHS and accumulates:
        why = "they do not work with accumulated gradients"
        return WITHOUT_GRAPHS[name], f"compile={name} without CUDA graphs, because {why}"
    return name, "as set"


class CompiledCalls:
    """A replacement for `module.call_net` that runs `module.net` compiled on full batches and eagerly on all others,
    because each further batch size would need another compilation.

    mode: a mode of torch.compile. train_images, val_images: number of images in a full batch.
    """

    def __init__(self, module: nn.Module, mode: str, train_images: int, val_images: int):
        self._module = module  # not module.net, which an evaluation of few classes replaces by a wrapper
        self._sizes = {True: train_images, False: val_images}
        self._copies = mode in WITHOUT_GRAPHS
        self._before = _counts()
        # in place, so that the names in checkpoints do not change
        module.net.compile(  # type: ignore[operator]
            mode=None if mode == "default" else mode, dynamic=False, recompile_limit=RECOMPILE_LIMIT
        )

    def __call__(self, images: Tensor) -> Tensor:
        net: nn.Module = self._module.net  # type: ignore[assignment]
        if len(images) == self._sizes[net.training]:
            logits = net(images)
            return logits.clone() if self._copies else logits  # the next replay of a CUDA graph overwrites its output
        with torch.compiler.set_stance("force_eager"):
            return net(images)

    def statistics(self) -> dict[str, Any]:
        """Return {"graphs", "graph_breaks", "seconds"} for this process so far. graphs: number of compiled graphs.
        Training and validation need one per resolution."""
        now = _counts()
        graphs, breaks, seconds = (after - before for after, before in zip(now, self._before, strict=True))
        return {"graphs": int(graphs), "graph_breaks": int(breaks), "seconds": round(seconds, 1)}


def compile_calls(module: nn.Module, mode: str, train_images: int, val_images: int) -> None:
    """Make the module call its net compiled, unless mode is off. The arguments are those of CompiledCalls."""
    if mode != "off":  # replaced as by strategy=dp; this is not an nn.Module, so it adds no keys to checkpoints
        vars(module)["call_net"] = CompiledCalls(module, mode, train_images, val_images)


def compile_statistics(module: nn.Module) -> dict[str, Any] | None:
    """Return the cost of compiling this module's net in this process; None if it is not compiled."""
    calls = vars(module).get("call_net")
    return calls.statistics() if isinstance(calls, CompiledCalls) else None


def compile_lines(module: nn.Module) -> list[str]:
    """Return a log line on the cost of compiling this module's net; [] if it is not compiled."""
    if (found := compile_statistics(module)) is None:
        return []
    graphs, breaks = count_noun(found["graphs"], "graph"), count_noun(found["graph_breaks"], "graph break")
    return [f"Compiled {graphs} in {found['seconds']:g} s, with {breaks}."]


def _counts() -> tuple[float, float, float]:
    import torch._dynamo.utils  # the import takes a second, so it is done for compiled nets only

    counters = torch._dynamo.utils.counters
    seconds = torch._dynamo.utils.calculate_time_spent().get("total_wall_time", 0.0)
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values()), seconds
