"""Run benchmark=loader: measure the images per second from files, from packs, and by the number of loader processes."""

import contextlib
import io
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from imagenet_ddp.benchmark.results import Results, ratio, row
from imagenet_ddp.benchmark.trainings import link_images
from imagenet_ddp.config.schema.benchmark import BenchmarkConfig, BenchmarkOptions
from imagenet_ddp.config.schema.data import ImageFolderData, PackedData
from imagenet_ddp.config.schema.prepare import PrepareConfig, PrepareOptions
from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.config.section import to_config
from imagenet_ddp.data.augment import make_own_transform, make_train_transform
from imagenet_ddp.data.loader import EpochLoader, make_loader
from imagenet_ddp.data.sampler import BatchSampler
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.image_files import FileImages
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.data.transforms import last_train_size
from imagenet_ddp.prepare import options as prepare_options
from imagenet_ddp.prepare import pack
from imagenet_ddp.system.console import Progress
from imagenet_ddp.system.cpu_cores import num_cores
from imagenet_ddp.system.text import count_noun

WORKERS_EPOCH_S = 2.0  # approximate length of an epoch in which loader processes are timed
MIN_TIME_S = 0.3  # minimum of one measurement; a shorter function is repeated within its turn


@dataclass(frozen=True)
class Variant:
    title: str
    images: Images
    mib: float


def measure(config: BenchmarkConfig, work: Path) -> Results:
    options, data = config.benchmark, config.data
    variants = make_variants(config, options, work)
    counts = options.num_workers or [0, *(2**power for power in range(num_cores().bit_length()))]
    total = (options.repeats + 1) * (len(variants) + len(counts))
    with contextlib.closing(Progress("benchmark", total, "measurements", rate=False)) as progress:
        epochs = {each.title: epochs_of(train_loader(config, each.images, 0)) for each in variants}
        with one_core():
            rates = time_interleaved(epochs, options.repeats, lambda: progress.add(1))
        rate = statistics.median(rates["files"])
        by_workers = _time_workers(config, variants[0].images, counts, rate, options.repeats, progress)
    ratios = {title: round(ratio(each, rates["files"]), 3) for title, each in rates.items()}
    group = f"One core, {len(variants[0].images)} images, {data.image_size} px, batch {data.batch_size}"
    rows = [
        row(group, each.title, "images/s", rates[each.title], ratios[each.title], MiB=each.mib) for each in variants
    ]
    group = "From files, by number of loader processes"
    rows += [
        row(group, count_noun(count, "process"), "images/s", each, ratio(each, by_workers[counts[0]]))
        for count, each in by_workers.items()
    ]
    best = max(by_workers, key=lambda count: statistics.median(by_workers[count]))
    jpeg, pixels = (ratios[each.title] for each in variants[1:])
    conclusion = (
        f"From files, data.num_workers={best} is fastest, with {statistics.median(by_workers[best]):,.0f} images/s. "
        f"`prepare=pack` makes each process {jpeg:.2f} times as fast, with prepare.form=raw {pixels:.2f} times. "
        "benchmark=train shows whether the loader is the bottleneck."
    )
    return Results(dict(ratios), rows, conclusion)


def make_variants(config: CommonConfig, options: BenchmarkOptions, work: Path) -> list[Variant]:
    """Return files, packed JPEGs and packed pixels, in this order. work: folder to write in. options: benchmark.*"""
    tree = work / "files"
    link_images(config, options.num_images, tree)
    data = config.data.at(tree, ImageFolderData)
    config = replace(config, data=data)
    files: Any = open_source(data, config.seed).train
    num_bytes = sum(path.stat().st_size for path in tree.glob("train/*/*"))
    variants = [Variant("files", files, num_bytes / 2**20)]
    for form, title in (("jpeg", "JPEG"), ("raw", "pixels")):
        out = work / form
        prepare = PrepareOptions(
            "pack", short_side=options.short_side, quality=options.quality, form=form, shard_mib=256
        )
        plan = prepare_options.Plan(to_config({**config, "prepare": prepare}, PrepareConfig), out, num_cores())
        with contextlib.redirect_stdout(io.StringIO()):  # hide the training command that pack prints
            if pack.run(plan):
                raise SystemExit(1)
        packed: Any = open_source(data.at(out, PackedData), config.seed).train
        num_bytes = sum(path.stat().st_size for path in out.glob("train*.bin"))
        variants.append(Variant(f"packed at {options.short_side}, {title}", packed, num_bytes / 2**20))
    return variants


def train_loader(config: CommonConfig, images: Images, num_workers: int) -> EpochLoader:
    data = config.data
    own = make_own_transform(config.transform, last_train_size(data))
    transform = make_train_transform(replace(data, progressive_start=None), own)
    sampler = BatchSampler(len(images), data.batch_size, 1, 0, shuffle=True, seed=config.seed, fill_to=1)
    return make_loader(images, transform, sampler, seed=config.seed, num_workers=num_workers, pin_memory=False)


def epochs_of(loader: EpochLoader) -> Callable[[], int]:
    """Return a function that loads the next epoch and returns its number of images."""
    sampler = loader.batch_sampler
    assert isinstance(sampler, BatchSampler)

    def load_epoch() -> int:
        sampler.set_epoch(sampler.epoch + 1)
        return sum(len(batch["index"]) for batch in loader)

    return load_epoch


def _time_workers(
    config: CommonConfig, images: Images, counts: list[int], rate: float, repeats: int, progress: Progress
) -> dict[int, list[float]]:
    """Time each number of loader processes. All loaders stay alive, because idle processes cost nothing."""
    assert isinstance(images, FileImages)
    size = config.data.batch_size
    size *= max(1, round(rate * WORKERS_EPOCH_S / size))
    with contextlib.ExitStack() as stack:
        epochs: dict[int, Callable[[], int]] = {}
        for count in counts:
            # the same number of full batches for each process, so that no process waits for another
            repeated = images.subset(np.resize(np.arange(len(images)), size * max(count, 1)))
            epochs[count] = epochs_of(stack.enter_context(contextlib.closing(train_loader(config, repeated, count))))
        return time_interleaved(epochs, repeats, lambda: progress.add(1))


def time_interleaved(
    functions: Mapping[Any, Callable[[], int]], repeats: int, on_measured: Callable[[], None]
) -> dict[Any, list[float]]:
    """Time functions that process images and return their number. Return the images per second of each function, with
    one value per repeat. A first turn warms up and is not counted."""
    rates: dict[Any, list[float]] = {name: [] for name in functions}
    num_calls = dict.fromkeys(functions, 1)
    for name, function in functions.items():
        start = time.perf_counter()
        function()
        num_calls[name] = max(1, round(MIN_TIME_S / max(time.perf_counter() - start, 1e-6)))
        on_measured()
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            num_images = sum(function() for _ in range(num_calls[name]))
            rates[name].append(num_images / (time.perf_counter() - start))
            on_measured()
    return rates


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Restrict this process to one core and one thread."""
    threads = torch.get_num_threads()
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    try:
        torch.set_num_threads(1)
        if cores is not None:
            os.sched_setaffinity(0, {max(cores)})
        yield
    finally:
        torch.set_num_threads(threads)
        if cores is not None:
            os.sched_setaffinity(0, cores)
