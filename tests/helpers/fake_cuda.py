# pyright: reportIncompatibleMethodOverride=false
# Lightning passes the arguments of hooks by position.
"""CUDA without a GPU: tensors on CUDA have a shape, a type, a memory format and a device, but no values, as torch's
FakeTensorMode makes them; all other tensors are computed. What makes the CPU wait for a GPU is recorded.

Operations on tensors of different devices raise, as on a GPU. Gradients are made without a backward pass, because
torch's autograd engine asks the driver for its devices.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Checkpoint  # called last
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import imagenet_ddp

aten = torch.ops.aten
PACKAGE = str(Path(imagenet_ddp.__file__).parent)
SHOWN = ("torch/optim/", "torch/amp/", "timm/optim/")
H200 = SimpleNamespace(name="NVIDIA H200", uuid="5a", major=9, minor=0, multi_processor_count=132, total_memory=2**37)


@dataclass(frozen=True)
class Wait:
    """What makes the CPU wait. what: "read" of a value, "copy" of memory that is not page-locked to the device, "host
    scalar", a tensor of the CPU beside tensors of the device, or "synchronize". step: FakeCuda.step. where: file:line
    of the package, of torch's optimizers and gradient scaler, from the outer to the inner."""

    what: str
    step: Any
    where: tuple[str, ...]


class _Fakes(FakeTensorMode):
    @property
    def avoid_device_init(self) -> bool:  # also where torch.cuda.is_available() says that there is a GPU
        return True


