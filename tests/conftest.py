"""Fixtures shared by all tests: small image trees, and real commands as subprocesses in another folder."""

import atexit
import gc
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from PIL import Image

# nohup and some CI systems ignore SIGHUP, and every process started here would inherit that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

ROOT = Path(__file__).resolve().parent.parent
PROBES = str(ROOT / "tests" / "helpers" / "probes")  # a folder for PYTHONPATH

# Containers often set this variable. Each of the thousand processes that the tests start would then compile torch's
# modules again, which takes three seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Options of a training run that takes less than a second. The tests check how it runs, not what it learns. Three blocks
# of mobilenet_v2 have all that matters (batch norm, depthwise convolutions, dropout), and a step takes a sixth of the
# time of mobilenet_v3_small's.
_BLOCKS = "[[1,16,1,1],[6,24,1,2],[6,32,1,2]]"
SMALL_DRAWN = (
    "data=imagefolder", "data.image_size=32", "data.val_resize=32", "data.batch_size=4", "data.num_workers=0",
    "model.name=mobilenet_v2", f"+model.args={{width_mult:0.25,inverted_residual_setting:{_BLOCKS}}}",
    "trainer.accelerator=cpu", "trainer.max_epochs=2", "trainer.precision=32-true",
    "optim.lr=0.01", "optim.scaling=none", "schedule.warmup_epochs=0", "cluster.num_threads=1",
)  # fmt: skip
SMALL_ARGS = {"width_mult": 0.25, "inverted_residual_setting": json.loads(_BLOCKS)}  # the model.args of SMALL
# The same without the pictures, which take a third of the CPU time of a forked run.
SMALL = (*SMALL_DRAWN, "callbacks.batch_sheet=null", "callbacks.history.curves=false")


def small_run(*net: str, options: Sequence[str] = SMALL) -> tuple[str, ...]:
    """Return the options of such a run with another net, such as "model.name=resnet18"."""
    return (*(option for option in options if "model." not in option), *net)


Run = Callable[..., subprocess.CompletedProcess[str]]

# Property tests use the same examples in every run, without a time limit. To run more, random examples:
# pytest -m hypothesis --hypothesis-profile=random
_UNBOUNDED: dict[str, Any] = {"deadline": None, "suppress_health_check": list(hypothesis.HealthCheck), "database": None}
hypothesis.settings.register_profile("same", derandomize=True, max_examples=30, **_UNBOUNDED)
hypothesis.settings.register_profile("random", max_examples=1000, **_UNBOUNDED)
hypothesis.settings.load_profile("same")


# ---- running tests in parallel (pytest -n 3) -----------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Start one fork server for all workers of pytest-xdist."""
    if config.getoption("numprocesses", None) and sys.platform == "linux" and not config.option.collectonly:
        from helpers import forked_commands

        forked_commands.fork_server()
    else:
        gc.disable()  # until the tests are collected: what they import stays


@pytest.hookimpl(trylast=True)  # after other plugins have deselected tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the files by the time of their slow tests, then by the number of tests, so that the workers finish at about
    the same time.

    pytest-xdist distributes whole files, and by itself considers only the number of their tests.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        sizes = Counter(item.path for item in items)
        slow = Counter[Path]()
        for item in items:
            if marker := item.get_closest_marker("slow"):
                slow[item.path] += marker.args[0] if marker.args else 10
        items.sort(key=lambda item: (-slow[item.path], -sizes[item.path]))  # stable: the order within a file is kept


def pytest_collection_finish() -> None:
    """Collect garbage from here on, except among what has been imported, which takes a second each time. torch uses one
    thread."""
    gc.freeze()
    gc.enable()
    if "torch" in sys.modules:  # on small tensors and a busy machine, several threads mostly wait for each other
        sys.modules["torch"].set_num_threads(1)
    atexit.register(gc.unfreeze)  # else extensions (triton) report frozen objects as leaks at exit


