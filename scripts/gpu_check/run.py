"""Run the checks in slices, keep what each found in results.json, and write the tables and the picture. Needs only the
standard library: what is missing is listed first, and leaves out the checks that need it. See ../gpu_check.sh."""

import datetime
import json
import re
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import packages
import tables
from checks import CHECKS, FORMS, PROJECT, Check, Context, FailedError

MIN_TORCH = (2, 11)


def main() -> int:
    words = sys.argv[1:]
    if words == ["pack"]:
        written = packages.pack()
        size_mib = sum(path.stat().st_size for path in written) / 2**20
        print(f"{len(written)} packages, {size_mib:.1f} MiB, in {packages.WHEELS}")
        return 0
    own = dict(word.split("=", 1) for word in words if "=" in word)
    if unknown := own.keys() - {"slices", "minutes", "only", "form"}:
        print(f"gpu_check: options must be slices, only, minutes or form, got {', '.join(unknown)}.", file=sys.stderr)
        return 2
    if own.get("form", "cpu") not in FORMS or not re.fullmatch(r"[1-6](,[1-6])*", own.get("slices", "1")):
        print("gpu_check: form must be gpu or cpu, and slices a list such as 1,2 of 1 to 6.", file=sys.stderr)
        return 2
    out = Path(next((word for word in words if "=" not in word), "runs/gpu_check")).absolute()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that a check's processes end, too
    (out / "work").mkdir(parents=True, exist_ok=True)
    (out / "logs").mkdir(exist_ok=True)
    added = packages.provide(out / "work" / "site")
    context = Context(FORMS["cpu"], out, 1, time.monotonic() + 600, out / "logs" / "machine.log")
    if (version := packages.version_of("torch")) is None or _numbers(version) < MIN_TORCH:
        print(f"gpu_check: torch must be 2.11 or later, but {version or 'none'} is installed.", file=sys.stderr)
        return 2
    machine = context.on_device("machine")
    form = own.get("form", "gpu" if machine["gpus"] else "cpu")
    context.form = FORMS[form]
    context.num_devices = len(machine["gpus"]) if form == "gpu" else 2
    results = _results(out, machine | {"form": form, "pixels": context.form.pixels})
    print(*_opening_lines(machine, form, added), sep="\n", flush=True)
    if not (context.images / "val").is_dir() and all(map(packages.version_of, ("numpy", "pillow"))):
        made = context.on_device("images", f"{context.images}.new", str(context.form.images))
        (out / "work" / "images.new").rename(context.images)
        print(f"Made {made['num_images']} JPEGs of {made['kib']:.0f} KiB in {made['seconds']:.0f} s.", flush=True)
    numbers = [int(number) for number in own.get("slices", "1,2,3,4,5,6").split(",")]
    checks = [each for each in CHECKS if each.slice in numbers and re.search(own.get("only", ""), each.name)]
    try:
        for number in numbers:
            of_slice = [each for each in checks if each.slice == number]
            _run_slice(of_slice, context, results, 60 * float(own.get("minutes", "4")))
    finally:  # also if this call is stopped
        tables.write(out, results)
    states = [results["checks"].get(each.name, {}).get("state") for each in checks]
    print(
        f"{states.count('ok')} passed, {states.count('failed')} failed, {states.count('left out')} left out, "
        f"{states.count(None)} to do. Written to {out}: results.json, tables.md, steps.png"
    )
    if None in states:
        print("Type the same command again to continue.")
    return 1 if "failed" in states or None in states else 0


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2])


def _results(out: Path, machine: dict[str, Any]) -> dict[str, Any]:
    """Return what earlier calls have found on the same machine."""
    path = out / "results.json"
    new = {"machine": machine, "date": datetime.date.today().isoformat(), "checks": {}}
    if not path.is_file():
        return new
    found = json.loads(path.read_text(encoding="utf-8"))
    if any(found["machine"][key] != machine[key] for key in ("form", "gpus", "torch")):  # not the driver
        print(f"gpu_check: {path} must be of this machine, but is of {found['machine']}. Hint: choose another folder.",
              file=sys.stderr)  # fmt: skip
        sys.exit(2)
    return found


def _opening_lines(machine: dict[str, Any], form: str, added: list[str]) -> list[str]:
    names = dict.fromkeys([*packages.required(), *PROJECT, *packages.TOOLS])
    found = {name: packages.version_of(name) for name in names}
    missing = [name for name, version in found.items() if version is None]
    programs = [name for name in ("nvidia-smi", "gcc") if shutil.which(name) is None]
    gpus, wheels = machine["gpus"], packages.WHEELS.relative_to(packages.ROOT)
    memory = f" of {machine['gpu_memory_gib']} GiB" if gpus else ""
    versions = ", ".join(f"{name} {machine[name.lower()]}" for name in ("driver", "CUDA", "cuDNN", "NCCL"))
    lines = [
        f"Missing packages: {', '.join(missing) or 'none'}. Missing programs: {', '.join(programs) or 'none'}.",
        f"Added from {wheels}: {', '.join(added) or 'nothing'}.",
        f"GPUs: {', '.join(gpus) or 'none'}{memory}; {versions}; {machine['num_cores']} cores of {machine['cpu']}.",
        f"Python {machine['python']}, {', '.join(f'{name} {version}' for name, version in found.items() if version)}.",
        f"Form: {form}.",
    ]
    if set(missing) & set(PROJECT):
        lines.insert(1, f"Hint: type `scripts/gpu_check.sh pack` where they are installed, and bring {wheels}.")
    return lines


def _run_slice(slice_checks: list[Check], context: Context, results: dict[str, Any], limit_s: float) -> None:
    """Run the checks of a slice that have not passed. Each result is written at once."""
    end, checks, begun = time.monotonic() + limit_s, results["checks"], False
    for check in slice_checks:
        if checks.get(check.name, {}).get("state") == "ok":
            continue
        if why := _left_out(check, context):
            checks[check.name] = {"state": "left out", "reason": why}
        elif begun and end - time.monotonic() < check.seconds:
            print(f"slice {check.slice}: no time for {check.name}", flush=True)
            continue
        else:
            begun = True
            context.log = context.out / "logs" / f"{''.join(c if c.isalnum() else '_' for c in check.name)}.log"
            context.log.unlink(missing_ok=True)
            context.ends_at, begin = end, time.monotonic()
            try:
                checks[check.name] = {"state": "ok", "found": check.run(context)}
            except (FailedError, OSError, ValueError, KeyError, ImportError) as error:
                checks[check.name] = {"state": "failed", "reason": f"{type(error).__name__}: {error}"}
            checks[check.name]["seconds"] = round(time.monotonic() - begin, 1)
        what = checks[check.name]
        said, seconds = what.get("reason") or tables.short(what["found"]), what.get("seconds", 0)
        print(f"slice {check.slice}: {check.name}: {what['state']} in {seconds:.0f} s. {said}", flush=True)
        path = context.out / "results.json"
        path.with_suffix(".new").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        path.with_suffix(".new").replace(path)


def _left_out(check: Check, context: Context) -> str | None:
    """Return why a check cannot be run here."""
    if missing := [name for name in check.needs if packages.version_of(name) is None]:
        return f"needs {', '.join(missing)}"
    if check.gpus and context.form.accelerator != "gpu":
        return "needs a GPU"
    if check.devices > context.num_devices:
        return f"needs {check.devices} devices"
    return None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FailedError as error:  # before the first check
        print(f"gpu_check: {error}", file=sys.stderr)
        sys.exit(2)
