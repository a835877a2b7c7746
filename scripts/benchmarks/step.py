"""Compare the training step with a bare loop and plain Lightning, which take turns in one process:
python scripts/benchmarks/step.py FOLDER [repeats=N] [steps=N] [OPTION ...]"""

import functools
import statistics
from collections.abc import Mapping, Sequence

from measure import Job, main, train

from imagenet_ddp.benchmark.probe import SETTLE
from imagenet_ddp.benchmark.results import Results, ratio, row
from imagenet_ddp.benchmark.trainings import MEASURED, ONE_DEVICE, title
from imagenet_ddp.system.text import percent

HOST_STEPS = 100  # several times trainer.log_every_n_steps, to include steps that log
# A net with negligible computation, on one thread, because in such small operations more threads would wait for each
# other.
HOST = (
    "model._target_=loops.OneLayer", "data.image_size=32", "data.batch_size=16", "cluster.num_threads=1", "logger=csv",
)  # fmt: skip
RANKS = ("trainer.accelerator=cpu", "trainer.devices=2", "strategy=ddp", "data.batch_size=2")
COUNTED_STEPS = 10
TITLES = {
    "bare": "bare loop",
    "loop": "plain Lightning, nothing logged",
    "ours": "this project",
    "naive": "plain Lightning, two accuracies",
}


def run(job: Job) -> Results:
    compared = functools.partial(train, job, "Alternating")
    kept = [word for word in job.typed if word.startswith(("trainer.accelerator=", "trainer.precision="))]
    others = ["bare", "loop", "naive"]
    host = compared([*kept, *HOST, *ONE_DEVICE], turns=job.repeats, steps=HOST_STEPS, against=others)
    whole = compared([*job.typed, *ONE_DEVICE, "logger=csv"], turns=job.repeats, steps=job.steps, against=["bare"])
    counted = [*job.typed, *MEASURED, *RANKS]
    ranks = compared(counted, turns=1, steps=COUNTED_STEPS - SETTLE, counts=True, against=["bare"]).collectives
    rows, shares = [], {}
    for group, found in (("One-layer net: time of the host", host), (f"{title(job.config)}: whole step", whole)):
        seconds = {"ours": found.step_s, **found.others_s}
        for name in (name for name in TITLES if name in seconds):
            values = [1e3 * each for each in seconds[name]]
            over = ratio(seconds[name], seconds["bare"])
            rows.append(row(group, TITLES[name], "ms per step", values, over))
        if found is host:
            shares = {name: _share_of_naive(seconds, name) for name in ("ours", "loop")}
    step = ratio(whole.step_s, whole.others_s["bare"])
    ours, bare = (sum(ranks[name].values()) / COUNTED_STEPS for name in ("ours", "bare"))
    notes = [
        whole.line(statistics.median(whole.rates)),
        f"CPU overhead per step: {percent(shares['ours'], 0)} of the overhead that plain Lightning with two accuracy "
        f"metrics adds to a bare loop; Lightning's loop alone accounts for {percent(shares['loop'], 0)}.",
        f"Collectives per step beyond bare DistributedDataParallel, two ranks: {ours - bare:+.2g}.",
    ]
    ratios = {"host_cost": shares["ours"], "lightning_loop_cost": shares["loop"], "step": round(step, 3)}
    conclusion = f"A step takes {step:.2f} times as long as the bare loop's."
    return Results(dict(ratios), rows, conclusion, notes, {"extra_collectives_per_step": ours - bare})


def _share_of_naive(seconds: Mapping[str, Sequence[float]], name: str) -> float:
    """Return the share (name - bare) / (naive - bare), the median over the turns."""
    times = zip(seconds[name], seconds["bare"], seconds["naive"], strict=True)
    return round(statistics.median((own - bare) / (naive - bare) for own, bare, naive in times), 3)


if __name__ == "__main__":
    main("step", run, lambda repeats: 3)
