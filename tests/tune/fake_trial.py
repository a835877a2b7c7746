"""Stand in for train: write a run folder in a fraction of a second, with a top-1 set by optim.momentum.

STAND_IN: a mapping as JSON: epoch_s, of each epoch after the first; epochs; fail: {trial: exit code}.
"""

import csv
import json
import os
import signal
import sys
import time
from pathlib import Path

behaviour = json.loads(os.environ.get("STAND_IN", "{}"))
options = dict(token.split("=", 1) for token in sys.orig_argv[1:] if "=" in token and not token.startswith("-"))
folder = Path(options["hydra.run.dir"].strip("'"))
(folder / "checkpoints").mkdir(parents=True, exist_ok=True)
with (folder / "started").open("a") as file:
    file.write(f"{os.getpid()} {options['optim.momentum']}\n")

stopped: list[int] = []
signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))


def end(code: int) -> None:
    """Exit, also from within the start of Python."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if folder.name in behaviour.get("fail", {}):
    print("RuntimeError: on purpose", file=sys.stderr)
    end(behaviour["fail"][folder.name])

table = folder / "metrics.csv"
rows = list(csv.DictReader(table.open())) if table.exists() else []
epochs = behaviour.get("epochs", 3)
for epoch in range(len(rows) + 1, epochs + 1):
    end_s = time.monotonic() + (behaviour.get("epoch_s", 0.02) if epoch > 1 else 0.02)
    while time.monotonic() < end_s:
        time.sleep(0.01)
        if stopped:
            print("Stopped and saved")
            end(128 + stopped[0])
    rows.append({"epoch": epoch, "val/top1": float(options["optim.momentum"]) * epoch / epochs})
    partial = folder / ".metrics.tmp"
    with partial.open("w", newline="") as file:
        columns: list[str] = ["epoch", "val/top1"]
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    partial.replace(table)
best = max(float(row["val/top1"]) for row in rows)
(folder / "config.yaml").write_text("{data: {}, model: {}, optim: {}, trainer: {}, resume: null}")
(folder / "summary.json").write_text(json.dumps({"finished": True, "best/val/top1": best, "best_epoch": epochs}))
end(0)
