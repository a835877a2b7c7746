import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import clean_environ
from torch.utils.data import DataLoader

from imagenet_ddp.data import loader as module
from imagenet_ddp.data.loader import (
    Batch,
    EpochLoader,
    Samples,
    choose_mp_context,
    choose_num_workers,
    collate,
    make_loader,
)
from imagenet_ddp.data.sampler import BatchSampler, Key
from imagenet_ddp.data.sources import FileImages, walk
from imagenet_ddp.data.transforms import train_transform

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.fixture(scope="module")
def images(tree: Path) -> FileImages:
    return walk(tree / "train", ["cat", "dog", "owl"])


def make(images: FileImages, num_workers: int, batch_size: int = 4, world_size: int = 1, rank: int = 0) -> EpochLoader:
    sampler = BatchSampler(len(images), batch_size, world_size, rank, shuffle=True, seed=7, fill_to=2)
    return make_loader(
        images,
        train_transform(16, (0.08, 1.0), 0.5),
        sampler,
        seed=7,
        num_workers=num_workers,
        pin_memory=False,
        mp_context="auto",
    )


def sampler_of(loader: DataLoader) -> BatchSampler:
    assert isinstance(loader.batch_sampler, BatchSampler)
    return loader.batch_sampler


def epoch(loader: EpochLoader, number: int) -> list[Batch]:
    sampler_of(loader).set_epoch(number)
    return list(loader)


@pytest.fixture(scope="module")
def with_workers(images: FileImages) -> Iterator[EpochLoader]:
    loader = make(images, num_workers=2)
    yield loader
    loader.close()


