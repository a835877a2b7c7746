"""Run benchmark=loader: measure the images per second from files and packs, and whether the model waits for them."""

import contextlib
import io
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from imagenet_ddp.benchmark.results import Results, ratio, row
from imagenet_ddp.benchmark.trainings import Plan, Trainings
from imagenet_ddp.config.schema.commands import BenchmarkOptions, CommonConfig, PrepareConfig, PrepareOptions
from imagenet_ddp.config.section import to_config
from imagenet_ddp.data.augment import make_train_transform
from imagenet_ddp.data.decode import UnreadableImage
from imagenet_ddp.data.loader import EpochLoader, make_loader
from imagenet_ddp.data.sampler import BatchSampler
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.files import FileImages
from imagenet_ddp.data.sources.packed import PackedImages
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.distributed import devices
from imagenet_ddp.distributed.launchers.world_info import WorldInfo
from imagenet_ddp.engine.plan import Plan as ProcessPlan
from imagenet_ddp.engine.plan import make_plan
from imagenet_ddp.performance import step_timer
from imagenet_ddp.performance.step_timer import make_training
from imagenet_ddp.prepare import options as prepare_options
from imagenet_ddp.prepare import pack
from imagenet_ddp.system.console import Progress
from imagenet_ddp.system.cpu_cores import num_cores
from imagenet_ddp.system.text import count_noun, percent

FILES = "files"
WORKERS_EPOCH_S = 2.0  # approximate length of an epoch in which loader processes are timed
MODEL_S = 15.0
MARGIN = 1.1  # the loader is not the bottleneck if its images per second are at least this many times the model's
SMALL_SHARE = 0.1  # if one process loads and trains, loading is a bottleneck above this share of its time
MIN_TIME_S = 0.3  # minimum of one measurement; a shorter function is repeated within its turn


@dataclass(frozen=True)
class Variant:
    name: str  # key in benchmark.json
    title: str
    images: FileImages | PackedImages
    mib: float


def measure(plan: Plan, trainings: Trainings) -> Results:
    config, options, data = plan.config, plan.options, plan.config.data
    process_plan = make_plan(config, WorldInfo())
    num_workers, reason = process_plan.num_workers
    counts = sorted(
        {*(options.num_workers or [0, *(2**power for power in range(num_cores().bit_length()))]), num_workers}
    )
    variants = make_variants(config, options, trainings.work)
    total = (options.repeats + 1) * (len(variants) + len(counts))
    with contextlib.closing(Progress("benchmark", total, "measurements", rate=False)) as progress:
        with one_core():
            rates = _time_variants(config, variants, options.repeats, progress)
        files_rate = statistics.median(rates[FILES])
        by_workers = _time_workers(config, variants[0], counts, files_rate, options.repeats, progress)
    ratios: dict[str, float | None] = {each.name: round(ratio(rates[each.name], rates[FILES]), 3) for each in variants}
    ratios["two_workers"] = round(ratio(by_workers[2], by_workers[1]), 3) if {1, 2} <= by_workers.keys() else None
    num_classes = len(set(variants[0].images.targets.tolist()))
    figures = {
        "images_per_s": {name: _rounded(each) for name, each in rates.items()},
        "workers_images_per_s": {str(count): _rounded(each) for count, each in by_workers.items()},
        "model": _time_model(process_plan, num_classes) if options.model else None,
        "num_workers": num_workers,
        "why_num_workers": reason,
        "num_images": len(variants[0].images),
        "mib": {each.name: round(each.mib, 1) for each in variants},
        "titles": {each.name: each.title for each in variants},
        "image_size": data["image_size"],
        "batch_size": data["batch_size"],
    }
    group = f"On one core, {len(variants[0].images)} images of {data['image_size']} px, batch {data['batch_size']}"
    rows = [row(group, figures["titles"][name], "images/s", each, ratios[name]) for name, each in rates.items()]
    group, first = "From files, by number of loader processes", by_workers[counts[0]]
    rows += [
        row(group, count_noun(count, "process"), "images/s", each, ratio(each, first))
        for count, each in by_workers.items()
    ]
    notes = []
    if model := figures["model"]:
        notes = [f"Model: {model['name']} in {model['precision']}, {model['images_per_s']:,.0f} images/s"]
    return Results(ratios, rows, conclusion(figures, num_cores()), notes, figures)


