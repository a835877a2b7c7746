"""Run benchmark=profile: trace some training steps, and rank the operations that take longest."""

from imagenet_ddp.benchmark.harness import MEASURED, Results, Trainings, row
from imagenet_ddp.benchmark.options import Plan
from imagenet_ddp.system.text import percent

TRACE = "trace.json.gz"


def run(plan: Plan, trainings: Trainings) -> Results:
    steps = plan.options["num_steps"]
    trainings.expect(1)
    trace = str((plan.folder / TRACE).absolute())
    found = trainings.train((*MEASURED, "trainer.devices=1"), turns=0, profiled=steps, trace=trace)
    total, operations = found["operations_s"], found["operations"]
    where = "GPU" if found["operations_on"] == "gpu" else "CPU"
    rows = [
        row(f"Time on the {where}, {steps} steps", each["name"], "ms per step", [1e3 * each["seconds"] / steps],
            share=round(each["seconds"] / total, 4), calls_per_step=each["calls"] / steps)
        for each in operations
    ]  # fmt: skip
    first = operations[0]
    conclusion = (
        f"The bottleneck is {first['name']}, which takes {percent(first['seconds'] / total, 0)} of the {where}'s time. "
        f"To see where it is called, open {TRACE} at https://ui.perfetto.dev or in chrome://tracing."
    )
    return Results(
        {}, rows, conclusion, [], {"num_steps": steps, "precision": found["precision"], "device": found["device"]}
    )
