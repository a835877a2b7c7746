"""Run benchmark=train, step and profile: time training runs, each in a process of its own."""

import json
import math
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

from imagenet_ddp.benchmark.loader import link_images
from imagenet_ddp.benchmark.results import Results, ratio, row
from imagenet_ddp.benchmark.trainings import ONE_DEVICE, Plan, Trainings, smaller_work, title
from imagenet_ddp.config.schema.commands import CommonConfig
from imagenet_ddp.system.cpu_cores import num_cores
from imagenet_ddp.system.text import count_noun, percent

WARM_UP = 5  # steps that are not timed
WAITS = 0.1  # the loader is part of the bottleneck if at least this share of the time is spent waiting for data
GAP = 0.9  # loader and step compete for cores if end-to-end training is slower than this share of the slower one
PAYS = 1.05  # compiling pays from this speed-up
TRACE = "trace.json.gz"


def train(plan: Plan, trainings: Trainings) -> Results:
    """Compare training from files with its loader alone and its step alone."""
    config, options, steps = plan.config, plan.options, plan.options.num_steps
    trainings.expect(2 * options.repeats)
    files = link_files(config, options.num_images, steps, trainings.work / "files")
    ends, parts = [], []
    for _ in range(options.repeats):
        ends.append(trainings.train(files, steps=steps, turns=1, warm_up=WARM_UP))
        parts.append(trainings.train(files, steps=steps, turns=1, warm_up=WARM_UP, ready=True))
    rates = {
        "ours": [each.rates[0] for each in ends],
        "step": [each.rates[0] for each in parts],
        "loader": [each.loader_images_per_s for each in parts],
    }
    least = [min(pair) for pair in zip(rates["loader"], rates["step"], strict=True)]
    end_to_end = round(ratio(rates["ours"], least), 3)
    titles = {"ours": "end to end", "step": "the step alone", "loader": "the loader alone"}
    rows = [
        row(title(config), titles[name], "images/s", values, ratio(values, rates["ours"]))
        for name, values in rates.items()
    ]
    medians = {name: statistics.median(values) for name, values in rates.items()}
    wait, workers = statistics.median(each.data_wait_frac or 0.0 for each in ends), ends[0].num_workers
    notes = [
        ends[-1].line(medians["ours"]),
        f"Waiting for data: {percent(wait, 0)} of the time, with "
        f"{count_noun(workers, 'loader process') if workers else 'no loader processes'}",
        f"End-to-end speed relative to the slower of loader and step: {end_to_end:.2f}",
    ]
    if not workers:
        turns = max(medians["loader"], medians["step"]) / (medians["loader"] + medians["step"])
        notes[-1] += f"; here both take turns in one process, which allows at most {turns:.2f}"
    return Results(
        {"end_to_end": end_to_end},
        rows,
        bottleneck(medians, wait, workers, ends[0].device),
        notes,
        {"data_wait_frac": wait, "num_workers": workers, "num_steps": steps,
         "runs": [asdict(each) for each in ends], "parts": [asdict(each) for each in parts]},
    )  # fmt: skip


def link_files(config: CommonConfig, num_images: int, steps: int, tree: Path) -> tuple[str, ...]:
    """Link the images of the measured steps into a folder, and return the options that train on them."""
    # enough images that the first batches, which loader processes load in advance, are not among those timed
    link_images(config, num_images, tree, at_least=(WARM_UP + steps + 2) * config.data.batch_size + 8)
    return (
        "data.name=imagefolder", f"data.root={json.dumps(str(tree))}", "data.train_dir=train", "data.val_dir=val",
        "data.val_fraction=null", *ONE_DEVICE,
    )  # fmt: skip


def bottleneck(rates: dict[str, float], wait: float, workers: int, device: str) -> str:
    faster = f"The loader alone reaches {rates['loader']:,.0f} images/s, the step alone {rates['step']:,.0f}: "
    spare = max(num_cores() - 1, 1)
    more = max(1, math.ceil(1.1 * rates["step"] / rates["loader"] * max(workers, 1)))
    if wait >= WAITS:
        count = f"data.num_workers={min(more, spare)} or " if workers < min(more, spare) else ""
        part = "the bottleneck is" if rates["loader"] < rates["step"] else "part of the bottleneck is"
        return f"{faster}{part} the loader. This would help: {count}`prepare=pack`; benchmark=loader shows how much."
    if rates["ours"] < GAP * min(rates["loader"], rates["step"]) and workers:
        return f"{faster}the bottleneck is the cores, which they share. `prepare=pack` would relieve it."
    return f"{faster}the bottleneck is the training step, which {smaller_work(device)} would relieve."


def compile_gain(plan: Plan, trainings: Trainings) -> Results:
    """Time the training step on batches in memory, to see whether compiling pays."""
    trainings.expect(2)
    ready: dict[str, Any] = {"ready": True, "turns": plan.options.repeats, "steps": plan.options.num_steps}
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


def profile(plan: Plan, trainings: Trainings) -> Results:
    """Trace some training steps, and rank the operations that take longest."""
    trainings.expect(1)
    steps = plan.options.num_steps
    found = trainings.train(ONE_DEVICE, turns=0, profiled=steps, trace=str((plan.folder / TRACE).absolute()))
    where, total = found.operations_on, found.operations_s
    rows = [
        row(f"Time on the {where}, {steps} steps", each["name"], "ms per step", [1e3 * each["seconds"] / steps],
            share=round(each["seconds"] / total, 4), calls_per_step=each["calls"] / steps)
        for each in found.operations
    ]  # fmt: skip
    first = found.operations[0]
    conclusion = (
        f"The bottleneck is {first['name']}, which takes {percent(first['seconds'] / total, 0)} of the {where}'s time. "
        f"To see where it is called, open {TRACE} at https://ui.perfetto.dev or in chrome://tracing."
    )
    return Results({}, rows, conclusion, [], {"num_steps": steps, "precision": found.precision, "device": found.device})
