"""Follow a run in progress through its folder, on the machine that trains or on another one with access to the
folder."""

import time
from pathlib import Path

import numpy as np

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.report.run import NotARunError, Run, read_run
from imagenet_ddp.runs import terminal_table
from imagenet_ddp.runs.curves_figure import has_top5
from imagenet_ddp.runs.log import Log

POLL_S = 2.0
# A run that is not locked counts as ended after this time without a line in its log. The lock alone does not suffice,
# because it may not be visible from this machine.
QUIET_S = 120.0
SPARK_COLUMNS = 24


def watch(folder: Path, *, poll_s: float = POLL_S, log: Log | None = None) -> None:
    """Print a line for each epoch when it ends, until the run is finished or interrupted. Below these lines, a terminal
    also shows sparklines and the last line of the run's log. poll_s: seconds between two looks at the folder. log: None
    prints to the standard output."""
    if not (folder / "logs").is_dir():
        raise ConfigError(f"watch=true needs a run folder, got {folder}. Hint: pass runs/<name>/<time> watch=true.")
    log = log or Log(None, 0)
    shown, is_waiting = 0, False
    while True:
        try:
            run = read_run(folder)
        except NotARunError:
            run = None
        if run is None and not is_waiting:
            log.say(f"Waiting for the first epoch of {folder} to end. Ctrl-C ends this command, not the run.")
            is_waiting = True
        if run is not None:
            shown = _say_epochs(run, shown, log)
            if run.state == "finished" or (run.state != "running" and _silent_s(folder) > QUIET_S):
                break
        log.draw("\n".join([*(_sparklines(run) if run else []), _last_line(folder)]))
        time.sleep(poll_s)
    best = f"Best top-1: {100 * run.best_top1:.2f} % (epoch {run.best_epoch})." if run.best_top1 is not None else ""
    state = "finished" if run.state == "finished" else f"interrupted: its log has had no new line for {QUIET_S:.0f} s"
    log.say(f"The run is {state}. {best}".strip())
    log.close()


def _say_epochs(run: Run, shown: int, log: Log) -> int:
    """Print the epochs that follow the first `shown` epochs. Return the current number of epochs, which may be lower
    than `shown` after a resume."""
    count = len(run.metrics["epoch"])
    for index in range(min(shown, count), count):
        head_index = index - index % 20
        # the first row decides for the rows below the same head
        is_shown = has_top5({name: column[: head_index + 1] for name, column in run.metrics.items()})
        if index == head_index:
            log.say(terminal_table.head(has_top5=is_shown), whole=True)
        values = {name: float(column[index]) for name, column in run.metrics.items()}
        is_best = run.best_epoch is not None and values["epoch"] == run.best_epoch
        log.say(terminal_table.row(values, run.max_epochs, is_best=is_best, has_top5=is_shown), whole=True)
    return count


def _sparklines(run: Run) -> list[str]:
    lines = []
    for title, name in (("loss ", "val/loss"), ("top-1", "val/top1")):
        values = run.metrics.get(name, np.empty(0)).tolist()
        lines.append(f"{title} {terminal_table.sparkline(values, SPARK_COLUMNS)}")
    return lines


def _silent_s(folder: Path) -> float:
    """Return the seconds since rank 0's log was last written."""
    try:
        return time.time() - (folder / "logs" / "rank0.log").stat().st_mtime
    except OSError:
        return float("inf")


def _last_line(folder: Path) -> str:
    """Return the last line of rank 0's log, without its date; "" if there is none."""
    try:
        with (folder / "logs" / "rank0.log").open("rb") as file:
            file.seek(0, 2)
            file.seek(max(file.tell() - 4096, 0))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return lines[-1][len("YYYY-MM-DD HH:MM:SS ") :] if lines else ""
