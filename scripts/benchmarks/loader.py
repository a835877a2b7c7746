"""Measure the images per second that one core loads from files and packs, against the loader of pytorch/examples:
python scripts/benchmarks/loader.py FOLDER [repeats=N] [OPTION ...]"""

from collections.abc import Callable

import pytorch_examples
from measure import Job, main

from imagenet_ddp.benchmark.loader import epochs_of, make_variants, one_core, time_interleaved, train_loader
from imagenet_ddp.benchmark.results import Results, ratio, row
from imagenet_ddp.config.schema.benchmark import BenchmarkOptions

THEIRS = "pytorch/examples: files, Pillow"


def run(job: Job) -> Results:
    data, work = job.config.data, job.trainings.work
    variants = make_variants(job.config, BenchmarkOptions("loader"), work)
    baseline = pytorch_examples.make_loader(str(work / "files/train"), data.image_size, data.batch_size, 0)
    functions: dict[str, Callable[[], int]] = {THEIRS: lambda: sum(len(target) for _, target in baseline)}
    functions |= {each.title: epochs_of(train_loader(job.config, each.images, 0)) for each in variants}
    with one_core():
        rates = time_interleaved(functions, job.repeats, lambda: None)
    group = f"One core, {len(variants[0].images)} images, {data.image_size} px, batch {data.batch_size}"
    ratios: dict[str, float | None] = {title: round(ratio(each, rates[THEIRS]), 3) for title, each in rates.items()}
    rows = [row(group, title, "images/s", each, ratios[title]) for title, each in rates.items()]
    return Results(ratios, rows, f"One core loads {ratios['files']:.2f} times as many images from files.")


if __name__ == "__main__":
    main("loader", run, lambda repeats: 0)
