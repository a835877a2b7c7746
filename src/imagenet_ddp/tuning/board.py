"""What a study says while it runs and at its end: lines, the leaderboard, best.yaml. No torch, no Optuna."""

import shlex
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from imagenet_ddp.trainer_keys import shown
from imagenet_ddp.tuning.study import Tried
from imagenet_ddp.writing import write_whole

WIDTH, NUM_ROWS = 80, 10
INDENT = " " * 4


def say(text: str) -> None:
    """At once, at 80 columns; options are never broken."""
    print(wrapped(text), flush=True)


def wrapped(text: str) -> str:
    return "\n".join(
        textwrap.wrap(text, WIDTH, subsequent_indent=INDENT, break_long_words=False, break_on_hyphens=False)
    )


def percent(top1: float | None) -> str:
    return "no val top-1" if top1 is None else f"{100 * top1:.2f} %"


def since(begin: float) -> str:
    """Seconds of time.monotonic() since then, for people."""
    seconds = time.monotonic() - begin
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def best_of(tried: Sequence[Tried]) -> Tried | None:
    """Of those that finished; the first of equal ones."""
    finished = [trial for trial in tried if trial.state == "finished" and trial.top1 is not None]
    return max(finished, key=lambda trial: (trial.top1 or 0.0, -trial.number), default=None)


def short(value: Any) -> str:
    """Four figures are enough to tell trials apart."""
    return f"{value:.4g}" if isinstance(value, float) else shown(value)


def short_options(options: Sequence[str]) -> str:
    words = []
    for option in options:
        key, _, value = option.partition("=")
        try:
            words.append(f"{key}={float(value):.4g}" if "." in value or "e" in value else option)
        except ValueError:
            words.append(option)
    return " ".join(words)


def counts(tried: Sequence[Tried]) -> str:
    states = [trial.state for trial in tried]
    parts = [f"{states.count(state)} {state}" for state in ("finished", "pruned", "failed", "running")]
    return f"{len(tried)} trials: {', '.join(part for part in parts if not part.startswith('0 '))}."


def table(tried: Sequence[Tried]) -> str:
    """The ten best, best first; pruned ones, which have seen fewer epochs, come after those that finished."""
    order = {"finished": 0, "pruned": 1}
    ranked = sorted(
        (trial for trial in tried if trial.state in order),
        key=lambda trial: (order[trial.state], -(trial.top1 if trial.top1 is not None else -1.0), trial.number),
    )[:NUM_ROWS]
    keys = list(dict.fromkeys(key for trial in ranked for key in trial.values))
    ends = [key.rpartition(".")[2] for key in keys]
    heads = [end if ends.count(end) == 1 and end != "name" else key for key, end in zip(keys, ends, strict=True)]
    rows = [["trial", "val top-1", "epoch", *heads]]
    for trial in ranked:
        told = f"{percent(trial.top1)}{'' if trial.state == 'finished' else ' pruned'}"
        values = [short(trial.values[key]) if key in trial.values else "" for key in keys]
        rows.append([str(trial.number), told, str(trial.epoch or ""), *values])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    if len(lines[0]) <= WIDTH:
        return "\n".join(lines)
    told = [
        f"trial {row[0]}: {row[1]} in epoch {row[2]} with "
        + " ".join(f"{head}={cell}" for head, cell in zip(heads, row[3:], strict=True))
        for row in rows[1:]
    ]
    return "\n".join(wrapped(text) for text in told)


def write_best(path: Path, best: Tried, command: str, max_epochs: int | None) -> str:
    """The file, and the command line that trains with the best options for twice as long. command: train's, with the
    study's own options."""
    longer = [f"trainer.max_epochs={2 * max_epochs}"] if max_epochs else []
    line = " ".join([command, shlex.join([*best.options, *longer])])
    content = {
        "trial": best.number, "val/top1": best.top1, "epoch": best.epoch, "options": list(best.options),
        "train_longer": line,
    }  # fmt: skip
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1000)
    write_whole(path, f"# Of the study's finished trials the one with the highest val top-1.\n{text}")
    return line