def make_variants(config: CommonConfig, options: BenchmarkOptions, work: Path) -> list[Variant]:
    """Return files, packed JPEGs and packed pixels, in this order. work: folder to write in. options: benchmark.*"""
    tree = work / "files"
    link_images(config, options.num_images, tree)
    data = replace(config.data, name="imagefolder", root=str(tree), train_dir="train", val_dir="val")
    data = replace(data, val_fraction=None, args={})
    config = replace(config, data=data)
    files = _train(config)
    side = options.short_side
    variants = [Variant(FILES, "files", files, _mib(files))]
    for name, form, title in ((f"packed_{side}_jpeg", "jpeg", "JPEG"), ("packed_raw", "raw", "pixels")):
        out = work / name
        prepare = PrepareOptions("pack", short_side=side, quality=options.quality, form=form, shard_mib=256)
        plan = prepare_options.Plan(to_config({**config, "prepare": prepare}, PrepareConfig), out, num_cores())
        with contextlib.redirect_stdout(io.StringIO()):  # hide the training command that pack prints
            if pack.run(plan):
                raise SystemExit(1)
        packed = _train(replace(config, data=replace(data, name="packed", root=str(out))))
        mib = sum(path.stat().st_size for path in out.glob("train*.bin")) / 2**20
        variants.append(Variant(name, f"packed at {side}, {title}", packed, mib))
    return variants


def _train(config: CommonConfig) -> Any:
    images = open_source(config.data, config.seed).train
    assert isinstance(images, FileImages | PackedImages)
    return images


def link_images(config: CommonConfig, num_images: int, tree: Path, at_least: int = 0) -> None:
    """Link evenly spaced images into tree/train, and one per class into tree/val, because a pack needs both splits.

    at_least: minimum number of links in tree/train. If there are fewer images, each is linked several times.
    """
    source = open_source(config.data, config.seed)
    images = source.train
    assert isinstance(images, FileImages)
    seen: set[int] = set()
    chosen = np.linspace(0, len(images) - 1, min(num_images, len(images)), dtype=np.int64)
    # the baseline would fail on unreadable images
    chosen = [int(index) for index in chosen if _is_readable(images, int(index))]
    for number in range(max(len(chosen), at_least if chosen else 0)):
        index = chosen[number % len(chosen)]
        path, target = Path(images.path(index)).absolute(), int(images.targets[index])
        splits = ["train"] if target in seen else ["train", "val"]
        seen.add(target)
        for split in splits:
            folder = tree / split / source.classes[target]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number:06}{path.suffix}").symlink_to(path)


def _is_readable(images: FileImages, index: int) -> bool:
    try:
        images.read(index)
    except (UnreadableImage, OSError):
        return False
    return True


def _mib(images: FileImages) -> float:
    return sum(Path(images.path(index)).stat().st_size for index in range(len(images))) / 2**20


def _rounded(rates: Sequence[float]) -> dict[str, Any]:
    return {"median": round(statistics.median(rates), 1), "all": [round(rate, 1) for rate in rates]}


def train_loader(config: CommonConfig, images: Images, num_workers: int) -> EpochLoader:
    data = config.data
    transform = make_train_transform(replace(data, progressive_start=None))
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


def _time_variants(
    config: CommonConfig, variants: list[Variant], repeats: int, progress: Progress
) -> dict[str, list[float]]:
    epochs = {variant.name: epochs_of(train_loader(config, variant.images, 0)) for variant in variants}
    return time_interleaved(epochs, repeats, lambda: progress.add(1))


