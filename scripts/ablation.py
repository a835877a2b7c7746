"""Train a recipe, its variants with one part switched off, and plain references, over several seeds, and compare them:

    python scripts/ablation.py experiment=quick data=imagefolder data.root=FOLDER [seeds=1,2] [variants=FILE] [out=DIR]

seeds: by default 1,2,3. variants: a YAML file {name: [options]}, whose options replace typed options with the same key;
by default scripts/ablations/<experiment>.yaml. out: the output folder, by default runs/ablation_<experiment>. Each run
is in <out>/<name>/seed<seed>, and the comparison in <out>/results.csv.

The runs are `train` commands in rounds. Each round trains all variants with one seed, so that changes over time, such
as other load, affect all variants. Type the same command again to continue a stopped ablation or to repeat failed runs,
or with more seeds to extend a finished one. Exit code 1 means that a run failed or the options were refused.
"""

import csv
import json
import math
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median, variance
from typing import Any

import numpy as np
import yaml

from imagenet_ddp.cli.overrides import in_folder
from imagenet_ddp.mistakes import key_of

BASE = "recipe"  # name of the variant that is the command as typed
OWN = ("seeds", "variants", "out")  # keys of this script


def read(argv: list[str]) -> tuple[list[str], list[int], dict[str, list[str]], Path]:
    """Return (options of all runs, seeds, {variant: its own options}, folder)."""
    own = dict(word.split("=", 1) for word in argv if key_of(word) in (*OWN, "experiment"))
    experiment = own.get("experiment", "")
    path = Path(own.get("variants", Path(__file__).parent / "ablations" / f"{experiment}.yaml"))
    if not path.is_file():
        sys.exit(f"variants must be a YAML file, but {path} does not exist. Hint: set variants=FILE.")
    variants = {BASE: [], **yaml.safe_load(path.read_text(encoding="utf-8"))}
    if not all(isinstance(options, list) for options in variants.values()):
        sys.exit(f"{path} must map names of variants to lists of options. Hint: write no_mixup: [loss.mixup=0].")
    seeds = [int(seed) for seed in dict.fromkeys(own.get("seeds", "1,2,3").split(","))]
    folder = Path(own.get("out", f"runs/ablation_{experiment or path.stem}"))
    return [word for word in argv if key_of(word) not in OWN], seeds, variants, folder


def merged(options: list[str], own: list[str]) -> list[str]:
    """Return the options of all runs, in which a variant's own options replace options with the same key."""
    keys = {key_of(word) for word in own}
    return [*(word for word in options if key_of(word) not in keys), *own]


