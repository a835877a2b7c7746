"""Run benchmark=train: compare end-to-end training from files with its loader alone, its step alone, and the loop of
pytorch/examples."""

import json
import math
import statistics
from dataclasses import asdict

from imagenet_ddp.benchmark.options import Plan
from imagenet_ddp.benchmark.results import Results, ratio, row
from imagenet_ddp.benchmark.trainings import ONE_DEVICE, Trainings, smaller_work, title
from imagenet_ddp.benchmark.variants import link_images
from imagenet_ddp.system.cpu_cores import num_cores
from imagenet_ddp.system.text import count_noun, percent

WARM_UP = 5  # steps that are not timed
WAITS = 0.1  # the loader is part of the bottleneck if at least this share of the time is spent waiting for data
GAP = 0.9  # loader and step compete for cores if end-to-end training is slower than this share of the slower one


def num_runs(plan: Plan) -> int:
    return 3 * plan.options["repeats"]


def run(plan: Plan, trainings: Trainings) -> Results:
    config, options = plan.config, plan.options
    size, batch_size = config["data"]["image_size"], config["data"]["batch_size"]
    steps, tree = options["num_steps"], trainings.work / "files"
    # enough images that the first batches, which loader processes load in advance, are not among those timed
    link_images(config, options["num_images"], tree, at_least=(WARM_UP + steps + 2) * batch_size + 8)
    files = (
        "data.name=imagefolder", f"data.root={json.dumps(str(tree))}", "data.train_dir=train", "data.val_dir=val",
        "data.val_fraction=null", *ONE_DEVICE,
    )  # fmt: skip
    ends, parts, theirs, workers = [], [], [], 0
    for _ in range(options["repeats"]):
        ends.append(trainings.train(files, steps=steps, turns=1, warm_up=WARM_UP))
        parts.append(trainings.train(files, steps=steps, turns=1, warm_up=WARM_UP, ready=True))
        workers = ends[0].num_workers
        loader = {"folder": str(tree / "train"), "size": size, "batch_size": batch_size, "workers": workers}
        settings = {"loader": loader, "arch": config.model.name, "steps": steps, "warm_up": WARM_UP}
        theirs.append(trainings.script("imagenet_ddp.benchmark.pytorch_examples", ends[0], **settings))
    rates = {
        "examples": [batch_size / each["step_s"] for each in theirs],
        "ours": [each.rates[0] for each in ends],
        "step": [each.rates[0] for each in parts],
    }
    loader_rates = [each.loader_images_per_s for each in parts]
    least = [min(pair) for pair in zip(loader_rates, rates["step"], strict=True)]
    ratios: dict[str, float | None] = {
        "train": round(ratio(rates["ours"], rates["examples"]), 3),
        "end_to_end": round(ratio(rates["ours"], least), 3),
    }
    titles = {
        "examples": "pytorch/examples, end to end", "ours": "this project, end to end",
        "step": "its step alone",
    }  # fmt: skip
    rows = [
        row(title(config), titles[name], "images/s", values, ratio(values, rates["examples"]), own=name != "examples")
        for name, values in rates.items()
    ]
    rows.append(row("Loader alone", "this project's loader", "images/s", loader_rates))
    medians = {name: statistics.median(values) for name, values in {**rates, "loader": loader_rates}.items()}
    waits = {
        "ours": statistics.median(each.data_wait_frac or 0.0 for each in ends),
        "examples": statistics.median(each["data_wait_frac"] for each in theirs),
    }
    notes = [
        ends[-1].line(medians["ours"]),
        f"Waiting for data: {percent(waits['ours'], 0)} of the time, pytorch/examples {percent(waits['examples'], 0)}, "
        f"both with {count_noun(workers, 'loader process') if workers else 'no loader processes'}",
        f"End-to-end speed relative to the slower of loader and step: {ratios['end_to_end']:.2f}",
    ]
    if not workers:
        turns = max(medians["loader"], medians["step"]) / (medians["loader"] + medians["step"])
        notes[-1] += f"; here both take turns in one process, which allows at most {turns:.2f}"
    return Results(
        ratios,
        rows,
        _conclusion(medians, waits["ours"], workers, ends[0].device),
        notes,
        {"data_wait_frac": waits, "num_workers": workers, "num_steps": steps,
         "runs": [asdict(each) for each in ends], "parts": [asdict(each) for each in parts], "examples": theirs},
    )  # fmt: skip


def _conclusion(rates: dict[str, float], wait: float, workers: int, device: str) -> str:
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
