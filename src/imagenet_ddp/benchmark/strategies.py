"""Run benchmark=strategies: measure images per second and memory of ddp, dp and balanced_dp on 1 to all devices."""

import statistics

from imagenet_ddp.benchmark.harness import MEASURED, Found, Results, Trainings, device_figures, powers_of_two, row
from imagenet_ddp.benchmark.options import Plan
from imagenet_ddp.benchmark.timing import ratio
from imagenet_ddp.distributed import devices
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.cpu_cores import num_cores
from imagenet_ddp.system.text import percent

NAMES = ("ddp", "dp", "balanced_dp")
GOOD_EFFICIENCY = 0.9


def counts(plan: Plan) -> list[int]:
    """Return the numbers of devices to measure: 2, 4, ... and all of them. On a CPU, devices=auto means all cores.
    Raises ConfigError if there is only one."""
    trainer = plan.config["trainer"]
    on_cpu = devices.device_type(trainer["accelerator"]) == "cpu"
    most = devices.count_devices(devices.local_devices(trainer))
    most = num_cores() if on_cpu and trainer["devices"] == "auto" else most
    if most < 2:
        raise ConfigError(
            "benchmark=strategies must have at least two devices or two cores, got one. Hint: use benchmark=step."
        )
    return sorted({*powers_of_two(most)[1:], most})


def run(plan: Plan, trainings: Trainings) -> Results:
    turns, steps = plan.options["repeats"], plan.options["num_steps"]
    found: dict[str, Found] = {}

    def measure(title: str, strategy: str, count: int) -> None:
        options = (*MEASURED, f"strategy={strategy}", f"trainer.devices={count}")
        against = ["bare"] if strategy == "ddp" else []
        found[title] = trainings.train(options, ready=True, steps=steps, turns=turns, against=against)

    numbers = counts(plan)
    trainings.expect(1 + len(numbers) * len(NAMES))
    measure("1 device", "auto", 1)
    for count in numbers:
        for strategy in NAMES:
            measure(f"{strategy}, {count} devices", strategy, count)
    rates = {
        title: [each["batch_size"] / seconds for seconds in each["step_s"]["ours"]] for title, each in found.items()
    }
    group = f"{plan.config['model']['name']}, {plan.config['data']['image_size']} px, batches in memory"
    rows = []
    for title, values in rates.items():
        memory = found[title]["peak_memory_mib"]
        rows.append(row(group, title, "images/s", values, ratio(values, rates["1 device"]), MiB=memory))
        if bare := found[title]["step_s"].get("bare"):
            values = [found[title]["batch_size"] / seconds for seconds in bare]
            name = f"bare DistributedDataParallel, {title.rpartition(', ')[2]}"
            rows.append(row(group, name, "images/s", values, ratio(values, rates["1 device"]), own=False))
    two = found[f"ddp, {numbers[0]} devices"]["step_s"]
    ddp = round(ratio(two["bare"], two["ours"]), 3)
    medians = {title: statistics.median(values) for title, values in rates.items()}
    most = numbers[-1]
    best = max((f"{name}, {most} devices" for name in NAMES), key=lambda title: medians[title])
    efficiency = medians[best] / medians["1 device"] / most
    figures, line = device_figures(found[best], medians[best])
    notes = [line, f"Speed of ddp with {numbers[0]} ranks relative to bare DistributedDataParallel: {ddp:.2f}"]
    notes.append("MiB: peak memory of the first process (CPU) or device (GPU)")
    return Results(
        {"ddp": ddp}, rows, _conclusion(best, most, efficiency, found[best]), notes, {"runs": found, "best": figures}
    )


def _conclusion(best: str, count: int, efficiency: float, found: Found) -> str:
    name = best.partition(",")[0]
    text = (
        f"{name} is the fastest on {count} devices, with {percent(efficiency, 0)} of {count} times one device's speed: "
    )
    if found["device"] == "cpu":
        return f"{text}the bottleneck is the cores, which a GPU or more machines would relieve."
    if efficiency >= GOOD_EFFICIENCY:
        return f"{text}the bottleneck is the devices' computation, which more devices would relieve."
    return f"{text}the bottleneck is communication, which a larger data.batch_size would relieve."
