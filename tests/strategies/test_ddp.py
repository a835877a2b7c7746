"""strategy.* reaches DistributedDataParallel, hooks compress, accumulation is silent: two real ranks over Gloo, started
once for all tests here; and the sentences for what torch or the device does not have."""

import contextlib
from collections import Counter
from datetime import timedelta
from typing import Any

import lightning.pytorch as L
import lightning.pytorch.strategies.ddp as lightning_ddp
import pytest
import torch
from conftest import PROBES, clean_environ
from helpers import forked_commands
from torch import distributed, nn

from imagenet_ddp.config.schema.distributed import StrategyConfig
from imagenet_ddp.distributed.place import Address, Place
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.strategies import ddp
from imagenet_ddp.strategies.ddp import DetectedEnvironment

TWO_RANKS_S = 180
SMALL_BYTES = 217_040  # of the gradients of ddp_ranks.Small.net in fp32

Seen = list[dict[str, dict[str, Any]]]  # by rank, by name in ddp_ranks.RUNS


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("ranks")
    ranks = [
        forked_commands.start(
            "ddp_ranks", str(rank), str(folder), folder=folder, environment=clean_environ(PYTHONPATH=PROBES)
        )
        for rank in range(2)
    ]
    try:
        printed = [rank.communicate(timeout=TWO_RANKS_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(err[-3000:] for _, err in printed)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.slow
def test_all_ranks_have_the_same_weights(seen: Seen) -> None:
    names = [name for name in seen[0] if "weights" in seen[0][name]]
    differing = [name for name in names if not torch.equal(seen[0][name]["weights"], seen[1][name]["weights"])]
    assert differing == ["no_init_sync"], "which starts from other weights on each rank, and keeps them apart"
    # each rank draws its own; forward_sync_buffers=false still takes rank 0's once
    for name in ("other_options", "no_init_sync"):
        same = [torch.equal(*pair) for pair in zip(seen[0][name]["start"], seen[1][name]["start"], strict=True)]
        assert same == [name == "other_options"] * 2


@pytest.mark.slow
def test_no_collective_more_than_bare_ddp(seen: Seen) -> None:
    for rank in range(2):
        for ours, bare in (("plain", "bare"), ("accumulated", "bare_accumulated")):
            assert seen[rank][ours]["collectives"] == seen[rank][bare]["collectives"]
            assert not any(seen[rank][ours]["sent"]), "none from Python"
            assert torch.allclose(seen[rank]["accumulated"]["weights"], seen[rank]["bare_accumulated"]["weights"])
    # of two batches per step, the second backward sends gradients
    batches = [Counter(batch) for batch in seen[0]["accumulated"]["collectives"]]
    assert [batch["allreduce"] for batch in batches] == [0, 1, 0, 1, 0, 1]


@pytest.mark.slow
def test_batch_norms_buffers_need_not_be_sent(seen: Seen) -> None:
    """Training writes the statistics and never reads them: the weights are the same to the bit."""
    for rank in range(2):
        sent, kept = seen[rank]["sent_buffers"], seen[rank]["plain"]
        assert sent["collectives"][-1].count("broadcast") > 0 == kept["collectives"][-1].count("broadcast")
        assert torch.equal(sent["weights"], kept["weights"])


@pytest.mark.slow
@pytest.mark.parametrize(("hook", "dtype", "tolerance"), [("fp16", "float16", 1e-5), ("bf16", "bfloat16", 1e-4)])
def test_half_precision_hooks_halve_the_bytes(seen: Seen, hook: str, dtype: str, tolerance: float) -> None:
    for rank in range(2):
        run = seen[rank][hook]
        assert {kind for batch in run["sent"] for kind, _ in batch} == {dtype}
        assert [sum(size for _, size in batch) for batch in run["sent"]] == [SMALL_BYTES // 2] * 6
        difference = (run["weights"] - seen[rank]["plain"]["weights"]).abs().max().item()
        assert 0 < difference < tolerance, "near the weights of whole gradients, but not they"


@pytest.mark.slow
def test_each_option_reaches_ddp(seen: Seen) -> None:
    """Against the attributes of the wrapped net, and against what it then does."""
    plain = {
        "static_graph": False, "find_unused_parameters": False, "gradient_as_bucket_view": True,
        "bucket_bytes_cap": 25 * 2**20, "sync_buffers": False, "timeout": timedelta(seconds=1800),
    }  # fmt: skip
    changed = {
        "plain": {},
        "static_graph": {"static_graph": True},
        "sent_buffers": {"sync_buffers": True},
        "other_options": {
            "find_unused_parameters": True, "gradient_as_bucket_view": False, "timeout": timedelta(seconds=77),
            "bucket_bytes_cap": int(0.02 * 2**20),
        },
    }  # fmt: skip
    assert {name: seen[0][name]["options"] for name in changed} == {name: plain | own for name, own in changed.items()}
    num_buckets = {name: seen[0][name]["collectives"][-1].count("allreduce") for name in changed}
    assert num_buckets["plain"] == 1 < 3 <= num_buckets["other_options"]


# ---- without ranks -------------------------------------------------------------------------------------------------


class Counting(nn.Module):
    """Reads in each step what it has changed in the one before, or a constant."""

    def __init__(self, persistent: bool) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()), persistent=persistent)


@pytest.mark.parametrize(
    ("nets", "sends"),
    [
        ([nn.BatchNorm2d(3), nn.SyncBatchNorm(3)], False),
        ([nn.BatchNorm2d(3), Counting(persistent=False)], False),
        ([nn.BatchNorm2d(3), Counting(persistent=True)], True),
        ([nn.InstanceNorm2d(3, track_running_stats=True)], True),
    ],
)
def test_auto_sends_buffers_that_training_may_read(nets: list[nn.Module], sends: bool) -> None:
    found = ddp.ddp_arguments(StrategyConfig(), nn.Sequential(*nets))
    assert sends == (not {"forward_sync_buffers", "broadcast_buffers"} & found.keys())


def test_the_wrapper_is_made_on_the_current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made on another stream, as Lightning 2.6 does, it would accumulate gradients there, of which torch warns."""
    streams, made = list[str](), list[Any]()

    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module, device_ids: list[int], **_: object) -> None:
            super().__init__()
            made.append((module, device_ids, list(streams)))

    monkeypatch.setattr(torch.cuda, "Stream", lambda *_: streams.append("another stream"))
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    for module in (ddp, lightning_ddp):
        monkeypatch.setattr(module, "DistributedDataParallel", Wrapper)
    monkeypatch.setattr(lightning_ddp, "_register_ddp_comm_hook", lambda **_: None)
    devices = [torch.device("cuda", number) for number in range(2)]
    strategy = ddp.make_strategy(StrategyConfig(), 2, distributed.HashStore(), "cuda", devices)
    assert isinstance(strategy, ddp.StoreDDPStrategy)
    strategy.cluster_environment = DetectedEnvironment(Place(rank=1, local_rank=1, world_size=2))
    strategy.model = net = L.LightningModule()
    strategy.configure_ddp()
    assert made == [(net, [1], [])]


def test_an_error_is_raised_before_any_process_group() -> None:
    store = distributed.HashStore()
    with pytest.raises(ConfigError, match="nccl is for GPUs"):
        ddp.make_strategy(StrategyConfig(process_group_backend="nccl"), 2, store, kind="cpu")


def test_lightning_counts_ranks_that_see_one_device_each():
    """Lightning is told one device, all that this process sees, and the world is still that of the launcher."""
    info = Place(3, 1, 1, 4, 2, 2, Address("node-a", 29500))
    store = distributed.HashStore()
    strategy = ddp.make_strategy(StrategyConfig(name="ddp"), 4, store, "cpu", [torch.device("cpu")] * 2)
    trainer = L.Trainer(
        accelerator="cpu", devices=1, num_nodes=2, strategy=strategy, plugins=[DetectedEnvironment(info)],
        logger=False, enable_checkpointing=False,
    )  # fmt: skip
    assert (trainer.world_size, trainer.global_rank, trainer.local_rank, trainer.node_rank) == (4, 3, 1, 1)
    assert trainer.strategy.root_device == torch.device("cpu")


def test_layers_of_others_keep_what_they_do_besides() -> None:
    from timm.layers import BatchNormAct2d

    net = nn.Sequential(nn.Conv2d(3, 4, 1), BatchNormAct2d(4))
    _, there = ddp.SyncBatchNorm().apply(net).children()
    assert isinstance(there, nn.SyncBatchNorm) and isinstance(there.act, nn.ReLU)
    _, norm = ddp.SyncBatchNorm().apply(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))).children()
    assert type(norm) is nn.SyncBatchNorm
