"""Run benchmark=profile: trace some training steps, and rank the operations that take longest."""

from imagenet_ddp.benchmark.options import Plan
from imagenet_ddp.benchmark.results import Results, row
from imagenet_ddp.benchmark.trainings import ONE_DEVICE, Trainings
from imagenet_ddp.system.text import percent

TRACE = "trace.json.gz"


def num_runs(plan: Plan) -> int:
    return 1


def run(plan: Plan, trainings: Trainings) -> Results:
    steps = plan.options["num_steps"]
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
