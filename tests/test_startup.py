"""Help, a shown config and a refusal come at once, because torch is not imported."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import clean_environ

HEAVY = {"torch", "torchvision", "lightning", "pytorch_lightning", "lightning_fabric", "torchmetrics"}

# words -> exit code
QUICK = {
    "--help": 0, "train --help": 0, "tune --help": 0, "benchmark benchmark.repeats=0": 2, "train --cfg job": 0,
    "train trainer.max_epochs=-1 model.name=resnet19 nosuchkey=1": 2, "train -m seed=0,1 optim.lr=-1,0.1": 2,
    "evaluate checkpoint=nowhere.ckpt": 2, "export checkpoint=nowhere.ckpt format=coreml": 2,
    "submit trainer.devices=2": 0,
}  # fmt: skip
IN_TURN = """
import sys
from imagenet_ddp.__main__ import main
for line in sys.argv[1:]:
    sys.argv = ["imagenet-ddp", *line.split()]
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    print("ENDED", code, *{name.partition(".")[0] for name in sys.modules}, flush=True)
"""


def command(folder: Path, *argv: str, redirect: str = "", module: str = "imagenet_ddp") -> subprocess.CompletedProcess:
    line = ["sh", "-c", f'exec "$0" -m {module} "$@" {redirect}', sys.executable, *argv]
    return subprocess.run(
        line, cwd=folder, env=clean_environ(), capture_output=True, text=True, timeout=60, preexec_fn=_in_foreground
    )


def _in_foreground() -> None:
    """Undo what a shell without job control does to a command in the background, such as these tests."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
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


@pytest.mark.parametrize("redirect", [pytest.param(">&-", marks=pytest.mark.slow(2)), "<&- >&- 2>&-"])
def test_closed_streams(redirect: str, tmp_path: Path):
    for argv, code in ((["--help"], 0), (["train", "nosuchkey=1"], 2)):
        done = command(tmp_path, *argv, redirect=redirect)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr


def test_torch_is_not_imported(tmp_path: Path):
    """By any of the commands, which one process runs in turn."""
    line = [sys.executable, "-c", IN_TURN, *QUICK]
    done = subprocess.run(line, cwd=tmp_path, env=clean_environ(), capture_output=True, text=True, timeout=120)
    ended = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("ENDED ")]
    assert len(ended) == len(QUICK), done.stdout + done.stderr
    for (words, expected), (code, *imported) in zip(QUICK.items(), ended, strict=True):
        assert (words, int(code), HEAVY & {*imported}) == (words, expected, set()), done.stderr
    assert {"imagenet_ddp", "hydra", "omegaconf"} <= {*ended[-1]}
    assert not (tmp_path / "runs").exists()
