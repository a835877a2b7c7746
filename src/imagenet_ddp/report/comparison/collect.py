"""Collect the runs of the given folders, and the notes that belong below the table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from imagenet_ddp.report.comparison.differences import Differences, printable, short_names
from imagenet_ddp.report.run import RUN_FILES, NotARunError, Run, find_runs, read_run
from imagenet_ddp.system.text import shorten_list


class Collection(NamedTuple):
    runs: list[Run]  # without duplicates
    notes: list[str]
    mistakes: list[str]


def collect_runs(folders: Sequence[Path]) -> Collection:
    mistakes: list[str] = []
    runs: dict[Path, Run] = {}
    left_out: dict[Path, str] = {}
    for top in folders:
        found = find_runs(top)
        for folder in found:
            if folder not in runs and folder not in left_out:
                try:
                    runs[folder] = read_run(folder)
                except NotARunError as reason:
                    left_out[folder] = str(reason)
        if runs.keys().isdisjoint(found):
            mistakes.append(_no_run(top, found, left_out))
    reasons = [f"{printable(str(folder))} ({reason})" for folder, reason in left_out.items()]
    return Collection(list(runs.values()), [f"Left out: {shorten_list(reasons)}."] if reasons else [], mistakes)


def notes_on(runs: Sequence[Run], differences: Differences) -> list[str]:
    notes = ["top-5 and val loss belong to the best epoch. images/s is the median over the epochs after the first."]
    num_classes = {number for run in runs if isinstance(number := run.summary.get("num_classes"), int)}
    if few := sorted(number for number in num_classes if 0 < number < 5):
        notes.append(f"With fewer than 5 classes, top-5 is top-{' or top-'.join(map(str, few))}.")
    if derived := differences.derived:
        notes.append(f"Not shown, because data= or another choice determines them: {shorten_list(derived)}.")
    notes += version_notes(runs)
    names = short_names([run.folder for run in runs]) if runs else []
    partial = [f"{name} ({'; '.join(run.problems)})" for name, run in zip(names, runs, strict=True) if run.problems]
    if partial:
        notes.append(f"Incomplete: {shorten_list(partial)}.")
    return [printable(note) for note in notes]


def version_notes(runs: Sequence[Run]) -> list[str]:
    return [
        printable(f"The runs were made with different versions of {name}: {shorten_list(sorted(versions))}.")
        for name, versions in sorted(_versions(runs).items())
    ]


def _versions(runs: Sequence[Run]) -> dict[str, set[str]]:
    """Return package -> versions for packages whose versions differ between runs. Python and the commit of this project
    are included."""
    versions: dict[str, set[str]] = {}
    for run in runs:
        packages = run.summary.get("versions")
        pairs: dict[Any, Any] = dict(packages) if isinstance(packages, dict) else {}
        if commit := run.summary.get("git_commit"):
            pairs["the code (git commit)"] = str(commit)[:12]
        for name, version in pairs.items():
            versions.setdefault(str(name), set()).add(str(version))
    return {name: each for name, each in versions.items() if len(each) > 1}


def _no_run(top: Path, found: Sequence[Path], left_out: dict[Path, str]) -> str:
    reasons = [f"{printable(str(folder))}: {left_out[folder]}" for folder in found if folder in left_out]
    return (
        f"{printable(str(top))} must be or contain a run folder, but no folder in it has any of the files "
        f"{', '.join(sorted(RUN_FILES))} of a training run{f' ({shorten_list(reasons)})' if reasons else ''}. "
        "Hint: pass runs/<name>/<time>, or a folder above it."
    )
