"""benchmark=loader: images per second from each form, where their time goes, and whether the model waits for them."""

import os
import platform
import random
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from imagenet_ddp.benchmark import report
from imagenet_ddp.benchmark.baseline import plain_loader
from imagenet_ddp.benchmark.options import Plan
from imagenet_ddp.benchmark.timing import Rates, in_turns, microseconds, one_core
from imagenet_ddp.benchmark.variants import FILES, Form, make_forms
from imagenet_ddp.data.decoding import jpeg_backends
from imagenet_ddp.data.loading.dataloader import EpochLoader, make_loader
from imagenet_ddp.data.loading.sampler import BatchSampler
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.folder.images import FileImages
from imagenet_ddp.data.transforms import Sizes, TrainTransform, empty, normalise
from imagenet_ddp.distributed import devices
from imagenet_ddp.distributed.launchers.world_info import WorldInfo
from imagenet_ddp.engine.plan import make_plan
from imagenet_ddp.performance import step_timer
from imagenet_ddp.performance.train_step import device_of, make_training
from imagenet_ddp.runs import summary
from imagenet_ddp.system.cpu_cores import num_cores
from imagenet_ddp.system.progress_bar import Progress

PLAIN = "plain"
STAGE_IMAGES = 96  # of which each stage is timed
WORKERS_S = 2.0  # length of an epoch that loader processes are timed with, about
MODEL_S = 15.0


def run(plan: Plan, command: str) -> dict[str, Any]:
    """What benchmark.json holds. Writes it, and benchmark.png, into plan.folder."""
    config, options = plan.config, plan.options
    own, why = make_plan(config, WorldInfo()).num_workers
    counts = sorted({*plan.num_workers, own})
    with tempfile.TemporaryDirectory(prefix=".work-", dir=plan.folder) as work:
        forms = make_forms(config, options, Path(work))
        turns = options["repeats"] + 1
        total = turns * (1 + len(forms) + len(counts))
        progress = Progress("benchmark", total, "measurements", rate=False)
        with one_core():
            rates = _one_core(config, forms, options["repeats"], progress)
            stages = {form.name: _stages(config, form, 1e6 / rates[form.name].median) for form in forms}
            decoding = _decoders(forms[0].images)
        by_count = _by_workers(config, forms[0], counts, rates[FILES].median, options["repeats"], progress)
        progress.end()
    ratios: dict[str, float | None] = {form.name: round(rates[form.name].over(rates[PLAIN]), 3) for form in forms}
    ratios["two_workers"] = round(by_count[2].over(by_count[1]), 3) if {1, 2} <= by_count.keys() else None
    found = {
        "ratios": ratios,
        "images_per_s": {name: each.as_dict() for name, each in rates.items()},
        "stages_us": stages,
        "decoders_images_per_s": decoding,
        "workers_images_per_s": {
            str(count): {name: value for name, value in each.as_dict().items() if name != "per_cpu_second"}
            for count, each in by_count.items()
        },
        "device": _device(config),
        "model": _model(config, len(set(forms[0].images.targets.tolist()))) if options["model"] else None,
        "num_workers": own,
        "why_num_workers": why,
        "num_images": len(forms[0].images),
        "mib": {form.name: round(form.mib, 1) for form in forms},
        "words": {PLAIN: "plain (pytorch/examples)", **{form.name: form.words for form in forms}},
        "image_size": config["data"]["image_size"],
        "batch_size": config["data"]["batch_size"],
        "repeats": options["repeats"],
        "machine": _machine(),
        **summary.circumstances(command),
    }
    found["conclusion"] = report.conclusion(found)
    summary.write_json(plan.folder / "benchmark.json", found)
    report.draw(found, plan.folder / "benchmark.png")
    print(report.text(found))
    print(f"Written to {plan.folder}: benchmark.json, benchmark.png")
    return found


def _transform(config: Mapping[str, Any]) -> TrainTransform:
    data = config["data"]
    low, high = data["crop_scale"]
    return TrainTransform(Sizes(data["image_size"]), (low, high), data["flip"])


def _loader(config: Mapping[str, Any], images: Images, num_workers: int) -> EpochLoader:
    data = config["data"]
    sampler = BatchSampler(len(images), data["batch_size"], 1, 0, shuffle=True, seed=config["seed"], fill_to=1)
    return make_loader(
        images, _transform(config), sampler, seed=config["seed"], num_workers=num_workers, pin_memory=False,
        mp_context=data["mp_context"],
    )  # fmt: skip


def _epochs(loader: EpochLoader) -> Callable[[], int]:
    """An epoch at each call, each in another order; how many images it had."""
    sampler = loader.batch_sampler
    assert isinstance(sampler, BatchSampler)

    def epoch() -> int:
        sampler.set_epoch(sampler.epoch + 1)
        return sum(len(batch["index"]) for batch in loader)

    return epoch


def _one_core(config: Mapping[str, Any], forms: list[Form], repeats: int, progress: Progress) -> dict[str, Rates]:
    data, files = config["data"], forms[0].images
    paths = [files.path(index) for index in range(len(files))]
    plain = plain_loader(paths, data["batch_size"], data["image_size"], data["mean"], data["std"])
    ways: dict[str, Callable[[], int]] = {PLAIN: lambda: sum(len(target) for _, target in plain)}
    ways |= {form.name: _epochs(_loader(config, form.images, 0)) for form in forms}
    return in_turns(ways, repeats, lambda: progress.add(1))


