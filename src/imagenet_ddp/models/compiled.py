"""Compile a net with torch.compile: check the requirements, and choose the compiled batches."""

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.files import cache_dir, make_private

# Maximum number of graphs per code object. Above it, torch runs eagerly without an error. Its default of 8 is too low
# for the image sizes of progressive training.
RECOMPILE_LIMIT = 64
# Modes with CUDA graphs, and the same modes without them.
WITHOUT_GRAPHS = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}


def missing_compiler(kind: str) -> str:
    """Return a message with a hint if torch.compile lacks a program on this machine, else "". kind: cpu, cuda or
    mps."""
    # on GPUs, triton compiles the C functions that launch its kernels
    variable, known = (
        ("CC", "gcc clang") if kind == "cuda" else ("CXX", "clang++" if sys.platform == "darwin" else "g++")
    )
    programs = (os.environ.get(variable) or known).split()
    if any(map(shutil.which, programs)) and Path(sysconfig.get_path("include"), "Python.h").is_file():
        return ""
    return (
        f"torch.compile needs {' or '.join(programs)} and Python's header files, but this machine does not have both. "
        f"Hint: install them (g++ and python3-dev), put {variable}=PROGRAM before the command, or set compile=off."
    )


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
        torch.compiler.config.recompile_limit = RECOMPILE_LIMIT  # compile() has no such argument in torch 2.11
        # in place, so that the names in checkpoints do not change
        module.net.compile(mode=None if mode == "default" else mode, dynamic=False)  # type: ignore[operator]

    def __call__(self, images: Tensor) -> Tensor:
        net: nn.Module = self._module.net  # type: ignore[assignment]
        if len(images) == self._sizes[net.training]:
            logits = net(images)
            return logits.clone() if self._copies else logits  # the next replay of a CUDA graph overwrites its output
        with torch.compiler.set_stance("force_eager"):
            return net(images)


def _use_private_cache() -> None:
    """Let torch keep compiled code where only this user can write. It loads and runs what it finds there, and its
    default, /tmp/torchinductor_USER, may have been made by somebody else."""
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        folder = Path(tempfile.gettempdir(), f"imagenet_ddp_compiled_{os.getuid()}")
        try:
            make_private(folder)
        except OSError:
            make_private(folder := cache_dir(os.environ) / "compiled")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)


def compile_calls(module: nn.Module, mode: str, train_images: int, val_images: int) -> None:
    """Make the module call its net compiled, unless mode is off. The arguments are those of CompiledCalls."""
    if mode != "off":
        _use_private_cache()
        # replaced as by strategy=dp; this is not an nn.Module, so it adds no keys to checkpoints
        vars(module)["call_net"] = CompiledCalls(module, mode, train_images, val_images)