class FakeCuda(TorchDispatchMode):
    """Fake the tensors on CUDA while this mode is entered. waits: what made the CPU wait, in order. calls: of
    torch.cuda, with their arguments. step: a label for what is recorded. Values that are read are 0.0, 1 and True."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[Wait] = []
        self.calls: list[str] = []
        self.collectives: list[tuple[str, Any, set[str]]] = []  # name, FakeCuda.step, types of devices
        self.step: Any = None
        self._fakes = _Fakes(allow_non_fake_inputs=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        if func.namespace == "c10d" and func._opname != "barrier":
            self.collectives.append((func._opname, self.step, {each.device.type for each in tensors}))
        fakes = [each for each in tensors if isinstance(each, FakeTensor)]
        target = kwargs.get("device")
        to_cuda = target is not None and torch.device(target).type == "cuda"
        if not fakes and not to_cuda:
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if func in (aten._local_scalar_dense.default, aten.item.default):
            self._add("read")
            with unset_fake_temporarily():
                return _number(fakes[0]).item()
        if func.namespace == "aten" and func._can_decompose():  # in inference mode, which leaves it to this mode
            with self:
                return func.decompose(*args, **kwargs)
        self._look(func, args, kwargs, tensors, fakes)
        args, kwargs = tree_map(_without_graph, (args, kwargs))
        if not func._schema.returns:  # a fused step, or an operation on a list in place
            assert all(each.is_cuda or not each.dim() for each in tensors), f"{func} on a CPU and a GPU"
            return None
        found = func(*args, **kwargs)
        if isinstance(found, FakeTensor) and not found.dim() and not any(each.dim() for each in tensors):
            _compute_number(found, func, args, kwargs)
        return tree_map(_on_its_device, found)

    def _look(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor], fakes: list[FakeTensor]) -> None:
        """Record whether this operation waits."""
        hosts = [each for each in tensors if not isinstance(each, FakeTensor)]
        if func is aten.copy_.default:
            into, source = args[:2]
            if isinstance(into, FakeTensor) != isinstance(source, FakeTensor):
                is_ahead = bool(kwargs.get("non_blocking", args[2] if len(args) > 2 else False))
                self._copy(source, is_ahead)
        elif func is aten._to_copy.default:
            if "device" in kwargs and kwargs["device"].type != args[0].device.type:
                self._copy(args[0], kwargs.get("non_blocking", False))
        elif func in (aten.lift_fresh.default, aten.detach.default):
            pass
        elif hosts and fakes:
            self._add("host scalar" if all(not each.dim() for each in hosts) else "copy")

    def _copy(self, source: Tensor, is_ahead: bool) -> None:
        if isinstance(source, FakeTensor):
            self._add("read")
        elif not (is_ahead and hasattr(source, "is_page_locked")):
            self._add("copy")

    def _add(self, what: str) -> None:
        frame, where = sys._getframe(1), list[str]()
        while frame := frame.f_back:
            name = frame.f_code.co_filename
            if name.startswith(PACKAGE) or any(part in name for part in SHOWN):
                where.insert(0, f"{Path(name).name}:{frame.f_lineno}")
        self.waits.append(Wait(what, self.step, tuple(where)))

    # ---- torch.cuda and autograd

    def record(self, name: str) -> Callable[..., None]:
        def call(*args: Any, **kwargs: Any) -> None:
            self.calls.append(" ".join([name, *map(str, args)]))

        return call

    def synchronize(self, *_: Any) -> None:
        self._add("synchronize")

    def patch(self, patch: pytest.MonkeyPatch, num_gpus: int) -> None:
        """Replace what asks the driver."""
        cuda = torch.cuda
        for name, result in {
            "is_available": True, "device_count": num_gpus, "current_device": 0, "is_bf16_supported": True,
            "get_device_capability": (H200.major, H200.minor), "get_device_name": H200.name,
            "get_device_properties": H200, "max_memory_allocated": 0, "mem_get_info": (2**37, 2**37),
        }.items():  # fmt: skip
            patch.setattr(cuda, name, lambda *_, result=result, **__: result)
        for name in ("set_device", "manual_seed", "manual_seed_all", "empty_cache", "_lazy_init",
                     "reset_peak_memory_stats"):  # fmt: skip
            patch.setattr(cuda, name, self.record(name))
        patch.setattr(cuda, "synchronize", self.synchronize)
        current = Stream(self, "current")
        patch.setattr(cuda, "Stream", lambda *_: Stream(self, "other"))
        patch.setattr(cuda, "current_stream", lambda *_: current)
        patch.setattr(cuda, "stream", Stream.use)
        patch.setattr(Tensor, "record_stream", lambda tensor, stream: self.calls.append(f"record_stream {stream}"))
        patch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None, raising=False)
        patch.setattr(fake_tensor, "init_gpu_context", lambda device: None)
        patch.setattr(torch.accelerator, "is_available", lambda: True)
        patch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: torch.device("cuda"))
        patch.setattr(Tensor, "pin_memory", page_locked)
        patch.setattr(Tensor, "backward", backward)
        patch.setattr(torch.autograd, "grad", grad)
        swap = torch.utils.swap_tensors

        def swap_if_moved(old: Tensor, new: Tensor) -> None:  # torch refuses to swap a parameter with itself
            if (old.device, old.dtype) != (new.device, new.dtype):
                swap(old, new)

        patch.setattr(torch.utils, "swap_tensors", swap_if_moved)
        patch.setattr(nn.Module, "cpu", lambda module: module)  # of Lightning's teardown


class Stream:
    """Stand in for torch.cuda.Stream."""

    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self._cuda, self._name = cuda, name

    def __str__(self) -> str:
        return self._name

    def wait_stream(self, other: "Stream") -> None:
        self._cuda.calls.append(f"{self} waits for {other}")

    def synchronize(self) -> None:
        self._cuda.synchronize()

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        self._cuda.calls.append(f"enter {self}")
        yield
        self._cuda.calls.append(f"leave {self}")


def _number(tensor: Tensor) -> Tensor:
    """Return a scalar in place of one whose value is asked for."""
    if not isinstance(tensor, FakeTensor):
        return tensor
    if not hasattr(tensor, "number"):
        tensor.number = _of_type(tensor)  # type: ignore[attr-defined]
    return tensor.number  # type: ignore[attr-defined]


def _compute_number(found: FakeTensor, func: Any, args: Any, kwargs: Any) -> None:
    """Compute a scalar from scalars, so that what a program reads fits together: a loss is finite, and a count that was
    copied to the device is that count."""
    with unset_fake_temporarily(), contextlib.suppress(RuntimeError):
        args, kwargs = tree_map(lambda each: _number(each) if isinstance(each, Tensor) else each, (args, kwargs))
        found.number = func(*args, **{**kwargs, **({"device": "cpu"} if "device" in kwargs else {})})  # type: ignore[attr-defined]


def _of_type(tensor: FakeTensor) -> Tensor:
    """Return a tensor of the CPU with this shape and type, of 0.0, 1 or True."""
    with unset_fake_temporarily():
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        return made.fill_(0 if tensor.is_floating_point() else 1)


def _without_graph(value: Any) -> Any:
    """Return a computed tensor of the CPU detached, since to fake it torch reads its gradient, of which it warns."""
    if not isinstance(value, Tensor) or isinstance(value, FakeTensor) or value.is_leaf:
        return value
    with unset_fake_temporarily():
        return value.detach()


def _on_its_device(value: Any) -> Any:
    """Return a result of the CPU with values, since the rest of a program computes with them."""
    if not isinstance(value, FakeTensor) or value.device.type != "cpu":
        return value
    return _number(value) if hasattr(value, "number") else _of_type(value)


def page_locked(tensor: Tensor, *_: Any) -> Tensor:
    copied = tensor.clone()
    copied.is_page_locked = True  # type: ignore[attr-defined]
    return copied


def backward(loss: Tensor, *_: Any, **__: Any) -> None:
    """Make the gradients of the parameters from which the loss is computed, without values."""
    nodes, seen = [loss.grad_fn], set[Any]()
    assert loss.grad_fn is not None, "element 0 of tensors does not require grad"
    while nodes:
        if (node := nodes.pop()) is None or node in seen:
            continue
        seen.add(node)
        nodes += [each for each, _ in node.next_functions]
        if (leaf := getattr(node, "variable", None)) is not None:
            leaf.grad = torch.empty_like(leaf) if leaf.grad is None else leaf.grad + torch.empty_like(leaf)


def grad(outputs: Any, inputs: Any, *_: Any, **__: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(each) for each in (inputs if isinstance(inputs, tuple | list) else (inputs,)))


class Steps(Checkpoint):
    """Label what is recorded in a run of Lightning's: ("train", 1) up to the end of the first batch and of what its
    callbacks do, ("val", 1) and so on in a validation. The last label of each is that of its end."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda

    def on_train_start(self, *_: Any) -> None:
        self._cuda.step = ("train", 1)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int, *_: Any) -> None:
        self._cuda.step = ("train", index + 2)

    def on_validation_start(self, *_: Any) -> None:
        self._cuda.step = ("val", 1)

    def on_validation_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int, *_: Any) -> None:
        self._cuda.step = ("val", index + 2)

    def on_validation_end(self, *_: Any) -> None:
        self._cuda.step = "end"


@contextlib.contextmanager
def fake_cuda(num_gpus: int = 1) -> Iterator[FakeCuda]:
    """Fake CUDA in this thread."""
    made = FakeCuda()
    with pytest.MonkeyPatch.context() as patch:
        made.patch(patch, num_gpus)
        with made._fakes, made:
            yield made
