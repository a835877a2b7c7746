"""Run benchmark=start: measure the seconds from the command to the first training step, and compare them with those of
a bare script with the same imports."""

import statistics

from imagenet_ddp.benchmark.harness import Results, Trainings, row, title
from imagenet_ddp.benchmark.options import Plan
from imagenet_ddp.benchmark.timing import ratio
from imagenet_ddp.system.heavy_imports import torch_bytecode
from imagenet_ddp.system.text import percent

NET = "resnet18"  # of the bare script if the run's own net is not from torchvision
GOOD = 1.25  # the start is good if it takes at most this many times as long as the bare script


def run(plan: Plan, trainings: Trainings) -> Results:
    model, data = plan.config["model"], plan.config["data"]
    own = model["_target_"] or model["library"] != "torchvision"
    trainings.expect(2 * plan.options["repeats"] + 2)
    ours, bare, found = [], [], {}
    for _ in range(plan.options["repeats"] + 1):
        found = trainings.train(turns=0)
        ours.append(found["first_step_at"] - found["started_at"])
        arch = NET if own else model["name"]
        script = trainings.script(
            "bare_start", found, arch=arch, size=data["image_size"], batch_size=data["batch_size"],
            precision=found["precision"],
        )  # fmt: skip
        bare.append(script["first_step_at"] - script["started_at"])
    ours, bare = ours[1:], bare[1:]  # drop the first pair, which read the libraries from the disk
    over = ratio(ours, bare)
    rows = [
        row(title(plan.config), "bare script: imports, one step", "seconds to the first step", bare, 1.0, own=False),
        row(title(plan.config), "this project", "seconds to the first step", ours, over),
    ]
    figures = {"precision": found["precision"], "device": found["device"], "bytecode": torch_bytecode().is_file()}
    return Results({"start": round(over, 3)}, rows, _conclusion(ours, bare, over), [], figures)


def _conclusion(ours: list[float], bare: list[float], over: float) -> str:
    share = statistics.median(bare) / statistics.median(ours)
    text = f"A bare script takes {percent(min(share, 1), 0)} of this startup time, mostly to import torch. "
    if not torch_bytecode().is_file():
        return f"{text}The bottleneck is compiling torch at every start. `uv pip install --compile-bytecode` avoids it."
    if over > GOOD:
        return f"{text}The bottleneck is this project's own start. `python -X importtime` shows what it imports."
    return f"{text}The bottleneck is these imports, which only a faster machine or disk would speed up."