def _time_workers(
    config: CommonConfig, files: Variant, counts: list[int], rate: float, repeats: int, progress: Progress
) -> dict[int, list[float]]:
    """Time each number of loader processes. All loaders stay alive, because idle processes cost nothing."""
    images = files.images
    assert isinstance(images, FileImages)
    loaders: dict[int, EpochLoader] = {}
    size = config.data.batch_size
    size *= max(1, round(rate * WORKERS_EPOCH_S / size))
    try:
        for count in counts:
            # the same number of full batches for each process, so that no process waits for another
            repeated = images.subset(np.resize(np.arange(len(images)), size * max(count, 1)))
            loaders[count] = train_loader(config, repeated, count)
        epochs = {count: epochs_of(loader) for count, loader in loaders.items()}
        return time_interleaved(epochs, repeats, lambda: progress.add(1))
    finally:
        for loader in loaders.values():
            loader.close()


def _time_model(plan: ProcessPlan, num_classes: int) -> dict[str, Any]:
    config, device = plan.config, devices.device_of(plan.config.trainer)
    threads = torch.get_num_threads()
    torch.set_num_threads(plan.num_threads.value)
    training = make_training(config, plan.precision.value, device, num_classes)
    times = step_timer.time_steps(training, [(training.net, False)], budget_s=MODEL_S, warm_up=2)[0]
    torch.set_num_threads(threads)
    return {
        "name": config.model.target or config.model.name,
        "precision": plan.precision.value,
        "images_per_s": round(config.data.batch_size / times.compute_s, 1),
        "num_steps": times.num_steps,
        "device": step_timer.device_name(device),
    }


def conclusion(figures: Mapping[str, Any], cores: int) -> str:
    """Return whether the model waits for its images, and which change would help."""
    num_workers = figures["num_workers"]
    rate = figures["workers_images_per_s"][str(num_workers)]["median"]
    processes = count_noun(num_workers, "loader process") if num_workers else "no loader processes"
    start = f"The loader delivers {rate:,.0f} images/s with {processes} ({figures['why_num_workers']})"
    if figures["model"] is None:
        return f"{start}. The model was not measured (benchmark.model=false)."
    needed = figures["model"]["images_per_s"]
    start += f", and the model consumes {needed:,.0f} images/s. "
    if num_workers == 0:
        share = (1 / rate) / (1 / rate + 1 / needed)
        start += f"One process does both, and loading takes {percent(share, 0)} of its time. "
        if share > SMALL_SHARE:
            part = "the" if share > 0.5 else "part of the"
            return f"{start}Loading is {part} bottleneck. {_advice(figures, needed, cores)}"
    elif rate < MARGIN * needed:
        return f"{start}The bottleneck is the loader. {_advice(figures, needed, cores)}"
    return f"{start}The bottleneck is the training step."


def _advice(figures: Mapping[str, Any], needed: float, cores: int) -> str:
    """Recommend the cheapest sufficient change (loader processes, packed JPEGs, packed pixels), else the fastest."""
    max_workers = max(cores - 1, 1)
    rates = {name: figures["images_per_s"][name]["median"] for name in figures["titles"]}
    counts = {name: math.ceil(MARGIN * needed / rate) for name, rate in rates.items()}
    sufficient = [name for name, count in counts.items() if count <= max_workers]
    name = sufficient[0] if sufficient else max(rates, key=lambda each: rates[each])
    rate, count = rates[name], min(counts[name], max_workers)
    change = f"data.num_workers={count}"
    if name != next(iter(rates)):
        form = "raw" if name == "packed_raw" else "jpeg"
        change = f"`python -m imagenet_ddp.prepare prepare=pack prepare.form={form}` and {change}"
    num_workers = figures["num_workers"]
    if num_workers and count * rate <= figures["workers_images_per_s"][str(num_workers)]["median"]:
        return "Nothing else that was measured is faster."
    overlap = "" if num_workers else ", while the step computes"
    return f"This would help: {change} (about {count * rate:,.0f} images/s{overlap})."


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