def _stages(config: Mapping[str, Any], form: Form, whole_us: float) -> dict[str, float]:
    """Microseconds per image, one stage after another: whole_us less the others is what the loader itself takes."""
    transform, images, size = _transform(config), form.images, config["data"]["image_size"]
    chosen = np.linspace(0, len(images) - 1, min(STAGE_IMAGES, len(images)), dtype=np.int64).tolist()
    out = empty(size, size, 3)

    def read() -> int:
        for index in chosen:
            images.encoded(index)
        return len(chosen)

    def decode() -> int:
        for index in chosen:
            picture = images.open(index)
            picture.region(*transform.box(picture.height, picture.width, random.Random(index)), size=size)
        return len(chosen)

    def crop() -> int:
        for index in chosen:
            transform.into(out, images.open(index), random.Random(index))
        return len(chosen)

    is_pixels = getattr(images, "form", "") == "raw"  # mapped into memory, and read as they are cropped
    read_us, decode_us, crop_us = (microseconds(each) for each in (read, decode, crop))
    read_us = 0.0 if is_pixels else read_us
    found = {"read": read_us, "decode": decode_us - read_us, "crop": crop_us - decode_us, "loader": whole_us - crop_us}
    return {name: round(max(us, 0.0), 1) for name, us in found.items()}


def _decoders(files: Any) -> dict[str, float]:
    """Images per second of each decoder there is, whole images."""
    chosen = [files.encoded(index) for index in range(min(STAGE_IMAGES, len(files)))]
    jpegs = [data for data in chosen if data[:2] == b"\xff\xd8"]
    found: dict[str, float] = {}
    for name in jpeg_backends.NAMES if jpegs else ():
        try:
            decoder = jpeg_backends.decoder(name)
        except Exception:  # not installed
            continue

        def decode(decoder: jpeg_backends.Decoder = decoder) -> int:
            for data in jpegs:
                decoder.rgb(data)
            return len(jpegs)

        found[name] = round(1e6 / microseconds(decode), 1)
    return found


def _by_workers(
    config: Mapping[str, Any], form: Form, counts: list[int], rate: float, repeats: int, progress: Progress
) -> dict[int, Rates]:
    """Of each number of loader processes, which all stay alive: one that waits costs nothing."""
    images = form.images
    assert isinstance(images, FileImages)
    loaders: dict[int, EpochLoader] = {}
    size = config["data"]["batch_size"]
    size *= max(1, round(rate * WORKERS_S / size))
    for count in counts:
        # full batches, as many for each process: of eleven one process would have six, and the other wait for it
        longer = images.subset(np.resize(np.arange(len(images)), size * max(count, 1)))
        loaders[count] = _loader(config, longer, count)
    try:
        found = in_turns({str(count): _epochs(loaders[count]) for count in counts}, repeats, lambda: progress.add(1))
    finally:
        for loader in loaders.values():
            loader.close()
    return {int(count): rates for count, rates in found.items()}


def _device(config: Mapping[str, Any]) -> dict[str, Any]:
    """What is left to the device: the copy of a batch, its flips and normalisation; microseconds per image."""
    data, device = config["data"], device_of(config, 0)
    size, batch = data["image_size"], data["batch_size"]
    images = empty(batch, size, size, 3)
    on_gpu = device.type == "cuda"
    images = images.pin_memory() if on_gpu else images
    flip = torch.arange(batch, device=device) % 2 == 0
    there = images.to(device)

    def copy() -> int:
        images.to(device, non_blocking=True)
        _wait(device)
        return batch

    def prepare() -> int:
        normalise(there, tuple(data["mean"]), tuple(data["std"]), config["model"]["channels_last"], flip)
        _wait(device)
        return batch

    return {
        "kind": device.type,
        "name": torch.cuda.get_device_name(device) if on_gpu else _machine()["cpu"],
        "transfer_us": round(microseconds(copy), 2) if device.type != "cpu" else 0.0,
        "normalise_us": round(microseconds(prepare), 2),
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _model(config: Mapping[str, Any], num_classes: int) -> dict[str, Any]:
    device = device_of(config, 0)
    threads = torch.get_num_threads()
    torch.set_num_threads(devices.choose_num_threads(config["cluster"]["num_threads"], 1))
    training = make_training(config, device, num_classes)
    times = step_timer.time_steps(training, [(training.net, False)], budget_s=MODEL_S, warm_up=2)[0]
    torch.set_num_threads(threads)
    return {
        "name": config["model"]["_target_"] or config["model"]["name"],
        "precision": devices.choose_precision(config["trainer"]["precision"], device.type)[0],
        "images_per_s": round(config["data"]["batch_size"] / times.compute_s, 1),
        "num_steps": times.num_steps,
    }


def _machine() -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [
            line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    return {"cpu": cpu, "num_cores": num_cores(), "system": platform.system(), "load": os.getloadavg()[0]}
