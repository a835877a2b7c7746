"""What surrounds the processes of a run."""

from types import SimpleNamespace

import pytest

from imagenet_ddp.distributed import devices
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo
from imagenet_ddp.engine import coordinate


@pytest.mark.parametrize(
    ("processes", "cores", "kind", "said"),
    [
        (8, 2, "cpu", "8 processes share 2 CPU cores: they wait for each other in every step, and need 8 times the "
         "memory of one. Hint: set trainer.devices=2."),
        (2, 1, "cpu", "2 processes share 1 CPU core:"),
        (2, 2, "cpu", ""),
        (1, 1, "cpu", ""),
        (8, 2, "cuda", ""),
    ],
)  # fmt: skip
def test_more_processes_than_cores_are_told_at_once(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    processes: int,
    cores: int,
    kind: str,
    said: str,
):
    monkeypatch.setattr(coordinate, "Workers", lambda *_: SimpleNamespace(run=lambda: "done"))
    monkeypatch.setattr(coordinate, "num_cores", lambda: cores)
    monkeypatch.setattr(coordinate, "_expect_backend", lambda _: None)
    monkeypatch.setattr(devices, "num_local_processes", lambda _: processes)
    monkeypatch.setattr(devices, "device_type", lambda _: kind)
    config = {"trainer": {"accelerator": kind}, "cluster": {"timeout_s": 1.0}}
    task = lambda *_: "done"  # noqa: E731
    assert coordinate.run_job(task, None, config, None, LaunchInfo()) == "done"
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith(said) if said else not out
