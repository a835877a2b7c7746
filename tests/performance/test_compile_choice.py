"""compile=auto: measured once on a machine, and remembered."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.plans import plan_of

from imagenet_ddp.distributed.launchers.world_info import WorldInfo
from imagenet_ddp.engine import worker
from imagenet_ddp.engine.job import Job
from imagenet_ddp.engine.measured_choices import measure_compile
from imagenet_ddp.engine.world import World
from imagenet_ddp.performance import compile_choice

CPU = torch.device("cpu")
OPTIONS = ("compile=auto", "data.batch_size=32", "trainer.precision=32-true")


def test_measured_once_for_each_net_and_batch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    measured: list[Any] = []
    times = {"eager_s": 0.4, "compiled_s": 0.32, "compile_s": 41.2}
    monkeypatch.setattr(compile_choice, "_measure", lambda *arguments: measured.append(arguments) or times)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = plan_of(*OPTIONS).config

    def chosen(config: Any = config, precision: str = "32-true") -> list[str]:
        return compile_choice.choose(config, precision, CPU)

    speeds = "100 images/s compiled, 80 eager; compiling took 41 s"
    assert chosen() == ["default", f"measured now: {speeds}"]
    assert chosen() == ["default", f"measured before on this machine: {speeds}"] and len(measured) == 1
    chosen(precision="bf16-mixed")
    times["compiled_s"] = 0.39  # 2.6 % less
    small = plan_of("data.batch_size=16", *OPTIONS[::2]).config
    assert chosen(small) == ["off", "measured now: 41 images/s compiled, 40 eager"] and len(measured) == 3
    (tmp_path / "imagenet_ddp" / compile_choice.FILE).write_text("half a fi")
    assert chosen()[1].startswith("measured now") and len(measured) == 4


def test_all_ranks_take_what_rank_0_has_measured(monkeypatch: pytest.MonkeyPatch):
    class Group:
        def broadcast(self, key: str, value: Any, timeout_s: float) -> Any:
            sent.append(value)
            return ["default", "measured now"]

    sent: list[Any] = []
    monkeypatch.setattr(compile_choice, "choose", lambda *arguments: ["default", "measured now"])
    for rank in (0, 1):
        info = WorldInfo(rank=rank, local_rank=rank, world_size=2, local_world_size=2)
        plan = measure_compile(plan_of(*OPTIONS), World(info, rank_group=Group()))  # type: ignore[arg-type]
        assert plan.compile == ("default", "measured now")
    assert sent == [["default", "measured now"], None]  # rank 1 has measured nothing


def test_cublas_is_deterministic_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch, one_thread: None):
    def choose(*arguments: Any) -> list[str]:
        found.append(os.environ.get("CUBLAS_WORKSPACE_CONFIG"))
        return ["off", "measured now"]

    found: list[str | None] = []
    monkeypatch.setattr(compile_choice, "choose", choose)
    for name in ("CUBLAS_WORKSPACE_CONFIG", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "")  # and restored at the end
    for deterministic in ("false", "true"):
        config = plan_of(*OPTIONS, f"trainer.deterministic={deterministic}").config
        worker._make_plan(Job(dict(config), Path()), World(WorldInfo()))
    assert found == ["", ":4096:8"]


def test_a_net_that_cannot_be_compiled_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Such as on a GPU where there is no C compiler, which triton needs."""
    from helpers.probes.block_net import BlockNet

    def fail(graph: Any, inputs: Any) -> None:
        raise RuntimeError("Failed to find C compiler.\nPlease specify via CC environment variable.")

    monkeypatch.setattr("imagenet_ddp.performance.train_step.create_model", lambda *_: BlockNet(1000))
    monkeypatch.setattr(compile_choice, "compile_net", lambda net, *_, **__: net.compile(backend=fail))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    value, reason = compile_choice.choose(plan_of(*OPTIONS, "data.image_size=32").config, "32-true", CPU)
    assert value == "off" and reason.startswith("torch.compile fails here: ") and "C compiler" in reason
    assert not (tmp_path / "imagenet_ddp" / compile_choice.FILE).exists(), "it is tried again"


@pytest.mark.slow
def test_a_real_measurement(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from helpers.probes.block_net import BlockNet

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("imagenet_ddp.performance.train_step.create_model", lambda *_: BlockNet(1000))
    monkeypatch.setattr(compile_choice, "BUDGET_S", 1.0)
    config = plan_of(*OPTIONS, "data.image_size=32").config
    value, reason = compile_choice.choose(config, "32-true", CPU)
    assert value in ("off", "default") and " images/s compiled, " in reason
    assert any((tmp_path / "inductor").rglob("*.cpp"))
