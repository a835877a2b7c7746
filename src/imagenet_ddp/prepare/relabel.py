"""Run prepare=relabel: apply a person's decisions about images to the class folders or the table, or undo it.

The changes are written to a file beside the decisions before the first of them is made, so that the same command goes
on after an interruption, and undo=true restores everything.
"""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from imagenet_ddp.cli.overrides import shell_line
from imagenet_ddp.config.schema.data import TableData
from imagenet_ddp.data.sources.base import Source
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, setting
from imagenet_ddp.prepare.decisions import match, read_decisions
from imagenet_ddp.prepare.folder_labels import FolderLabels
from imagenet_ddp.prepare.label_changes import Change, Labels, Wanted
from imagenet_ddp.prepare.options import Plan
from imagenet_ddp.prepare.table_labels import TableLabels
from imagenet_ddp.runs.disk_errors import disk_errors_as_run_error
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.files import atomic_write, read_mapping
from imagenet_ddp.system.text import class_list, count_noun, printable, shorten_list

REMOVED = "removed"  # folder beside the list to which images are moved that shall be removed
NEXT_STEP = "When all lists are done, type the check again: it ends with the command that trains on these images."
MAX_NAMED = 5  # pairs of classes, or images, in a line of the summary


@dataclass(frozen=True)
class Record:
    """What was changed, or shall be. kind: of Labels. folders: made for it, relative to data.root."""

    kind: str
    changes: list[Change] = field(default_factory=list[Change])
    folders: list[str] = field(default_factory=list[str])


def run(plan: Plan) -> int:
    """Apply the decisions, or undo it. Return exit code 0. Raises ConfigError before anything is touched, RunError if
    the disk fails."""
    data, file = plan.config.data, Path(str(plan.config.decisions))
    labels = (
        TableLabels(data)
        if isinstance(data, TableData)
        else FolderLabels(Path(str(data.root)), file.with_name(REMOVED))
    )
    record_file = file.with_name(f"{file.stem}.undo.json")
    with disk_errors_as_run_error(Path(str(data.root))):
        record = _read(record_file, labels.kind)
        if plan.config.undo:
            _undo(labels, record, record_file)
            return 0
        _finish(labels, record)
        _apply(labels, record, file, record_file, open_source(data, plan.config.seed))
    print_message(f"Undo it with: {shell_line('prepare', [*plan.argv, 'undo=true'])}", sys.stdout)
    print_message(NEXT_STEP, sys.stdout)
    return 0


def _apply(labels: Labels, record: Record, file: Path, record_file: Path, source: Source) -> None:
    """Write the changes to the record, then make them."""
    decided, mistakes = match(file, read_decisions(file), source, labels.base, record.changes)
    changes, more = labels.plan(decided.wanted, record.changes)
    if mistakes or more:
        raise ConfigError([*mistakes, *more])
    if changes:
        folders = [*record.folders, *labels.new_folders(changes)]
        content = asdict(Record(labels.kind, [*record.changes, *changes], folders))
        atomic_write(record_file, json.dumps(content, indent=1), sync=True)
        labels.apply(changes)
    pairs = Counter((source.classes[images.targets[index]], label) for images, index, label in decided.wanted if label)
    most = [f"{old} to {new} {number:,}" for (old, new), number in pairs.most_common()]
    num_labels, num_images = _numbers(changes)
    parts = [f"{count_noun(num_images, 'image')} moved to {file.with_name(REMOVED)}"] if num_images else []
    if num_labels or not num_images:
        parts += [f"{count_noun(num_labels, 'label')} changed{f': {shorten_list(most, MAX_NAMED)}' if most else ''}"]
    parts += [f"{count_noun(decided.num_kept, 'label')} kept"] if decided.num_kept else []
    parts += [f"{count_noun(decided.num_made, 'decision')} carried out before"] if decided.num_made else []
    print_message(f"{printable('; '.join(parts))}.", sys.stdout)
    for line in (*labels.notes(changes), *_emptied(decided.wanted, source)):
        print_message(f"note: {printable(line)}", sys.stdout)


def _emptied(wanted: list[Wanted], source: Source) -> list[str]:
    """Return a sentence about the classes that have no training image any more, which train refuses."""
    before = source.train.num_of_each(len(source.classes)) if source.train else np.zeros(0)
    now = before.copy()
    for images, index, label in wanted:
        if images is source.train:
            now[images.targets[index]] -= 1
            if label:
                now[source.classes.index(label)] += 1
    empty = [source.classes[target] for target in np.flatnonzero((before > 0) & (now == 0)).tolist()]
    what = f"no training image is left of {class_list(empty, MAX_NAMED)}; add some, or remove the class"
    return [what] if empty else []


def _numbers(changes: Sequence[Change]) -> tuple[int, int]:
    """Return (how many labels are changed, how many images are removed)."""
    num_labels = sum(bool(each.label) for each in changes)
    return num_labels, len(changes) - num_labels


def _finish(labels: Labels, record: Record) -> None:
    """Make the changes that an interrupted command has left."""
    todo, _, mistakes = labels.pending(record.changes)
    if mistakes:
        raise ConfigError(mistakes)
    if todo:
        labels.apply(todo)
        print_message(f"{count_noun(len(todo), 'change')} made that an interrupted command had left.", sys.stdout)


def _undo(labels: Labels, record: Record, record_file: Path) -> None:
    """Take back all changes of a list, the last first."""
    if not record.changes:
        what = (
            f"undo=true needs {record_file}, which prepare=relabel writes before it changes a label, but there is no "
            "such file"
        )
        way = setting("decisions=FILE", aim="to the list that was applied")
        raise ConfigError(Mistake(what, ("undo", "decisions"), (way,)))
    todo, gone, mistakes = labels.pending([each.reverse for each in reversed(record.changes)])
    if mistakes:
        raise ConfigError(mistakes)
    labels.apply(todo)
    labels.remove(record.folders)
    record_file.unlink()
    num_labels, num_images = _numbers(todo)
    parts = [f"{count_noun(num_images, 'image')} moved back"] if num_images else []
    parts += [f"{count_noun(num_labels, 'label')} changed back"] if num_labels or not num_images else []
    print_message(f"{'; '.join(parts)}.", sys.stdout)
    if gone:
        print_message(
            f"note: {count_noun(len(gone), 'image')} gone: {printable(shorten_list(gone, MAX_NAMED))}", sys.stdout
        )


def _read(file: Path, kind: str) -> Record:
    """Return the record, an empty one if there is no file. Raises ConfigError if it is another file."""
    problems: list[str] = []
    if not file.exists():
        return Record(kind)
    content = read_mapping(file, problems)
    try:
        found = Record(str(content["kind"]), [Change(*map(str, each)) for each in content["changes"]],
                       [*map(str, content["folders"])])  # fmt: skip
    except (KeyError, TypeError, ValueError):
        problems = problems or [f"{file.name} is another file"]
        found = Record("")
    if not problems and found.kind != kind:
        problems = [f"it is of {found.kind}"]
    if problems:
        raise ConfigError(
            f"{file} must be what prepare=relabel wrote about {kind}, but {problems[0]}. Hint: move it away, and "
            "correct by hand what it says."
        )
    return found
