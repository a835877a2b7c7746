"""Measure images per second and memory of ddp, dp and balanced_dp on 1 to all devices, and of bare
DistributedDataParallel: python scripts/benchmarks/strategies.py FOLDER [repeats=N] [steps=N] [OPTION ...]"""

import statistics
from typing import Any

from measure import Job, main

from imagenet_ddp.benchmark.results import Results, ratio, row
from imagenet_ddp.benchmark.trainings import MEASURED, ONE_DEVICE, Measured, title
from imagenet_ddp.distributed import devices
from imagenet_ddp.system.cpu_cores import num_cores
from imagenet_ddp.system.text import percent

NAMES = ("ddp", "dp", "balanced_dp")


def run(job: Job) -> Results:
    on_cpu = devices.device_type(job.config.trainer.accelerator) == "cpu"
    most = num_cores() if on_cpu else devices.count_devices(devices.local_devices(job.config.trainer))
    numbers = sorted({*(2**power for power in range(1, most.bit_length())), most} - {1})
    turns: dict[str, Any] = {"turns": job.repeats, "steps": job.steps}
    one = job.trainings.train(ONE_DEVICE, ready=True, **turns)
    found: dict[str, Measured] = {"1 device": one}
    for count in numbers:
        for name in NAMES:
            options = (*MEASURED, f"strategy={name}", f"trainer.devices={count}", job.allowed)
            against = ["bare"] if name == "ddp" else []
            found[f"{name}, {count} devices"] = job.trainings.train(
                options, probe="loops.Alternating", against=against, **turns
            )
    rows, ddp = [], 1.0
    for name, each in found.items():
        over = ratio(each.rates, one.rates)
        rows.append(row(title(job.config), name, "images/s", each.rates, over, MiB=each.peak_memory_mib))
        if bare := each.others_s.get("bare"):
            rates = [each.batch_size / seconds for seconds in bare]
            label = f"bare DistributedDataParallel, {name.rpartition(', ')[2]}"
            rows.append(row(title(job.config), label, "images/s", rates, ratio(rates, one.rates)))
            ddp = ratio(each.rates, rates)
    best = max(found, key=lambda name: statistics.median(found[name].rates) if name.endswith(f"{most} devices") else 0)
    efficiency = statistics.median(found[best].rates) / statistics.median(one.rates) / most
    notes = [
        f"Speed of ddp with {most} ranks relative to bare DistributedDataParallel: {ddp:.2f}",
        "MiB: peak memory of the first process (CPU) or device (GPU)",
    ]
    conclusion = f"{best} is the fastest, with {percent(efficiency, 0)} of {most} times one device's speed."
    return Results({"ddp": round(ddp, 3)}, rows, conclusion, notes)


if __name__ == "__main__":
    main("strategies", run, lambda repeats: 4)
