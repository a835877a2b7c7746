"""Stand in for srun and train: write a run folder in a fraction of a second, with a top-1 set by optim.momentum.

STAND_IN: a mapping as JSON: epoch_s; epochs; fail: {trial: exit code}; slow: {trial: epoch_s}.
"""

import csv
import json
import os
import signal
import sys
import time
from pathlib import Path

behaviour = json.loads(os.environ.get("STAND_IN", "{}"))
options = dict(token.split("=", 1) for token in sys.argv[1:] if "=" in token and not token.startswith("-"))
folder = Path(options["hydra.run.dir"].strip("'"))
(folder / "checkpoints").mkdir(parents=True, exist_ok=True)
with (folder / "started").open("a") as file:
    file.write(f"{os.getpid()} {options['optim.momentum']}\n")

stopped: list[int] = []
for number in (signal.SIGTERM, signal.SIGUSR2):
    signal.signal(number, lambda number, _: stopped.append(number))

if folder.name in behaviour.get("fail", {}):
    print("RuntimeError: on purpose", file=sys.stderr)
    sys.exit(behaviour["fail"][folder.name])

table = folder / "metrics.csv"
rows = list(csv.DictReader(table.open())) if table.exists() else []
epochs = behaviour.get("epochs", 3)
for epoch in range(len(rows) + 1, epochs + 1):
    end = time.monotonic() + behaviour.get("slow", {}).get(folder.name, behaviour.get("epoch_s", 0.02))
    while time.monotonic() < end:
        time.sleep(0.01)
        if stopped:
            print("Stopped and saved")
            sys.exit(128 + stopped[0])
    rows.append({"epoch": epoch, "val/top1": float(options["optim.momentum"]) * epoch / epochs})
    partial = folder / ".metrics.tmp"
    with partial.open("w", newline="") as file:
        columns: list[str] = ["epoch", "val/top1"]
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    partial.replace(table)
best = max(float(row["val/top1"]) for row in rows)
(folder / "summary.json").write_text(json.dumps({"finished": True, "best/val/top1": best, "best_epoch": epochs}))
