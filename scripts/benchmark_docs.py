"""Measure the tables of docs/performance.md again: python scripts/benchmark_docs.py FOLDER [MODE ...]

FOLDER contains the images FOLDER/train/<class>/* and FOLDER/val/<class>/*. Each MODE is the name of a file in
docs/benchmarks; by default, all modes are measured. Run nothing else on the machine. On two cores this takes about an
hour.
"""

import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
PHOTOGRAPHS = "data=imagefolder data.root=FOLDER data.image_size=224 data.batch_size=32"
OPTIONS = {
    "step": "scripts/benchmarks/step.py OUT",
    "step_224": f"scripts/benchmarks/step.py OUT steps=10 {PHOTOGRAPHS}",
    "train": f"scripts/benchmarks/train.py OUT repeats=3 steps=10 {PHOTOGRAPHS}",
    "start": "scripts/benchmarks/start.py OUT",
    "loader": "scripts/benchmarks/loader.py OUT data=imagefolder data.root=FOLDER",
}
NOT_SHOWN = ("runs", "parts", "examples")  # details of single steps and of the machine


def main(folder: str, *modes: str) -> None:
    """Write docs/benchmarks/MODE.json for each mode, and renew the generated pages."""
    for mode in modes or OPTIONS:
        with tempfile.TemporaryDirectory() as work:
            words = [word.replace("FOLDER", folder).replace("OUT", f"{work}/run") for word in OPTIONS[mode].split()]
            command = [sys.executable, *words]
            print("$", shlex.join(command), flush=True)
            subprocess.run(command, check=True, cwd=DOCS.parent)
            content = json.loads(Path(work, "run/benchmark.json").read_text(encoding="utf-8"))
        content = {key: value for key, value in content.items() if key not in NOT_SHOWN}
        content["command"] = f"python {OPTIONS[mode]}"
        (DOCS / "benchmarks").mkdir(exist_ok=True)
        (DOCS / "benchmarks" / f"{mode}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    subprocess.run([sys.executable, str(Path(__file__).with_name("doc_pages.py"))], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