def assert_same(found: list[Batch], expected: list[Batch]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for name in ("image", "target", "index"):
            assert torch.equal(one[name], other[name])
        assert (one["num_counted"], one["step_images"]) == (other["num_counted"], other["step_images"])


def test_a_batch_says_what_it_holds(images: FileImages):
    batches = epoch(make(images, num_workers=0), 0)
    # 29 images: the last two steps share five
    assert [batch["num_counted"] for batch in batches] == [4] * 6 + [3, 2]
    assert [len(batch["index"]) for batch in batches] == [4] * 6 + [3, 2]
    assert [batch["step_images"] for batch in batches] == [4] * 6 + [3, 2]
    order = torch.cat([batch["index"][: batch["num_counted"]] for batch in batches])
    assert sorted(order.tolist()) == list(range(29))
    for batch in batches:
        assert batch["image"].shape == (len(batch["index"]), 3, 16, 16)
        assert batch["image"].dtype == torch.uint8
        assert batch["image"].is_contiguous()
        assert batch["target"].dtype == batch["index"].dtype == torch.int64
        assert batch["target"].tolist() == images.targets[batch["index"].numpy()].tolist()


def test_collate_counts_and_stacks_in_order():
    samples = [
        (torch.full((3, 2, 2), number, dtype=torch.uint8), 10 + number, Key(3, number, number < 2, 5))
        for number in range(3)
    ]
    batch = collate(samples)
    assert batch["image"][:, 0, 0, 0].tolist() == [0, 1, 2]
    assert batch["target"].tolist() == [10, 11, 12]
    assert batch["index"].tolist() == [0, 1, 2]
    assert (batch["num_counted"], batch["step_images"]) == (2, 5)


def test_loader_processes_change_no_byte(images: FileImages, with_workers: EpochLoader):
    torch.manual_seed(1)
    alone = [epoch(make(images, num_workers=0), number) for number in (0, 3)]
    torch.manual_seed(2)
    assert_same(epoch(with_workers, 0), alone[0])
    assert_same(epoch(with_workers, 3), alone[1])


def test_a_samples_crop_hangs_on_seed_epoch_and_image_alone(images: FileImages):
    def crops(batches: list[Batch]) -> dict[int, bytes]:
        return {
            int(index): image.numpy().tobytes()
            for batch in batches
            for index, image in zip(batch["index"], batch["image"], strict=True)
        }

    whole = crops(epoch(make(images, 0), 2))
    parts = [crops(epoch(make(images, 0, batch_size=3, world_size=2, rank=rank), 2)) for rank in range(2)]
    assert parts[0].items() <= whole.items()
    assert parts[1].items() <= whole.items()
    other_epoch = crops(epoch(make(images, 0), 1))
    assert sum(whole[index] == other_epoch[index] for index in whole) == 0
    other_seed = Samples(images, train_transform(16, (0.08, 1.0), 0.5), seed=8)
    assert other_seed[Key(2, 5, True, 4)][0].numpy().tobytes() != whole[5]


def test_the_iterator_waits_for_the_epoch(with_workers: EpochLoader, images: FileImages):
    """As Lightning does it: iter(), then set_epoch()."""
    for loader in (with_workers, make(images, num_workers=0)):
        sampler = sampler_of(loader)
        sampler.set_epoch(0)
        batches = iter(loader)
        sampler.set_epoch(5)
        found = [index for batch in batches for index in batch["index"][: batch["num_counted"]].tolist()]
        assert found == sampler.order()
        sampler.set_epoch(0)
        assert found != sampler.order()


def test_workers_stay_from_epoch_to_epoch_and_get_its_keys(with_workers: EpochLoader):
    def processes() -> list[int]:
        return [worker.pid for worker in with_workers._iterator._workers]  # type: ignore[union-attr]

    orders, workers = [], []
    for number in range(3):
        batches = epoch(with_workers, number)
        workers.append(processes())
        found = [index for batch in batches for index in batch["index"][: batch["num_counted"]].tolist()]
        assert found == sampler_of(with_workers).order()
        orders.append(tuple(found))
    assert len(set(orders)) == 3
    assert workers[0] == workers[1] == workers[2]


def test_an_unreadable_image_is_named_by_its_loader_process(tmp_path: Path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "broken.jpg").write_bytes(b"no image")
    for num_workers in (0, 1):
        with pytest.raises(Exception, match=r"broken\.jpg cannot be read as an image: it is no image"):
            list(make(walk(tmp_path, ["cat"]), num_workers))


@linux_only
def test_a_worker_ignores_stop_signals(with_workers: EpochLoader):
    expected = epoch(with_workers, 0)
    workers = [worker.pid for worker in with_workers._iterator._workers]  # type: ignore[union-attr]
    for pid in workers:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(pid, number)
    assert_same(epoch(with_workers, 0), expected)
    assert [worker.pid for worker in with_workers._iterator._workers] == workers  # type: ignore[union-attr]


def test_a_closed_loader_has_no_processes_and_may_begin_again(images: FileImages):
    loader = make(images, num_workers=1)
    expected = epoch(loader, 0)
    [worker] = loader._iterator._workers  # type: ignore[union-attr]
    loader.close()
    assert not worker.is_alive()
    loader.close()
    assert_same(epoch(loader, 0), expected)
    loader.close()
    make(images, num_workers=0).close()


@linux_only
def test_starting_the_fork_server_leaves_this_process_its_signals(images: FileImages):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        make(images, num_workers=1)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before | {signal.SIGUSR2}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# All processes of a run get the same signal, as from a batch system or a terminal, and at the worst moment: while the
# fork server is still importing torch. The process then says who its helpers are, and waits to be killed.
STOPPED_AT_ONCE = """
    import os, signal, sys, time
    from multiprocessing import forkserver, resource_tracker
    from pathlib import Path
    from imagenet_ddp.data.loader import make_loader
    from imagenet_ddp.data.sampler import BatchSampler
    from imagenet_ddp.data.sources import walk
    from imagenet_ddp.data.transforms import train_transform

    def main():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda *_: None)
        sampler = BatchSampler(29, 4, 1, 0, shuffle=True, seed=7, fill_to=2)
        transform = train_transform(16, (0.08, 1.0), 0.5)
        images = walk(Path(sys.argv[1]) / "train", ["cat", "dog", "owl"])
        keys = dict(seed=7, num_workers=2, pin_memory=False, mp_context="forkserver")
        loader = make_loader(images, transform, sampler, **keys)
        helpers = [forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid]
        for moment in range(2):
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
                for pid in helpers:
                    os.kill(pid, number)
            assert sum(batch["num_counted"] for batch in loader) == 29
            helpers += [worker.pid for worker in loader._iterator._workers]
        print(*helpers[:4], flush=True)
        time.sleep(100)

    if __name__ == "__main__":
        main()
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@linux_only
def test_all_helpers_outlive_stop_signals_but_not_the_training_process(tree: Path, tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(STOPPED_AT_ONCE))
    process = subprocess.Popen(
        [sys.executable, script, tree], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environ()
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        said = process.stdout.readline()
    finally:
        process.kill()
    helpers = [int(pid) for pid in said.split()]
    assert len(helpers) == 4, process.stderr.read()
    deadline = time.monotonic() + 30
    while any(map(is_running, helpers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = [pid for pid in helpers if is_running(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    assert left == []


def test_the_start_method_is_forkserver_where_there_is_one(monkeypatch: pytest.MonkeyPatch):
    assert [choose_mp_context(asked) for asked in ("fork", "spawn", "forkserver")] == ["fork", "spawn", "forkserver"]
    for platform, methods, expected in (
        ("linux", ["fork", "spawn", "forkserver"], "forkserver"),
        ("darwin", ["spawn", "fork", "forkserver"], "spawn"),
        ("win32", ["spawn"], "spawn"),
    ):
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda methods=methods: methods)
        assert choose_mp_context("auto") == expected


@pytest.mark.parametrize(
    ("asked", "on_cpu", "cores", "processes", "expected"),
    [
        (0, False, 64, 1, 0),
        (3, True, 2, 8, 3),
        ("5", True, 2, 8, 5),
        ("auto", True, 1, 1, 0),
        ("auto", True, 3, 1, 0),
        ("auto", True, 4, 1, 1),
        ("auto", True, 16, 2, 2),
        ("auto", False, 1, 1, 1),
        ("auto", False, 2, 2, 1),
        ("auto", False, 8, 1, 7),
        ("auto", False, 64, 8, 7),
        ("auto", False, 96, 1, 16),
    ],
)
def test_the_number_of_workers_follows_the_cores(
    monkeypatch: pytest.MonkeyPatch, asked: int | str, on_cpu: bool, cores: int, processes: int, expected: int
):
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    number, reason = choose_num_workers(asked, on_cpu, processes)
    assert number == expected
    assert (reason == "as set") == (asked != "auto")
    if asked == "auto":
        assert str(cores // processes) in reason


def test_without_an_affinity_all_cores_count(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(module.os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(module.os, "cpu_count", lambda: 9)
    assert choose_num_workers("auto", False, 1)[0] == 8
    monkeypatch.setattr(module.os, "cpu_count", lambda: None)
    assert choose_num_workers("auto", False, 1)[0] == 1


def test_samples_have_the_length_of_the_split(images: FileImages):
    samples = Samples(images, lambda image: image, seed=0)
    assert len(samples) == 29
    image, target, key = samples[Key(0, 12, True, 4)]
    assert image.shape[0] == 3
    assert (target, key) == (1, Key(0, 12, True, 4))
    assert type(target) is int
