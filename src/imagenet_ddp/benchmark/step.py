"""Run benchmark=step: compare the training step with a bare loop and plain Lightning, which take turns in one
process."""

import statistics
from collections.abc import Mapping, Sequence

from imagenet_ddp.benchmark.harness import MEASURED, Found, Results, Trainings, device_figures, row, smaller_work, title
from imagenet_ddp.benchmark.options import Plan
from imagenet_ddp.benchmark.timing import ratio
from imagenet_ddp.system.cpu_cores import num_cores
from imagenet_ddp.system.text import percent

HOST_STEPS = 100  # several times trainer.log_every_n_steps, to include steps that log
# A net with negligible computation, on one thread, because in such small operations more threads would wait for each
# other.
HOST = (
    "model._target_=imagenet_ddp.benchmark.bare.OneLayer", "data.image_size=32", "data.batch_size=16",
    "cluster.num_threads=1", "logger=csv",
)  # fmt: skip
KEPT = ("allow_targets=", "trainer.accelerator=", "trainer.precision=", "callbacks")
LARGE = 1.05  # the host is part of the bottleneck if a step takes at least this many times as long as the bare loop's
COUNTED_STEPS = 10
TITLES = {
    "bare": "bare loop",
    "loop": "plain Lightning, nothing logged",
    "ours": "this project",
    "naive": "plain Lightning, two accuracies",
}


def run(plan: Plan, trainings: Trainings) -> Results:
    turns, num_steps = plan.options["repeats"], plan.options["num_steps"]
    trainings.expect(3)
    common = {"turns": turns, "ready": True}
    kept = [line for line in plan.typed if line.lstrip("+~").startswith(KEPT)]
    one = (*MEASURED, "trainer.devices=1")
    host = trainings.train((*HOST, *one), typed=kept, steps=HOST_STEPS, against=["bare", "loop", "naive"], **common)
    logger = () if any(line.startswith("logger") for line in plan.typed) else ("logger=csv",)
    model = trainings.train((*logger, *one), steps=num_steps, against=["bare"], **common)
    counted = _counted(trainings)
    host_cost, loop_cost = (_share_of_naive(host["step_s"], name) for name in ("ours", "loop"))
    step = round(ratio(model["step_s"]["ours"], model["step_s"]["bare"]), 3)
    rows = []
    for group, found in (("One-layer net: time of the host", host), (f"{title(plan.config)}: whole step", model)):
        for name in TITLES:
            if values := found["step_s"].get(name):
                over = ratio(values, found["step_s"]["bare"])
                rows.append(
                    row(group, TITLES[name], "ms per step", [1e3 * each for each in values], over, own=name == "ours")
                )
    rate = model["batch_size"] / statistics.median(model["step_s"]["ours"])
    figures, line = device_figures(model, rate)
    extra = None if counted is None else _extra(counted)
    notes = [line]
    if host_cost is not None and loop_cost is not None:
        naive = "of the overhead that plain Lightning with two accuracy metrics adds to a bare loop"
        alone = f"Lightning's loop alone accounts for {percent(loop_cost, 0)}"
        notes.append(f"CPU overhead per step: {percent(host_cost, 0)} {naive}; {alone}.")
    if extra is not None:
        notes.append(f"Collectives per step beyond bare DistributedDataParallel, two ranks: {extra:+.2g}.")
    return Results(
        {"host_cost": host_cost, "lightning_loop_cost": loop_cost, "step": step},
        rows,
        _conclusion(step, model),
        notes,
        {"one_layer": host, "model": {**model, **figures}, "collectives": counted},
        extra,
    )


def _share_of_naive(step_s: Mapping[str, Sequence[float]], name: str) -> float | None:
    """Return the share (ours - bare) / (naive - bare), the median over the turns."""
    times = zip(step_s[name], step_s["bare"], step_s["naive"], strict=True)
    shares = [(own - bare) / (naive - bare) for own, bare, naive in times if naive > bare]
    return round(statistics.median(shares), 3) if shares else None


def _counted(trainings: Trainings) -> Found | None:
    """Count the collective operations of two ranks on the CPU. Return None on a single core."""
    if num_cores() < 2:
        return None
    options = ("trainer.accelerator=cpu", "trainer.devices=2", "strategy=ddp", "data.batch_size=2")
    probe = {"ready": True, "against": ["bare"], "turns": 1, "steps": 2, "profiled": COUNTED_STEPS}
    return {"num_steps": COUNTED_STEPS, **trainings.train((*MEASURED, *options), **probe)["collectives"]}


def _extra(counted: Found) -> float:
    ours, bare = (sum(counted[name].values()) for name in ("ours", "bare"))
    return (ours - bare) / counted["num_steps"]


def _conclusion(step: float, model: Found) -> str:
    times = f"A step takes {step:.2f} times as long as the bare loop's: "
    if step >= LARGE:
        return f"{times}the host is part of the bottleneck. A larger data.batch_size would relieve it."
    return f"{times}the bottleneck is the computation itself, which {smaller_work(model['device'])} would relieve."