def require_same(folder: Path, commands: dict[str, list[str]]) -> None:
    """Exit if the folder contains runs with other options, which would be mistaken for runs of this command."""
    path = folder / "ablation.json"
    stored: dict[str, list[str]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if any(stored.get(name, options) != options for name, options in commands.items()):
        sys.exit(f"{path} lists other options than this command. Hint: set out=FOLDER to another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**stored, **commands}, indent=1), encoding="utf-8")


def finished(run_dir: Path) -> dict[str, Any] | None:
    """Return the summary of a run; None if it has not finished."""
    path = run_dir / "summary.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def train(options: list[str], seed: int, run_dir: Path) -> dict[str, Any] | None:
    """Train one run, continuing from its last checkpoint if there is one, and return its summary; None if it failed."""
    words = in_folder([*options, f"seed={seed}", "resume=auto"], "hydra.run.dir", run_dir)
    process = subprocess.Popen([sys.executable, "-m", "imagenet_ddp.train", *words], stdout=subprocess.DEVNULL)
    try:
        process.wait()
    except KeyboardInterrupt:  # it has received the signal too, and saves its state
        process.wait()
        raise
    return finished(run_dir)


def main(argv: list[str]) -> int:
    options, seeds, variants, folder = read(argv)
    commands = {name: merged(options, own) for name, own in variants.items()}
    require_same(folder, commands)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in variants}
    for seed in seeds:
        for name, words in commands.items():
            run_dir = folder / name / f"seed{seed}"
            summary = finished(run_dir) or train(words, seed, run_dir)
            if summary is None:
                print(f"{run_dir} failed. Run the same command again to repeat it.", file=sys.stderr)
                continue
            found[name].append(summary)
            reached = f"top-1 {100 * summary['best/val/top1']:.2f} %, {summary['train_cpu_s']:.0f} CPU seconds"
            print(f"seed {seed}, {name}: {reached}", flush=True)
    if rows := [row(name, runs, found[BASE], commands[name], seeds) for name, runs in found.items() if runs]:
        with (folder / "results.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
        print(f"Written to {folder / 'results.csv'}.")
    return int(any(len(runs) < len(seeds) for runs in found.values()))


# ---- comparison ------------------------------------------------------------------------------------------------------


def row(
    name: str, runs: list[dict[str, Any]], others: list[dict[str, Any]], options: list[str], seeds: list[int]
) -> dict[str, Any]:
    """Return the row of a variant in results.csv. others: runs of the recipe, with which it is compared."""
    top1, base_top1 = ([run["best/val/top1"] for run in each] for each in (runs, others))
    cpu_s, base_cpu_s = ([run["train_cpu_s"] for run in each] for each in (runs, others))
    is_compared = name != BASE and bool(others)
    last = runs[-1]
    shown = [f"{key_of(word)}=FOLDER" if key_of(word) == "data.root" else word for word in options]
    return {
        "recipe": name,
        "data": f"{' '.join(filter(None, last['data'].values()))}, {last['num_train_images']:,} + "
                f"{last['num_val_images']:,} images, {last['num_classes']} classes",
        "num_seeds": len(runs),
        "top1_median": median(top1),
        "top1_range": f"{100 * min(top1):.2f} to {100 * max(top1):.2f}",
        "top1_difference": median(top1) - median(base_top1) if is_compared else None,
        "top1_p": welch_p(top1, base_top1) if is_compared else None,
        "epochs": last["epochs"],
        "train_cpu_s_median": median(cpu_s),
        "train_cpu_s_ratio": median(cpu_s) / median(base_cpu_s) if is_compared else None,
        "hardware": last["hardware"],
        "finished_at": max(run["finished_at"] for run in runs),
        "command": f"python -m imagenet_ddp.train -m {shlex.join(shown)} seed={','.join(map(str, seeds))}",
    }  # fmt: skip


def welch_p(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the two-sided p-value, or None if a sample has fewer than two values, or if neither sample varies."""
    if min(len(a), len(b)) < 2:
        return None
    parts = [variance(values) / len(values) for values in (a, b)]
    if not (total := sum(parts)):
        return None
    t = (mean(a) - mean(b)) / math.sqrt(total)
    # the degrees of freedom according to the Welch-Satterthwaite equation
    freedom = total**2 / sum(part**2 / (len(values) - 1) for part, values in zip(parts, (a, b), strict=True))
    return two_sided_p(t, freedom)


def two_sided_p(t: float, freedom: float) -> float:
    """Return the probability that a value of Student's t-distribution is at least as far from 0 as t. freedom: degrees
    of freedom, at least 1, not necessarily an integer."""
    # The substitution t = sqrt(freedom) tan(angle) turns the density into cos(angle) ** (freedom - 1), which has no
    # infinite tail. The angle is measured from its end, pi / 2. The integral is over the square root of the angle,
    # because the integrand is smooth in it.
    ends = np.sqrt([math.atan2(math.sqrt(freedom), abs(t)), math.pi / 2])
    nodes, weights = np.polynomial.legendre.leggauss(64)
    points = np.outer(ends, (nodes + 1) / 2)
    tail, whole = ends * ((2 * points * np.sin(points**2) ** (freedom - 1)) @ weights)
    return float(tail / whole)


if __name__ == "__main__":
    sys.exit(__doc__) if {*sys.argv[1:]} <= {"-h", "--help"} else sys.exit(main(sys.argv[1:]))
