"""Derive the bottleneck, and what would relieve it, from the figures of benchmark=loader. Does not import torch."""

import math
from collections.abc import Mapping
from typing import Any

from imagenet_ddp.system.text import count_noun, percent

Results = Mapping[str, Any]  # the content of benchmark.json
MARGIN = 1.1  # the loader is not the bottleneck if its images per second are at least this many times the model's
SMALL_SHARE = 0.1  # if one process loads and trains, loading is a bottleneck above this share of its time


def conclusion(results: Results) -> str:
    """Return whether the model waits for its images, and which change would help."""
    num_workers = results["num_workers"]
    rate = results["workers_images_per_s"][str(num_workers)]["median"]
    processes = count_noun(num_workers, "loader process") if num_workers else "no loader processes"
    start = f"The loader delivers {rate:,.0f} images/s with {processes} ({results['why_num_workers']})"
    if results["model"] is None:
        return f"{start}. The model was not measured (benchmark.model=false)."
    needed = results["model"]["images_per_s"]
    start += f", and the model consumes {needed:,.0f} images/s. "
    if num_workers == 0:
        share = (1 / rate) / (1 / rate + 1 / needed)
        start += f"One process does both, and loading takes {percent(share, 0)} of its time. "
        if share > SMALL_SHARE:
            return f"{start}Loading is {'the' if share > 0.5 else 'part of the'} bottleneck. {_advice(results, needed)}"
    elif rate < MARGIN * needed:
        return f"{start}The bottleneck is the loader. {_advice(results, needed)}"
    return f"{start}The bottleneck is the training step."


def _advice(results: Results, needed: float) -> str:
    """Recommend the cheapest sufficient change (loader processes, packed JPEGs, packed pixels), else the fastest."""
    max_workers = max(results["machine"]["num_cores"] - 1, 1)
    rates = {name: results["images_per_s"][name]["median"] for name in results["titles"] if name != "examples"}
    counts = {name: math.ceil(MARGIN * needed / rate) for name, rate in rates.items()}
    sufficient = [name for name, count in counts.items() if count <= max_workers]
    name = sufficient[0] if sufficient else max(rates, key=lambda each: rates[each])
    rate, count = rates[name], min(counts[name], max_workers)
    change = f"data.num_workers={count}"
    if name != next(iter(rates)):
        form = "raw" if name == "packed_raw" else "jpeg"
        change = f"`python -m imagenet_ddp.prepare prepare=pack prepare.form={form}` and {change}"
    num_workers = results["num_workers"]
    if num_workers and count * rate <= results["workers_images_per_s"][str(num_workers)]["median"]:
        return "Nothing else that was measured is faster."
    overlap = "" if num_workers else ", while the step computes"
    return f"This would help: {change} (about {count * rate:,.0f} images/s{overlap})."
