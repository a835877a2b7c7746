"""Run benchmark=step: time the training step on batches in memory, to see whether compiling pays."""

import statistics
from typing import Any

from imagenet_ddp.benchmark.options import Plan
from imagenet_ddp.benchmark.results import Results, ratio, row
from imagenet_ddp.benchmark.trainings import ONE_DEVICE, Trainings, title

PAYS = 1.05  # compiling pays from this speed-up


def num_runs(plan: Plan) -> int:
    return 2


def run(plan: Plan, trainings: Trainings) -> Results:
    ready: dict[str, Any] = {"ready": True, "turns": plan.options["repeats"], "steps": plan.options["num_steps"]}
    typed = plan.config.compile.name
    mode = "default" if typed == "off" else typed
    eager, compiled = (trainings.train((*ONE_DEVICE, f"compile.name={name}"), **ready) for name in ("off", mode))
    gain = ratio(compiled.rates, eager.rates)
    extra_s = max(compiled.first_step_s - eager.first_step_s, 0)
    notes = [eager.line(statistics.median(eager.rates)), f"compile={mode} delays the first step by {extra_s:.0f} s"]
    conclusion = "The bottleneck is the computation itself, and compiling does not relieve it: leave compile=off."
    if gain >= PAYS:
        saved_s = statistics.median(eager.step_s) - statistics.median(compiled.step_s)
        conclusion = (
            f"The bottleneck is the computation itself: compile={mode} makes it {gain:.2f} times as fast, and pays "
            f"after {extra_s / saved_s:,.0f} steps."
        )
    rows = [
        row(title(plan.config), "compile=off", "images/s", eager.rates, 1.0),
        row(title(plan.config), f"compile={mode}", "images/s", compiled.rates, gain),
    ]
    return Results({"compile": round(gain, 3)}, rows, conclusion, notes, {"compile_s": round(extra_s, 1)})
