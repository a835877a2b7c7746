"""Measure the images/s of one and two nodes over a slow link, with each option that sends less, and write
docs/benchmarks/scaling.json:

    python scripts/scaling_table.py

Requires root and Linux with iproute2 and util-linux: the nodes are the hosts of tests/helpers/hosts.py, each with one
thread. Run nothing else on the machine. The measurement takes about 15 minutes. Then run `python scripts/doc_pages.py`
to renew the table in docs/performance.md.

Each figure is the sum of both nodes in the second of two epochs. "1 node" is half the sum of both nodes when they train
separately at the same time, because they share the machine's caches in the other measurements too.
"""

import csv
import datetime
import itertools
import json
import re
import statistics
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from helpers.hosts import DISK, Host, Hosts  # noqa: E402  # pyright: ignore[reportMissingImports]

from imagenet_ddp.system.cpu_cores import cpu_model  # noqa: E402

LINKS = {100: 2, 1000: 4}  # Mbit/s -> turns; where communication dominates, turns hardly differ
ALONE = "1 node"
NUMBERS = itertools.count()  # of the runs
OPTIONS = (
    "trainer.accelerator=cpu", "trainer.devices=1", "trainer.precision=32-true", "cluster.num_threads=1",
    "data.image_size=64", "data.batch_size=32", "data.num_workers=0", "trainer.max_epochs=2",
    "trainer.limit_train_batches=8", "trainer.limit_val_batches=0", "callbacks.history.curves=false",
)  # fmt: skip
VARIANTS = (
    "", "strategy.bucket_cap_mb=5", "strategy.gradient_as_bucket_view=false", "strategy.comm_hook=bf16",
    "strategy.comm_hook=fp16", "trainer.accumulate_grad_batches=4",
)  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Hosts(["one", "two"], Path(folder)) as hosts:
        links = [measured(mbit, turns, hosts) for mbit, turns in LINKS.items()]
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "lightning"))
    found = {
        "command": "python scripts/scaling_table.py",
        "date": datetime.date.today().isoformat(),
        "machine": f"{cpu_model()}, one thread per node, {versions}",
        "net": "ResNet-18 at 64 pixels, 32 images per node, fp32",
        "links": links,
    }
    out = ROOT / "docs/benchmarks/scaling.json"
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"Written to {out}. Run `python scripts/doc_pages.py` to renew the table.")


def measured(mbit: int, turns: int, hosts: tuple[Host, ...]) -> dict[str, Any]:
    hosts[0].slow(mbit)
    rates: dict[str, list[float]] = {name: [] for name in (ALONE, *VARIANTS)}
    for _ in range(turns):
        for name, reached in rates.items():
            reached.append(images_per_s(name, hosts))
            print(f"{mbit} Mbit/s, {name or '2 nodes'}: {reached[-1]:.1f} images/s", flush=True)
    both = 2 * statistics.median(rates[ALONE])
    predicted = {name: None if name == ALONE else both * efficiency(name, hosts) for name in rates}
    rows = [{"name": name, "images_per_s": rates[name], "predicted": predicted[name]} for name in rates]
    return {"mbit_per_s": mbit, "rows": rows}


def images_per_s(name: str, hosts: tuple[Host, ...]) -> float:
    nodes = "trainer.num_nodes=1" if name == ALONE else f"trainer.num_nodes=2 {name}"
    run_dir = f"run{next(NUMBERS)}"
    run("train", [*nodes.split(), f"hydra.run.dir={DISK}/{run_dir}"], hosts)
    found = []
    for path in (path for host in hosts for path in host.folder.glob(f"{run_dir}/metrics.csv")):
        with path.open(newline="") as file:
            found.append(float([*csv.DictReader(file)][-1]["images_per_s"]))
    return statistics.mean(found)  # of one file for two nodes, and of two for one each


def efficiency(name: str, hosts: tuple[Host, ...]) -> float:
    """Return the share of two independent nodes' images/s that doctor predicts."""
    said = run("doctor", ["trainer.num_nodes=2", *name.split()], hosts)
    share = re.search(r"predicted: 2 nodes ([\d.]+) %", said)
    assert share, said
    return float(share[1]) / 100


def run(verb: str, options: list[str], hosts: tuple[Host, ...]) -> str:
    """Run a command on both nodes to its end, and return what the first one printed."""
    words = ["python", "-m", f"imagenet_ddp.{verb}", *OPTIONS, *options]
    running = [host.popen(words, {"MASTER_ADDR": hosts[0].address}) for host in hosts]
    codes = [process.wait(900) for process in running]
    if any(codes) and verb == "train":  # doctor calls a slow link a failure
        sys.exit(f"a node failed: {[process.out + process.err for process in running]}")
    return running[0].out


if __name__ == "__main__":
    main()
