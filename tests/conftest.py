"""Shared by all tests: real commands as subprocesses from another folder, and small image trees."""

import fcntl
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
PROBES = str(ROOT / "tests" / "helpers" / "probes")  # a folder for PYTHONPATH

# Containers often set it. Then each of the thousand processes below compiles torch's modules anew, for three seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A training that takes a second: what is tested is how it runs, not what it learns.
SMALL = (
    "data=imagefolder", "data.image_size=32", "data.val_resize=32", "data.batch_size=4", "data.num_workers=0",
    "model.name=mobilenet_v3_small", "trainer.accelerator=cpu", "trainer.max_epochs=2", "trainer.precision=32-true",
    "optim.lr=0.01", "optim.reference_batch=null", "schedule.warmup_epochs=0", "cluster.num_threads=1",
)  # fmt: skip

Run = Callable[..., subprocess.CompletedProcess[str]]

# Property tests: the same examples in every run, and no bound on time. More of them, at random:
# pytest -m hypothesis --hypothesis-profile=random
_UNBOUNDED: dict[str, Any] = {"deadline": None, "suppress_health_check": list(hypothesis.HealthCheck), "database": None}
hypothesis.settings.register_profile("same", derandomize=True, max_examples=50, **_UNBOUNDED)
hypothesis.settings.register_profile("random", max_examples=1000, **_UNBOUNDED)
hypothesis.settings.load_profile("same")


# ---- several tests at a time (pytest -n 2) -------------------------------------------------------------------------


@contextmanager
def turn(alone: bool) -> Iterator[None]:
    """Several at a time, or one alone. Who waits to be alone holds the door shut: nobody goes in before."""
    door, room = (os.open(path, os.O_RDONLY) for path in (ROOT / "tests", ROOT))
    try:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        yield
    finally:
        for held in (door, room):
            fcntl.flock(held, fcntl.LOCK_UN)  # said, because a process that was forked has them open too
            os.close(held)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside of the timeout: waiting for one's turn is not the test's time
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    with turn(item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.hookimpl(trylast=True)  # of those that are left to run
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that run alone first, before the others have something to finish; then files with the most slow tests, then
    those with the most tests: else one process waits for the other at the end. (pytest-xdist hands out a file at a
    time, and by itself looks at the number alone.)"""
    for item in items:
        if item.path.parent.name == "faults":  # "what is done: what must happen"
            item.user_properties.append(("fault", " ".join(str(getattr(item, "obj", None).__doc__).split())))
    if "PYTEST_XDIST_WORKER" in os.environ:
        sizes = Counter(item.path for item in items)
        slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
        alone = {item.path for item in items if item.get_closest_marker("alone")}
        # stable: in a file, the order stays otherwise
        items.sort(
            key=lambda item: (
                item.path not in alone, -slow[item.path], -sizes[item.path], not item.get_closest_marker("alone")
            )
        )  # fmt: skip


# ---- what tests share ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real images that are not part of the project."""
    folder = Path(os.environ.get("IMAGENET_DDP_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real images: {folder} does not exist; IMAGENET_DDP_TEST_DATA may name another folder")
    return folder


def write_images(folder: Path, classes: dict[str, int], seed: int = 0, size: int = 40) -> None:
    """folder/<class>/<number>.jpg; each class has a brightness of its own, so that there is something to learn."""
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
    """29 training and 11 validation images of 3 classes: numbers that neither 2 nor 3 ranks divide, nor batches of
    4."""
    root = tmp_path_factory.mktemp("tree")
    write_images(root / "train", {"cat": 10, "dog": 10, "owl": 9})
    write_images(root / "val", {"cat": 4, "dog": 4, "owl": 3}, seed=1)
    return root


@pytest.fixture(scope="session")
def trained(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The best checkpoint of a run on `tree`, whose classes differ in brightness."""
    from helpers import forked_commands

    folder = tmp_path_factory.mktemp("trained")
    options = [*SMALL, "model.name=resnet18", "trainer.max_epochs=6", "optim.lr=0.02", "data.augment=none"]
    options += [f"data.root={tree}", "hydra.run.dir=r"]
    result = forked_commands.run("imagenet_ddp.train", *options, folder=folder, environment=clean_environ())
    assert result.returncode == 0, result.stdout + result.stderr
    return folder / "r/checkpoints/best.ckpt"


# Hints begin with "uv run" where the tests are run so; they are compared with those of a plain shell.
os.environ.pop("UV_RUN_RECURSION_DEPTH", None)

# What a launcher around the tests, a cluster, or uv may have set.
LAUNCHERS = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "GROUP_RANK",
    "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "UV_RUN_RECURSION_DEPTH", "FI_PROVIDER",
)  # fmt: skip
PREFIXES = ("SLURM", "TORCHINDUCTOR_", "TORCHELASTIC_", "OMPI_", "NCCL_", "TORCH_NCCL_", "GLOO_")


def clean_environ(**more: str | None) -> dict[str, str]:
    """The environment of a user's shell. None takes a variable out."""
    environ = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
    environ = {name: value for name, value in environ.items() if not name.startswith(PREFIXES)}
    # threads that share a core with others would wait in loops
    environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    environ |= {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # no processes that import torch to compile a small graph
    environ |= {name: value for name, value in more.items() if value is not None}
    return {name: value for name, value in environ.items() if more.get(name, value) is not None}


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors, and several threads only wait for each other on a machine with other work."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """run("train", *options): python -m imagenet_ddp.train in a folder of its own; where nothing about Python's own
    start is asked for, forked from a process that has imported torch."""
    from helpers import forked_commands

    def start(
        verb: str, *options: str, timeout_s: float = 240, **environ: str | None
    ) -> subprocess.CompletedProcess[str]:
        environment = clean_environ(**environ)
        module = f"imagenet_ddp.{verb}"
        return forked_commands.run(module, *options, folder=tmp_path, environment=environment, timeout_s=timeout_s)

    return start


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A real SLURM, one for all tests; cluster.Cluster."""
    from helpers.slurm_cluster import Cluster, requirement

    if reason := requirement():
        pytest.skip(reason)
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """What the scripts expect where they are submitted: an environment to activate. Python is on PATH already."""
    activate = tmp_path / ".venv/bin/activate"
    activate.parent.mkdir(parents=True)
    activate.touch()
    return tmp_path


# ---- faults, for scripts/reliability.py ------------------------------------------------------------------------------


@pytest.fixture
def told(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """told(end, words): what the user reads, of a faults.trainings.End. said: how the page shows it; seconds: None
    where the fault is there from the start."""

    def tell(end: Any, words: str = "", *, said: str = "", seconds: float | None = -1) -> None:
        if end is not None:
            assert words in end.said, end.out + end.err
            assert "Traceback" not in end.err, end.err
            record_property("code", end.code)
            if seconds is not None:
                record_property("seconds", round(end.said_s if seconds < 0 else seconds, 1))
        record_property("said", said or words)

    return tell


@pytest.fixture(scope="session")
def unharmed(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """unharmed(devices): the run folder of the short training of tests/faults to which nothing happens."""
    from faults import trainings

    folder = tmp_path_factory.mktemp("unharmed")
    return lambda devices=1: trainings.whole(folder, *trainings.short(tree, f"trainer.devices={devices}"))
