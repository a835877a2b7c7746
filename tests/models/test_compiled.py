"""What torch.compile needs, and which batches it is for."""

import functools
from types import SimpleNamespace

import pytest
import torch
from helpers.hints import hint_of
from helpers.probes.block_net import BlockNet
from torch import nn

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models import compiled
from imagenet_ddp.models.compiled import CompiledCalls, choose_compile, missing_compiler

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # of torch's own reading
]


def test_a_missing_compiler_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    for kind, variable in (("cpu", "CXX"), ("cuda", "CC")):
        monkeypatch.setenv(variable, "no-such-compiler")
        text = missing_compiler(kind)
        assert "needs no-such-compiler and Python's header files" in text and f"{variable}=PROGRAM" in hint_of(text)
    assert choose_compile("off", "cpu", 2, False) == ("off", "as set")
    for devices, words in ((1, "no-such-compiler"), (2, "process per")):
        with pytest.raises(ConfigError, match=words):
            choose_compile("default", "cpu", devices, False)


@pytest.mark.parametrize(
    ("name", "kind", "accumulates", "mode"),
    [
        ("reduce-overhead", "cuda", True, "default"),
        ("max-autotune", "cuda", True, "max-autotune-no-cudagraphs"),
        ("max-autotune", "cuda", False, "max-autotune"),
        ("max-autotune", "cpu", True, "max-autotune"),
        ("default", "cuda", True, "default"),
    ],
)
def test_no_cuda_graphs_with_accumulated_gradients(
    name: str, kind: str, accumulates: bool, mode: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(compiled, "missing_compiler", lambda kind: "")
    found, reason = choose_compile(name, kind, 1, accumulates)
    assert found == mode and mode in torch._inductor.list_mode_options()
    assert reason == "as set" if mode == name else "accumulated gradients" in reason


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_the_next_batch_does_not_overwrite_logits(mode: str, monkeypatch: pytest.MonkeyPatch):
    """As the replay of a CUDA graph would, which averaging over mirrored views would then read."""
    buffer = torch.zeros(2, 3)

    class Replayed(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return buffer.copy_(images)

    monkeypatch.setattr(nn.Module, "compile", lambda *_, **__: None)
    calls = CompiledCalls(SimpleNamespace(net=Replayed()), mode, 2, 2)  # type: ignore[arg-type]
    first = calls(torch.ones(2, 3))
    calls(torch.zeros(2, 3))
    assert bool(first.all()) == (mode == "reduce-overhead")


def test_full_batches_are_compiled_once_for_each_size_and_others_run_eagerly(
    monkeypatch: pytest.MonkeyPatch,
):
    from torch._dynamo.testing import CompileCounter

    torch.compiler.reset()
    counter = CompileCounter()
    monkeypatch.setattr(nn.Module, "compile", functools.partialmethod(nn.Module.compile, backend=counter))
    module = SimpleNamespace(net=BlockNet(3, depth=5))
    names = list(module.net.state_dict())
    calls = CompiledCalls(module, "default", 4, 6)  # type: ignore[arg-type]
    sizes = range(32, 112, 8)  # more than torch would compile by default
    for size in (*sizes, 32):
        for images in (4, 4, 3):  # the last one is a remainder
            calls(torch.randn(images, 3, size, size)).sum().backward()
    assert counter.frame_count == len(sizes)
    module.net.eval()
    with torch.inference_mode():
        outputs = {images: calls(torch.ones(images, 3, 32, 32)) for images in (6, 4, 2, 6)}
    assert counter.frame_count == len(sizes) + 1
    assert torch.allclose(outputs[6][:2], outputs[2])
    assert list(module.net.state_dict()) == names
