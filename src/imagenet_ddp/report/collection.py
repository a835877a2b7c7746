"""All runs of the folders given, each once, and what has to be said of those that are not shown."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from imagenet_ddp.config.validators import shown
from imagenet_ddp.report.differences import Differences, printable, short_names
from imagenet_ddp.report.runs import NoRun, Run, read
from imagenet_ddp.report.search import MARKS, MAX_FOLDERS, Found, search
from imagenet_ddp.system.text import shorten_list


@dataclass
class Collection:
    runs: list[Run] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)


def collect(folders: Sequence[Path]) -> Collection:
    collection = Collection()
    runs: dict[Path, Run] = {}
    left_out: dict[Path, str] = {}
    for top in folders:
        found = search(top)
        for folder in found.folders:
            if folder not in runs and folder not in left_out:
                try:
                    runs[folder] = read(folder)
                except NoRun as reason:
                    left_out[folder] = str(reason)
        if not any(folder in runs for folder in found.folders):
            collection.mistakes.append(_no_run(top, found, left_out))
        if not found.complete:
            collection.notes.append(f"Only the first {MAX_FOLDERS} folders of {printable(str(top))} were looked into.")
        for sweep in found.sweeps:
            collection.notes += _not_begun(sweep)
    collection.runs = list(runs.values())
    if left_out:
        lines = [f"{printable(str(folder))} ({reason})" for folder, reason in left_out.items()]
        collection.notes.append(f"Left out: {shorten_list(lines)}.")
    return collection


def notes(runs: Sequence[Run], found: Differences) -> list[str]:
    """What a reader of the table must know."""
    said = ["top-5 and val loss are those of the best epoch; images/s is the median over the epochs after the first."]
    classes = {num for run in runs if isinstance(num := run.summary.get("num_classes"), int)}
    if few := sorted(num for num in classes if 0 < num < 5):
        said.append(f"Fewer than 5 classes: top-5 is top-{' or top-'.join(map(str, few))}.")
    if found.follow:
        said.append(f"Differ in step with the choice of their group, and are not shown: {shorten_list(found.follow)}.")
    for name, versions in sorted(_versions(runs).items()):
        said.append(f"The runs were made with different versions of {name}: {shorten_list(sorted(versions))}.")
    names = short_names([run.folder for run in runs]) if runs else []
    parts = [f"{name} ({'; '.join(run.problems)})" for name, run in zip(names, runs, strict=True) if run.problems]
    if parts:
        said.append(f"Read in part: {shorten_list(parts)}.")
    return [printable(line) for line in said]


def _versions(runs: Sequence[Run]) -> dict[str, set[str]]:
    """Package -> its versions, where there are several; python and the code itself among them."""
    seen: dict[str, set[str]] = {}
    for run in runs:
        versions = run.summary.get("versions")
        pairs: dict[Any, Any] = dict(versions) if isinstance(versions, dict) else {}
        if run.summary.get("git_commit"):
            pairs["the code (git commit)"] = str(run.summary["git_commit"])[:12]
        for name, version in pairs.items():
            seen.setdefault(str(name), set()).add(str(version))
    return {name: versions for name, versions in seen.items() if len(versions) > 1}


def _no_run(top: Path, found: Found, left_out: dict[Path, str]) -> str:
    reasons = [f"{printable(str(folder))}: {left_out[folder]}" for folder in found.folders if folder in left_out]
    inside = f" ({shorten_list(reasons)})" if reasons else ""
    return (
        f"{printable(str(top))} must be a run folder or to hold some, but no folder in it has a "
        f"{', '.join(sorted(MARKS))} of a training{inside}. Hint: runs/<name>/<time>, or a folder above."
    )


def _not_begun(sweep: Path) -> list[str]:
    jobs: Any = None
    with contextlib.suppress(OSError, ValueError, yaml.YAMLError, AttributeError):
        jobs = yaml.safe_load((sweep / "sweep.yaml").read_text(encoding="utf-8")).get("jobs")
    if not isinstance(jobs, list):
        return []
    waiting = [
        f"{number} ({shown(' '.join(map(str, job)) if isinstance(job, list) else job)})"
        for number, job in enumerate(jobs)
        if not any((sweep / str(number) / mark).is_file() for mark in MARKS)
    ]
    name = printable(sweep.name)
    return (
        [f"{len(waiting)} of the {len(jobs)} jobs of {name} have not begun: {shorten_list(waiting)}."]
        if waiting
        else []
    )
