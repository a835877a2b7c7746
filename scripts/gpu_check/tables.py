"""Write the tables for docs/performance.md and a picture of what results.json holds."""

from pathlib import Path
from typing import Any

STEP_CELLS = ("batch", "images/s", "of the products", "MiB", "first step, s")
# Beginnings of the names of checks that have a table of their own.
IN_TABLES = ("step: ", "scaling: ", "peak", "operations", "evaluate", "predict")


def write(out: Path, results: dict[str, Any]) -> None:
    """Write tables.md and, if matplotlib is here, steps.png."""
    (out / "tables.md").write_text(_text(results), encoding="utf-8")
    steps = _steps(results)
    try:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot
    except ImportError:
        return
    figure, axes = pyplot.subplots(figsize=(8, 1 + 0.3 * len(steps)), layout="constrained")
    names = [f"{net}, {variant}" for net, variant, _ in steps]
    axes.barh(names[::-1], [found["images_per_s"] for *_, found in steps][::-1])
    axes.set_xlabel(f"training images/s: {_hardware(results)}, {results['date']}", fontsize=8)
    figure.savefig(out / "steps.png", dpi=120)
    pyplot.close(figure)


def short(found: dict[str, Any]) -> str:
    """Return the figures of a check on one line."""
    return ", ".join(f"{key} {_number(value)}" for key, value in found.items())


def _number(value: Any) -> str:
    if isinstance(value, dict):
        return f"({short(value)})"
    if isinstance(value, list):
        return f"[{', '.join(map(_number, value))}]"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return str(value)


def _steps(results: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (net, variant, figures) of each measured step, by net."""
    names = [name for name, each in results["checks"].items() if name.startswith("step: ") and each["state"] == "ok"]
    parts = [(name, *name.removeprefix("step: ").split(", ", 1)) for name in names]
    nets = list(dict.fromkeys(net for _, net, _ in parts))
    ordered = sorted(parts, key=lambda part: nets.index(part[1]))
    return [(net, variant, results["checks"][name]["found"]) for name, net, variant in ordered]


def _hardware(results: dict[str, Any]) -> str:
    machine = results["machine"]
    gpus = machine["gpus"] if machine["form"] == "gpu" else []
    return f"{len(gpus)} × {gpus[0]}" if gpus else f"{machine['num_cores']} cores of {machine['cpu']}"


def _text(results: dict[str, Any]) -> str:
    machine, checks = results["machine"], results["checks"]
    found = {name: each["found"] for name, each in checks.items() if each["state"] == "ok"}
    versions = f"torch {machine['torch']}, CUDA {machine['cuda']}, NCCL {machine['nccl']}"
    parts = [f"{_hardware(results)}, {versions}, {results['date']}: `scripts/gpu_check.sh`."]
    if peaks := found.get("peak of the device", {}):
        rates = ", ".join(f"{name} {_number(peaks[name])}" for name in ("fp32", "bf16", "fp16") if name in peaks)
        moved = f"{peaks['copied_bytes_per_s'] / 1e12:.3g} TB/s"
        parts.append(f"Products of large matrices, TFLOP/s: {rates}. Copies read and write {moved}.")
    counts = found.get("operations per image", {})
    steps = [
        [net, variant, *_step_cells(each, peaks.get(variant.split(",")[0]), counts.get(net))]
        for net, variant, each in _steps(results)
    ]
    parts.append(_table(["net", f"step, {machine['pixels']} px", *STEP_CELLS], steps))
    rates = found.get("loader, step and end to end", {}).get("images_per_s", {})
    parts.append(_table(["ResNet-18", "images/s"], [[name, _number(rate)] for name, rate in rates.items()]))
    commands = [(name, found[name]) for name in ("evaluate", "predict") if name in found]
    rows = [[name, each["images"], f"{each['seconds']:.1f}"] for name, each in commands]
    parts.append(_table(["command", "images", "seconds with its start"], rows))
    scaled = {int(name.split(": ")[1]): each["images_per_s"] for name, each in found.items() if "scaling" in name}
    one = scaled.get(1)
    rows = [[number, _number(rate), f"{rate / one / number:.0%}" if one else ""] for number, rate in scaled.items()]
    parts.append(_table(["devices", "images/s", "of independent devices"], rows))
    rows = [
        [name, each["state"], (each.get("reason") or short(each["found"])).replace("|", "/")]
        for name, each in checks.items()
        if each["state"] != "ok" or not name.startswith(IN_TABLES)
    ]
    parts.append(_table(["check", "result", "found"], rows))
    return "\n\n".join(filter(None, parts)) + "\n"


def _step_cells(found: dict[str, Any], tflops: float | None, operations: float | None) -> list[str]:
    """tflops: of matrix products in the step's precision. operations: of a training step, per image."""
    rate = found["images_per_s"]
    share = f"{rate * operations / tflops / 1e12:.0%}" if tflops and operations else ""
    return [str(found["batch"]), _number(rate), share, f"{found['memory_mib']:,.0f}", f"{found['first_step_s']:.1f}"]


def _table(head: list[str], rows: list[list[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) if rows else ""
