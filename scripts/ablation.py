"""Train a recipe, its variants with one part switched off, and plain references, over several seeds:

    python scripts/ablation.py experiment=quick data=imagefolder data.root=FOLDER [seeds=1,2] [variants=FILE] [out=DIR]

seeds: by default 1,2,3. variants: a YAML file {name: [options]}, whose options replace typed options with the same key;
by default scripts/ablations/<experiment>.yaml. out: the output folder, by default runs/ablation_<experiment>. Each run
is in <out>/<name>/seed<seed>.

The runs are `train` commands in rounds. Each round trains all variants with one seed, so that changes over time, such
as other load, affect all variants. Type the same command again to continue a stopped ablation or to repeat failed runs.
Type it with more seeds to extend a finished ablation. Exit code 1 means that a run failed or the options were refused,
and 128 + n that signal n stopped the ablation.
"""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from imagenet_ddp.cli.overrides import in_folder

BASE = "recipe"  # name of the variant that is the command as typed
FILE = "ablation.yaml"  # file in the output folder with the options of its runs


def read(argv: list[str]) -> tuple[list[str], list[int], dict[str, list[str]], Path]:
    """Return (options of all runs, seeds, {variant: its own options}, folder). Exit if they are not valid."""
    words = {word.partition("=")[0]: word.partition("=")[2] for word in argv}
    experiment = words.get("experiment", "")
    seeds = words.get("seeds", "1,2,3").split(",")
    if not all(seed.isdecimal() for seed in seeds) or len({*seeds}) < len(seeds):
        sys.exit(f"seeds must be different whole numbers, got {','.join(seeds)}. Hint: set seeds=1,2,3.")
    default = Path(__file__).parent / "ablations" / f"{experiment}.yaml"
    path = Path(words.get("variants", default))
    if not path.is_file():
        sys.exit(f"variants must be a YAML file, but {path} does not exist. Hint: set variants=FILE.")
    variants = {BASE: [], **_variants(path)}
    options = [word for word in argv if word.partition("=")[0] not in ("seeds", "variants", "out")]
    folder = Path(words.get("out", f"runs/ablation_{experiment or path.stem}"))
    return options, [int(seed) for seed in seeds], variants, folder


def _variants(path: Path) -> dict[str, list[str]]:
    try:
        found: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        sys.exit(
            f"{path} must be YAML, but cannot be read: {error}. Hint: write lines such as no_mixup: [loss.mixup=0]"
        )
    is_valid = isinstance(found, dict) and all(
        isinstance(name, str) and re.fullmatch(r"[\w.-]+", name) and name != BASE
        and isinstance(own, list) and all(isinstance(word, str) for word in own)
        for name, own in found.items()
    )  # fmt: skip
    if not is_valid:
        what = f"map names of variants (letters, digits, _ . -, not {BASE}) to lists of options"
        sys.exit(f"{path} must {what}. Hint: write lines such as no_label_smoothing: [loss.label_smoothing=0]")
    return found


def merged(options: list[str], own: list[str]) -> list[str]:
    """Return the options of all runs, in which a variant's own options replace options with the same key."""
    keys = {word.partition("=")[0] for word in own}
    return [*(word for word in options if word.partition("=")[0] not in keys), *own]


def require_same(folder: Path, options: list[str], variants: dict[str, list[str]]) -> None:
    """Exit if the folder contains runs with other options, which would be mistaken for runs of this command. Else store
    the options in the folder."""
    path, made = folder / FILE, variants
    if path.exists():
        stored = yaml.safe_load(path.read_text(encoding="utf-8"))
        common = stored["variants"].keys() & variants.keys()
        if stored["options"] != options or any(stored["variants"][name] != variants[name] for name in common):
            sys.exit(
                f"{path} lists other options or variants than this command. Hint: set out=FOLDER to another folder."
            )
        made = {**stored["variants"], **variants}  # a variant may be left out now, and added again later
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({"options": options, "variants": made}, sort_keys=False), encoding="utf-8")


def summary(run_dir: Path) -> dict[str, Any] | None:
    """Return the summary of a run, or None if the run has not finished."""
    try:
        return json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def train(options: list[str], seed: int, run_dir: Path) -> None:
    """Train one run, continuing from its last checkpoint if there is one. Print a message if it fails. On a signal,
    exit with 128 + its number, even if the run finished because it had no steps left at which to stop."""
    words = in_folder([*options, f"seed={seed}", "resume=auto"], "hydra.run.dir", run_dir)
    process = subprocess.Popen([sys.executable, "-m", "imagenet_ddp.train", *words], stdout=subprocess.DEVNULL)
    came = []

    def stop(number: int, _: object) -> None:
        came.append(number)
        if number == signal.SIGTERM:  # Ctrl-C also reaches the training run; both signals let it save its state
            process.terminate()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    code = process.wait()
    for number, handler in before.items():
        signal.signal(number, handler)
    if came:
        print(f"Stopped by signal {came[0]} in {run_dir}. Run the same command again to continue.", file=sys.stderr)
        sys.exit(128 + came[0])
    if code:
        print(f"{run_dir} failed with exit code {code}; the other runs continue.", file=sys.stderr)


def main(argv: list[str]) -> None:
    options, seeds, variants, folder = read(argv)
    require_same(folder, options, variants)
    failed = []
    for number, seed in enumerate(seeds, 1):
        for name, own in variants.items():
            run_dir = folder / name / f"seed{seed}"
            if summary(run_dir) is None:
                train(merged(options, own), seed, run_dir)
            found = summary(run_dir)
            if found is None:
                failed.append(run_dir)
                continue
            top1 = found["best/val/top1"]
            reached = "no validation" if top1 is None else f"top-1 {100 * top1:.2f} %"
            figures = f"{reached}, {found['train_cpu_s']:.0f} CPU seconds"
            print(f"round {number} of {len(seeds)}, {name}: {figures}", flush=True)
    of_base = [run_dir for seed in seeds if (run_dir := folder / BASE / f"seed{seed}") not in failed]
    against = [f"against={run_dir}" for run_dir in of_base[:1]]
    code = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("recipe_table.py")), str(folder), *against]
    ).returncode
    if failed:
        print(f"Failed: {', '.join(map(str, failed))}. Run the same command again to repeat them.", file=sys.stderr)
    sys.exit(1 if failed else code)


if __name__ == "__main__":
    sys.exit(__doc__) if {*sys.argv[1:]} <= {"-h", "--help"} else main(sys.argv[1:])
