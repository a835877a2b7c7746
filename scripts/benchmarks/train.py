"""Measure training from files, end to end, against the loop of pytorch/examples on the same images:
python scripts/benchmarks/train.py FOLDER [repeats=N] [steps=N] [OPTION ...]"""

import statistics

from measure import Job, main, run_script

from imagenet_ddp.benchmark.results import Results, ratio, row
from imagenet_ddp.benchmark.trainings import WARM_UP, link_files, title
from imagenet_ddp.system.text import count_noun, percent


def run(job: Job) -> Results:
    data, tree = job.config.data, job.trainings.work / "files"
    files = link_files(job.config, 500, job.steps, tree)
    ours, theirs = [], []
    for _ in range(job.repeats):
        ours.append(job.trainings.train(files, steps=job.steps, turns=1, warm_up=WARM_UP))
        loader = {"folder": str(tree / "train"), "size": data.image_size, "batch_size": data.batch_size,
                  "workers": ours[0].num_workers}  # fmt: skip
        settings = {"loader": loader, "arch": job.config.model.name, "steps": job.steps, "warm_up": WARM_UP}
        theirs.append(run_script(job, "pytorch_examples", ours[0], **settings))
    rates, their_rates = [each.rates[0] for each in ours], [data.batch_size / each["step_s"] for each in theirs]
    over = ratio(rates, their_rates)
    rows = [
        row(title(job.config), "pytorch/examples, end to end", "images/s", their_rates, 1.0),
        row(title(job.config), "this project, end to end", "images/s", rates, over),
    ]
    wait = statistics.median(each.data_wait_frac or 0.0 for each in ours)
    their_wait = statistics.median(each["data_wait_frac"] for each in theirs)
    workers = count_noun(ours[0].num_workers, "loader process")
    notes = [
        ours[-1].line(statistics.median(rates)),
        f"Waiting for data: {percent(wait, 0)} of the time, pytorch/examples {percent(their_wait, 0)}, "
        f"both with {workers}",
    ]
    conclusion = f"Training is {over:.2f} times as fast as with the loop of pytorch/examples."
    return Results({"train": round(over, 3)}, rows, conclusion, notes)


if __name__ == "__main__":
    main("train", run, lambda repeats: 2 * repeats)
