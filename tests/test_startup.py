"""Help, a shown config and a refusal come at once, because torch is not imported."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Run, clean_environ

HEAVY = {"torch", "torchvision", "lightning", "pytorch_lightning", "lightning_fabric", "torchmetrics"}

QUICK = [
    pytest.param("__main__", [], 0, id="list-of-commands"),
    pytest.param("train", ["--help"], 0, id="train-help"),
    pytest.param("tune", ["--help"], 0, id="tune-help"),
    pytest.param("benchmark", ["benchmark.repeats=0"], 2, id="benchmark-refused"),
    pytest.param("train", ["--cfg", "job"], 0, id="train-cfg"),
    pytest.param("train", ["trainer.max_epochs=-1", "model.name=resnet19", "nosuchkey=1"], 2, id="train-refused"),
    pytest.param("train", ["-m", "seed=0,1", "optim.lr=-1,0.1"], 2, id="sweep-refused"),
    pytest.param("evaluate", ["checkpoint=nowhere.ckpt"], 2, id="evaluate-refused"),
    pytest.param("export", ["checkpoint=nowhere.ckpt", "format=coreml"], 2, id="export-refused"),
    pytest.param("submit", ["trainer.devices=2"], 0, id="submit"),
]


def command(folder: Path, *argv: str, redirect: str = "", module: str = "imagenet_ddp") -> subprocess.CompletedProcess:
    line = ["sh", "-c", f'exec "$0" -m {module} "$@" {redirect}', sys.executable, *argv]
    return subprocess.run(
        line, cwd=folder, env=clean_environ(), capture_output=True, text=True, timeout=60, preexec_fn=_in_foreground
    )


def _in_foreground() -> None:
    """Undo what a shell without job control does to a command in the background, such as these tests."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR2])
def test_a_signal_during_the_first_imports(number: signal.Signals, tmp_path: Path):
    (tmp_path / "hydra.py").write_text(f"import os; os.kill(os.getpid(), {number:d})\n")
    done = command(tmp_path, module="imagenet_ddp.train")
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "")


def test_a_signal_to_the_installed_script(tmp_path: Path):
    (tmp_path / "hydra.py").write_text("import os; os.kill(os.getpid(), 2)\n")
    environ = clean_environ(PYTHONPATH=str(tmp_path))
    script = [Path(sys.executable).with_name("imagenet-ddp")]
    done = subprocess.run(script, env=environ, capture_output=True, text=True, preexec_fn=_in_foreground)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "")


@pytest.mark.parametrize("redirect", [">&-", "<&- >&- 2>&-"])
def test_closed_streams(redirect: str, tmp_path: Path):
    for argv, code in ((["--help"], 0), (["train", "nosuchkey=1"], 2)):
        done = command(tmp_path, *argv, redirect=redirect)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr


def _imported(stderr: str) -> set[str]:
    """Top-level modules, from python -X importtime: "import time: self [us] | cumulative | name"."""
    lines = [line for line in stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


@pytest.mark.parametrize(("verb", "options", "exit_code"), QUICK)
def test_torch_is_not_imported(verb: str, options: list[str], exit_code: int, run: Run, tmp_path: Path):
    done = run(verb, *options, PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == exit_code, done.stdout + done.stderr[-2000:]
    imported = _imported(done.stderr)
    assert {"imagenet_ddp", "hydra", "omegaconf"} <= imported
    assert not imported & HEAVY
    assert not (tmp_path / "runs").exists()