# ---- shared fixtures ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def odd_images() -> Path | None:
    """Return the folder of collected images that decoders stumble over, which are not part of the project, or None if
    it does not exist. The tests generate such files, too."""
    folder = Path(os.environ.get("IMAGENET_DDP_TEST_DATA", ROOT.parent / "shared" / "data")) / "odd"
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return JPEG files of different shapes, colours and brightness, in one folder."""
    from helpers.sample_images import write_photos

    return write_photos(tmp_path_factory.mktemp("photographs"))


def write_images(folder: Path, classes: dict[str, int], seed: int = 0, size: int = 40) -> None:
    """Write the images folder/<class>/<number>.jpg. Each class has a different brightness, so that a net can learn it.

    classes: name -> number of images. size: height in pixels, and minimum width.
    """
    generator = np.random.default_rng(seed)
    for position, (name, count) in enumerate(classes.items()):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = (
                generator.normal(60 + 50 * position, 30, (size, size + number % 7, 3)).clip(0, 255).astype(np.uint8)
            )
            Image.fromarray(pixels).save(folder / name / f"{number:03}.jpg")


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with 29 training and 11 validation images of 3 classes. Neither 2 nor 3 ranks, nor batches of 4,
    divide these numbers evenly."""
    root = tmp_path_factory.mktemp("tree")
    write_images(root / "train", {"cat": 10, "dog": 10, "owl": 9})
    write_images(root / "val", {"cat": 4, "dog": 4, "owl": 3}, seed=1)
    return root


@pytest.fixture
def seven_class_weights(tmp_path: Path) -> Path:
    """Random weights of the net of SMALL, for seven classes."""
    import torch
    from torchvision.models import mobilenet_v2

    torch.manual_seed(5)
    torch.save(mobilenet_v2(num_classes=7, **SMALL_ARGS).state_dict(), tmp_path / "weights.pt")
    return tmp_path / "weights.pt"


@pytest.fixture(scope="session")
def trained(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the best checkpoint of a run on `tree`, whose classes differ in brightness."""
    from helpers import forked_commands

    folder = tmp_path_factory.mktemp("trained")
    options = [*SMALL_DRAWN, "trainer.max_epochs=6", "optim.lr=0.05", "data.augment=none", f"data.root={tree}"]
    options += ["hydra.run.dir=r"]
    result = forked_commands.run("imagenet_ddp.train", *options, folder=folder, environment=clean_environ())
    assert result.returncode == 0, result.stdout + result.stderr
    return folder / "r/checkpoints/best.ckpt"


@pytest.fixture(scope="session", autouse=True)
def _composed_once() -> None:
    from helpers.composed_once import compose_once
    from helpers.forked_commands import SHARED

    compose_once(Path(os.environ[SHARED]) if SHARED in os.environ else None)


def _restored_process() -> Iterator[None]:
    from helpers import process_state

    before = process_state.read()
    yield
    process_state.restore(before)


# Each test, and the fixtures of each file, find the process as the first one did.
_restored_by_each_file = pytest.fixture(scope="module", autouse=True)(_restored_process)
_restored_by_each_test = pytest.fixture(autouse=True)(_restored_process)


@pytest.fixture(autouse=True)
def rank_zero() -> Iterator[None]:
    """Restore the rank that Lightning's loggers look at: making a strategy for another rank sets it for good."""
    yield
    if module := sys.modules.get("lightning.fabric.utilities.rank_zero"):
        module.rank_zero_only.rank = 0


# If `uv run` starts the tests, hints begin with "uv run". The tests expect the hints of a plain shell.
os.environ.pop("UV_RUN_RECURSION_DEPTH", None)

# Hints begin as the command was typed, which is python here.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

# Variables that a launcher of the tests, a cluster or uv may have set.
LAUNCHERS = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "GROUP_RANK",
    "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "UV_RUN_RECURSION_DEPTH", "FI_PROVIDER",
    "IMAGENET_DDP_FORK_SERVER",
)  # fmt: skip
PREFIXES = ("SLURM", "TORCHINDUCTOR_", "TORCHELASTIC_", "OMPI_", "NCCL_", "TORCH_NCCL_", "GLOO_")


