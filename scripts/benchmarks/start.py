"""Measure the seconds from the command to the first training step, against a bare script with the same imports:
python scripts/benchmarks/start.py FOLDER [repeats=N] [OPTION ...]"""

import statistics
import time

from measure import Job, main, run_script, train

from imagenet_ddp.benchmark.results import Results, ratio, row
from imagenet_ddp.benchmark.trainings import title
from imagenet_ddp.system.text import percent


def run(job: Job) -> Results:
    model, data = job.config["model"], job.config["data"]
    ours, bare = [], []
    for _ in range(job.repeats + 1):
        start = time.time()
        found = train(job, "FirstStep", job.typed, turns=0)
        ours.append(found.first_step_at - start)
        start = time.time()
        script = run_script(
            job, "bare_start", found, arch=model["name"], size=data["image_size"], batch_size=data["batch_size"],
            precision=found.precision,
        )  # fmt: skip
        bare.append(script["first_step_at"] - start)
    ours, bare = ours[1:], bare[1:]  # without the first pair, which read the libraries from the disk
    over, unit = ratio(ours, bare), "seconds to the first step"
    rows = [
        row(title(job.config), "bare script: imports, one step", unit, bare, 1.0),
        row(title(job.config), "this project", unit, ours, over),
    ]
    share = min(statistics.median(bare) / statistics.median(ours), 1)
    conclusion = f"A bare script takes {percent(share, 0)} of this startup time, mostly to import torch."
    return Results({"start": round(over, 3)}, rows, conclusion)


if __name__ == "__main__":
    main("start", run, lambda repeats: 2 * repeats + 2)
