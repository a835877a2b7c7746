"""The GPU check in its small CPU form: a slice, stopped and continued, and the packages that it carries."""

import importlib
import json
import signal
import subprocess
import sys
import time
import warnings
import zipfile
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from conftest import ROOT, clean_environ
from helpers.train_runs import wait_for
from lightning.pytorch.plugins import MixedPrecision
from torch.utils.data import DataLoader, TensorDataset

from scripts.gpu_check import packages, watch

SCRIPT = ROOT / "scripts" / "gpu_check.sh"


def start(out: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [SCRIPT, out, "form=cpu", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=clean_environ(PYTHON=sys.executable),
    )  # fmt: skip


def test_a_stop_while_a_check_starts_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts/gpu_check")
    for name in ("checks", "packages"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    checks, started = importlib.import_module("checks"), list[subprocess.Popen[Any]]()

    def stopped(*words: Any, **options: Any) -> Any:
        started.append(popen(*words, **options))
        signal.raise_signal(signal.SIGTERM)
        return started[0]

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", stopped)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with pytest.raises(SystemExit):
            checks.Context(checks.FORMS["cpu"], tmp_path, 1, time.monotonic() + 60, tmp_path / "log").python(
                "-c", "import time; time.sleep(60)"
            )
        assert started[0].poll() == -signal.SIGKILL
    finally:
        signal.signal(signal.SIGTERM, before)
        for name in ("checks", "packages"):
            sys.modules.pop(name, None)
        started[0].kill()


@pytest.mark.slow
def test_a_stopped_slice_continues_without_repeating(tmp_path: Path) -> None:
    logs, out = tmp_path / "logs", tmp_path / "results.json"
    stopped = start(tmp_path, "slices=1")
    running = logs / "step__ResNet_18__bf16.log"
    wait_for(lambda: running.is_file() and running.stat().st_size)
    stopped.terminate()
    said, _ = stopped.communicate(timeout=60)
    assert stopped.returncode == 128 + signal.SIGTERM, said
    assert said.startswith("Missing packages: none."), said
    assert "\nForm: cpu.\n" in said and f"torch {version('torch')}" in said
    found = json.loads(out.read_text())["checks"]
    assert {name: each["state"] for name, each in found.items()} == {"peak of the device": "ok"}

    before = (logs / "peak_of_the_device.log").stat().st_mtime_ns
    again = start(tmp_path, "slices=1", "only=peak|bf16|waits", "minutes=10")
    said, _ = again.communicate(timeout=400)
    assert again.returncode == 0, said
    assert "2 passed, 0 failed, 1 left out, 0 to do" in said
    assert (logs / "peak_of_the_device.log").stat().st_mtime_ns == before, "what has passed is not run again"
    found = json.loads(out.read_text())["checks"]
    assert found["waits from step 3 on are errors"] == {"state": "left out", "reason": "needs a GPU"}
    rate = found["step: ResNet-18, bf16"]["found"]["images_per_s"]
    assert rate > 0 and f"| ResNet-18 | bf16 | 2 | {rate:.3g} |" in (tmp_path / "tables.md").read_text()
    assert (tmp_path / "steps.png").is_file()


@pytest.mark.slow
def test_packages_are_carried_as_wheels(tmp_path: Path) -> None:
    """On a machine without a network, they are imported from the folder where they are unpacked."""
    names = {path.name.split("-")[0] for path in packages.pack(tmp_path)}
    assert {"hydra_core", "omegaconf", "antlr4_python3_runtime", "lightning", "torchmetrics", "pytest"} <= names
    assert not names & {"torch", "torchvision", "numpy"}
    wheels = list(tmp_path.glob("*.whl"))
    assert sum(path.stat().st_size for path in wheels) < 32 * 2**20
    for path in wheels:
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(tmp_path / "site")
            assert not [name for name in wheel.namelist() if name.endswith((".so", ".pyc"))], path.name
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); import hydra; print(hydra.__file__)"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(tmp_path))


# ---- what only a GPU runs ------------------------------------------------------------------------------------------


class Scaled(L.LightningModule):
    """A net in fp16, whose gradients are scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 2)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_an_update_with_an_overflow_is_left_out(tmp_path: Path) -> None:
    out, batches = tmp_path / "overflow.json", DataLoader(TensorDataset(torch.randn(20, 4)), 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    trainer = L.Trainer(
        accelerator="cpu", plugins=[MixedPrecision("16-mixed", "cpu", scaler)], accumulate_grad_batches=2, max_epochs=1,
        callbacks=[watch.Overflow(str(out), accumulate=2)], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(Scaled(), batches)
    found = json.loads(out.read_text())
    assert found == {"weights_kept": True, "scale": [256.0, 128.0], "weights_finite": True, "moved_on": True}


def test_waits_are_errors_from_step_3_on(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: dict[int, str] = {}
    strict, on_gpu = watch.Strict(sync_from=3, sync_until=6), SimpleNamespace(device=torch.device("cuda"))
    for step in range(1, 9):
        monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode, step=step: modes.update({step: mode}))
        strict.on_train_batch_start(None, on_gpu, None, step - 1)
    assert modes == {3: "error", 6: "default"}


def test_the_first_steps_may_not_warn_of_what_a_log_shows() -> None:
    strict, on_cpu = watch.Strict(warnings_until=2), SimpleNamespace(device=torch.device("cpu"))
    strict.on_train_batch_start(None, on_cpu, None, 0)
    warnings.warn("It is recommended to use `self.log('train/loss', ..., sync_dist=True)`", stacklevel=1)
    warnings.warn("torch.cuda.amp is deprecated", FutureWarning, stacklevel=1)
    with pytest.raises(UserWarning, match="other stream"):
        warnings.warn("other stream", stacklevel=1)
    strict.on_train_batch_start(None, on_cpu, None, 1)
    strict.on_train_batch_start(None, on_cpu, None, 2)
    with pytest.warns(UserWarning, match="later"):
        warnings.warn("later", stacklevel=1)
