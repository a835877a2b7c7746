"""trainer.sync_batchnorm on CPUs and for timm's layers; on GPUs it is torch's."""

from pathlib import Path

import pytest
import torch
from conftest import PROBES, Run, small_run
from torch import nn

from imagenet_ddp.distributed.strategies.sync_batchnorm import SyncBatchNorm
from imagenet_ddp.errors import ConfigError

NET = ("model._target_=block_net.BlockNet", "+model.args.depth=8", "allow_targets=[block_net]")  # nine layers of it


@pytest.mark.slow
def test_two_ranks_train_as_one_does_on_the_same_global_batch(run: Run, tree: Path, tmp_path: Path) -> None:
    """20 steps, the last two of each epoch smaller. In 64 bits: a net of random weights makes more of a difference in
    the last bit than 32 bits leave room for, and as much of it with another number of threads."""
    options = [*small_run(*NET), f"data.root={tree}", "trainer.max_epochs=5", "trainer.precision=64-true",
               "callbacks.checkpoint.every_n_epochs=5", "trainer.limit_val_batches=0"]  # fmt: skip
    ways = {
        "one": ["data.batch_size=8"],
        "two": ["data.batch_size=4", "trainer.devices=2", "trainer.sync_batchnorm=true"],
        "not": ["data.batch_size=4", "trainer.devices=2", "trainer.max_epochs=1"],
    }
    states = {}
    for name, way in ways.items():
        done = run("train", *options, *way, f"hydra.run.dir={name}", PYTHONPATH=PROBES)
        assert done.returncode == 0, done.stdout + done.stderr
        stored = torch.load(tmp_path / name / "checkpoints/last.ckpt", weights_only=True)
        assert name == "not" or stored["global_step"] == 20
        states[name] = stored["state_dict"]
    assert states["one"].keys() == states["two"].keys()
    for name, tensor in states["one"].items():
        torch.testing.assert_close(states["two"][name], tensor, rtol=1e-5, atol=1e-5 * tensor.double().norm())
    away = [name for name, tensor in states["not"].items() if "running_mean" in name
            and not torch.allclose(tensor, states["one"][name], rtol=1e-3)]  # fmt: skip
    assert away, "without it, the comparison fails"


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_types_of_weights(kind: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of trainer.precision: a step of one rank is that of torch's own layer."""
    monkeypatch.setattr("torch.distributed.all_reduce", lambda tensor: None)
    torch.manual_seed(0)
    images = torch.randn(8, 3, 4, 4, dtype=kind)
    own, torchs = nn.BatchNorm2d(3).to(kind), nn.BatchNorm2d(3).to(kind)
    SyncBatchNorm("cpu").apply(own)
    results = [[layer(images), *layer.buffers()] for layer in (own, torchs)]
    assert type(own) is not type(torchs)
    for one, other in zip(*results, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other)


def test_layers_of_others_keep_what_they_do_besides() -> None:
    from timm.layers import BatchNormAct2d

    net = nn.Sequential(nn.Conv2d(3, 4, 1), BatchNormAct2d(4))
    with pytest.raises(ConfigError, match=r"torch's own layers, got BatchNormAct2d\. Hint: set trainer.sync"):
        SyncBatchNorm("cpu").apply(net)
    _, there = SyncBatchNorm("cuda").apply(net).children()
    assert isinstance(there, nn.SyncBatchNorm) and isinstance(there.act, nn.ReLU)


def test_on_gpus_they_are_torchs() -> None:
    """Lightning converts them while the net is still on the CPU."""
    _, norm = SyncBatchNorm("cuda").apply(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))).children()
    assert type(norm) is nn.SyncBatchNorm
    SyncBatchNorm("cuda").apply(nn.Linear(2, 2))  # without any