def clean_environ(**more: str | None) -> dict[str, str]:
    """Return the environment of a user's shell, with these variables changed. None removes a variable."""
    environ = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
    environ = {name: value for name, value in environ.items() if not name.startswith(PREFIXES)}
    # threads that share a core with other threads would otherwise wait in busy loops
    environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    environ |= {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # no processes that import torch for small graphs
    environ |= {name: value for name, value in more.items() if value is not None}
    return {name: value for name, value in environ.items() if more.get(name, value) is not None}


@pytest.fixture(autouse=True)
def no_processes_left() -> Iterator[None]:
    """Kill the commands that a test started, if it failed before they ended: they would slow down the other tests."""
    from helpers import forked_commands

    num_before = len(forked_commands.STARTED)  # fixtures of a module or of the session may have started some
    yield
    while len(forked_commands.STARTED) > num_before:
        if (process := forked_commands.STARTED.pop()).poll() is None:
            process.kill()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function: run("train", *options) runs `python -m imagenet_ddp.train` in the test's own folder. code: the
    exit code that it must have.

    The command is forked from a process that has imported torch, unless its environment changes how Python starts.
    """
    from helpers import forked_commands

    def start(
        verb: str, *options: str, timeout_s: float = 240, code: int | None = None, **environ: str | None
    ) -> subprocess.CompletedProcess[str]:
        environment = clean_environ(**environ)
        module = f"imagenet_ddp.{verb}"
        done = forked_commands.run(module, *options, folder=tmp_path, environment=environment, timeout_s=timeout_s)
        assert code in (None, done.returncode), done.stdout + done.stderr
        assert code != 0 or "leaked" not in done.stderr, done.stderr
        return done

    return start


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function: refused("train", *options) types the command in the test's own folder, but in this process,
    and returns its mistakes in one line. The command must exit with code 2."""
    from imagenet_ddp.__main__ import main

    def type_it(verb: str, *options: str, **environ: str | None) -> str:
        capsys.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            for name in os.environ.keys() - (environment := clean_environ(**environ)).keys():
                patch.delenv(name)
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["imagenet_ddp", verb, *options])
            with pytest.raises(SystemExit) as caught:
                main()
        out, err = capsys.readouterr()
        assert (caught.value.code, "Traceback" in err) == (2, False), out + err
        return " ".join(err.split())

    return type_it


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Any]:
    """Yield a real SLURM (helpers.slurm_cluster.Cluster), which all tests share. Skips the test if it cannot run."""
    from helpers.slurm_cluster import Cluster, requirement

    if reason := requirement():
        pytest.skip(reason)
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Any) -> Iterator[Any]:
    """Yield the SLURM of all tests. Jobs of a test that fails do not run on beside those of the next test."""
    yield shared_cluster
    shared_cluster.cancel_all()


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """scontrol(of show, code of requeue): an scontrol of that kind; the words it was called with are in `called`."""

    def answer(shown: str, code: int = 0, error: str = "") -> Path:
        (tmp_path / "shown").write_text(shown)
        program = tmp_path / "scontrol"
        program.write_text(
            f'#!/bin/sh\necho "$@" >>{tmp_path}/called\n'
            f'if [ "$1" = show ]; then cat {tmp_path}/shown; [ -s {tmp_path}/shown ]; exit $?; fi\n'
            f'echo "{error}" >&2; exit {code}\n'
        )
        program.chmod(0o755)
        return tmp_path / "called"

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return answer


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Return a folder from which the scripts can be submitted. It contains the virtual environment that they activate;
    its activate script is empty, because Python is already on PATH."""
    activate = tmp_path / ".venv/bin/activate"
    activate.parent.mkdir(parents=True)
    activate.touch()
    return tmp_path


@pytest.fixture(scope="session")
def unharmed(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function: unharmed(devices) returns the run folder of the short training run of tests/faults without any
    fault."""
    from faults import trainings

    folder = tmp_path_factory.mktemp("unharmed")
    return lambda devices=1: trainings.whole(folder, *trainings.short(tree, f"trainer.devices={devices}"))
