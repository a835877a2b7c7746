"""Run prepare=relabel: apply a person's decisions about images to the class folders or the table, or undo it. With
unlabelled=FOLDER, give a class to images that have none.

The changes are written to a file beside the decisions before the first of them is made, so that the same command goes
on after an interruption, and undo=true restores everything.
"""

import contextlib
import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path

import numpy as np

from imagenet_ddp.cli.overrides import quoted, shell_line
from imagenet_ddp.cli.photograph_lines import OF_IMAGES, check_again_line
from imagenet_ddp.config.schema.data import TableData
from imagenet_ddp.curation import decision_lists
from imagenet_ddp.data.sources.base import Names, Source
from imagenet_ddp.data.sources.image_files import FileImages
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.data.sources.walk import list_folder
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, key_of, setting
from imagenet_ddp.prepare.decisions import Decided, match
from imagenet_ddp.prepare.folder_labels import FolderLabels
from imagenet_ddp.prepare.label_changes import Change, Labels, Wanted
from imagenet_ddp.prepare.options import Plan, newest_decisions
from imagenet_ddp.prepare.table_labels import TableLabels
from imagenet_ddp.runs.disk_errors import disk_errors_as_run_error
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.files import atomic_write, below, read_mapping, short_path
from imagenet_ddp.system.text import class_list, count_noun, printable, shorten_list

REMOVED = "removed"  # folder beside the list to which images are moved that shall be removed
NEXT_STEP = (
    "Next: another list with decisions, or the check again, which ends with the command that trains on these images: "
)
TRAIN_AGAIN = (
    "To learn from these images, too, train again on data.root; to look for faults among them, check it again."
)
MAX_NAMED = 5  # pairs of classes, or images, in a line of the summary


@dataclass(frozen=True)
class Record:
    """What was changed, or shall be. kind: of Labels. folders: made for it, relative to data.root. num_made: of the
    changes, the first that were all made: another image may be where theirs was."""

    kind: str
    changes: list[Change] = field(default_factory=list[Change])
    folders: list[str] = field(default_factory=list[str])
    num_made: int = 0

    def write(self, file: Path, num_made: int) -> None:
        atomic_write(file, json.dumps(asdict(replace(self, num_made=num_made)), indent=1), sync=True)


def run(plan: Plan) -> int:
    """Apply the decisions, or undo it. Return exit code 0. Raises ConfigError before anything is touched, RunError if
    the disk fails."""
    data, file = plan.config.data, Path(str(plan.config.decisions))
    unlabelled = None if plan.config.unlabelled is None else Path(plan.config.unlabelled)

    def labels_of(folder: Path) -> Labels:
        """Return the labels as a list in this folder changes them."""
        if isinstance(data, TableData):
            return TableLabels(data)
        return FolderLabels(Path(str(data.root)), folder / REMOVED, unlabelled)

    labels, record_file = labels_of(file.parent), decision_lists.record_file(file)
    with disk_errors_as_run_error(Path(str(data.root))):
        record = _read(record_file, labels.kind)
        if plan.config.undo:
            _undo(labels, record, record_file, is_of_check=unlabelled is None)
            return 0
        _finish(labels, record, record_file)
        source, others = open_source(data, plan.config.seed, purpose=plan.config.purpose), list[FileImages]()
        if unlabelled is not None:
            names = list_folder(unlabelled)[0]
            others.append(FileImages(unlabelled, Names.of(names), np.zeros(len(names), np.int64)))
        by_others = _elsewhere(file.parent, Path(str(data.root)), labels_of)
        by_others |= {at: each for at, each in _records(file.parent, labels.kind).items() if at != file}
        to_undo = _apply(labels, record, by_others, file, source, others)
    for at, what in to_undo.items():
        argv = plan.argv if at == file else _with_list(plan, short_path(at))
        line = shell_line("prepare", [*argv, "undo=true"])
        print_message(f"{what} with: `{line}`", sys.stdout)
    if newer := _newer_list(file):
        line = shell_line("prepare", _with_list(plan, newer))
        print_message(f"{newer} is newer, and was not read. To do what it says: `{line}`", sys.stdout)
    check = check_again_line(file.parent, *(word for word in plan.argv if word.startswith(OF_IMAGES)))
    print_message(f"{NEXT_STEP}`{check}`" if unlabelled is None else TRAIN_AGAIN, sys.stdout)
    return 0


def _with_list(plan: Plan, file: Path) -> list[str]:
    """Return the options as typed, with another list of decisions."""
    return [quoted(f"decisions={file}" if key_of(word) == "decisions" else word) for word in plan.argv]


def _newer_list(file: Path) -> Path | None:
    """Return a page's list beside this one, such as "decisions (1).csv", that is newer and was not carried out."""
    newest = newest_decisions(file.parent)
    if newest is None or decision_lists.record_file(newest).exists():
        return None
    return newest if newest.stat().st_mtime_ns > file.stat().st_mtime_ns else None


def _apply(
    labels: Labels,
    record: Record,
    by_others: dict[Path, list[Change]],
    file: Path,
    source: Source,
    unlabelled: list[FileImages],
) -> dict[Path, str]:
    """Write the changes to the record, then make them. by_others: as in match. Return the lists that can be undone,
    with words for that."""
    record_file = decision_lists.record_file(file)
    decisions = decision_lists.read_decisions(file, can_keep=not unlabelled, can_remove=labels.can_remove)
    decided, mistakes = match(file, decisions, source, labels, record.changes, by_others, unlabelled)
    changes, more = labels.plan(decided.wanted, [*record.changes, *itertools.chain(*by_others.values())])
    if mistakes or more:
        raise ConfigError([*mistakes, *more])
    if changes:
        folders = [*record.folders, *labels.new_folders(changes)]
        new = Record(labels.kind, [*record.changes, *changes], folders)
        new.write(record_file, len(record.changes))
        labels.apply(changes)
        new.write(record_file, len(new.changes))
    print_message(f"{printable(_summary(decided, file))}.", sys.stdout)
    for line in (*decided.skipped, *labels.notes(changes), *_emptied(decided.wanted, source)):
        print_message(f"note: {printable(line)}", sys.stdout)
    before = f", and {count_noun(len(record.changes), 'earlier change')} with this list," * bool(record.changes)
    own = {file: f"Undo it{before}"} if record.changes or changes or not decided.made_by else {}
    return own | {at: f"Undo what {short_path(at)} has changed" for at in decided.made_by}


def _summary(decided: Decided, file: Path) -> str:
    """Return how many images have got what. file: the list."""
    pairs = Counter((each.old, each.label) for each in decided.wanted if each.label and each.old)
    most = [f"{old} to {new} {number:,}" for (old, new), number in pairs.most_common()]
    added = Counter(each.label for each in decided.wanted if each.label and not each.old)
    num_removed = sum(not each.label for each in decided.wanted)
    each_class = shorten_list([f"{label} {number:,}" for label, number in added.most_common()], MAX_NAMED)
    parts = [f"{count_noun(added.total(), 'image')} moved into the class folders: {each_class}"] if added else []
    parts += [f"{count_noun(num_removed, 'image')} moved to {file.with_name(REMOVED)}"] if num_removed else []
    made = {file: decided.num_made, **decided.made_by}  # list -> decisions that were carried out before
    if not parts and not pairs and any(made.values()):
        parts = ["Nothing is left to do"]
    elif pairs or not parts:
        parts += [f"{count_noun(pairs.total(), 'label')} changed{f': {shorten_list(most, MAX_NAMED)}' if most else ''}"]
    parts += [f"{count_noun(decided.num_kept, 'label')} kept"] if decided.num_kept else []
    for at, number in made.items():
        if number:
            with_it = "" if at == file else f" with {short_path(at)}"
            made_s = decision_lists.record_file(at).stat().st_mtime
            when = f"{datetime.fromtimestamp(made_s):%Y-%m-%d %H:%M}"
            parts.append(f"{count_noun(number, 'decision')} carried out before{with_it} ({when})")
    return "; ".join(parts)


def _emptied(wanted: list[Wanted], source: Source) -> list[str]:
    """Return a sentence about the classes that have no training image, which train refuses."""
    if source.train is None:
        return []
    numbers = Counter(dict(zip(source.classes, source.train.num_of_each(len(source.classes)).tolist(), strict=True)))
    for each in wanted:
        if each.images is not source.val:
            numbers.update({each.label: 1} if each.label else {})
            numbers.subtract({each.old: 1} if each.old else {})
    empty = [name for name in source.classes if not numbers[name]]
    what = f"there is no training image of {class_list(empty, MAX_NAMED)}; add some, or remove the class"
    return [what] if empty else []


def _finish(labels: Labels, record: Record, record_file: Path) -> None:
    """Make the changes that an interrupted command has left."""
    todo, _, mistakes = labels.pending(record.changes[record.num_made :])
    if mistakes:
        raise ConfigError(mistakes)
    if todo:
        labels.apply(todo)
        record.write(record_file, len(record.changes))
        print_message(f"{count_noun(len(todo), 'change')} made that an interrupted command had left.", sys.stdout)


def _undo(labels: Labels, record: Record, record_file: Path, *, is_of_check: bool) -> None:
    """Take back all changes of a list, the last first. is_of_check: whether a check may have made it."""
    if not record.changes:
        what = (
            f"undo=true needs {record_file}, which prepare=relabel writes before it changes a label, but there is no "
            "such file"
        )
        applied = [at for at, changes in _records(record_file.parent, labels.kind).items() if changes]
        ways = [setting(quoted(f"decisions={at}")) for at in applied]
        ways = ways or [setting("decisions=FILE", aim="to the list that was applied")]
        raise ConfigError(Mistake(what, ("undo", "decisions"), tuple(ways)))
    todo, gone, mistakes = labels.pending([each.reverse for each in reversed(record.changes)])
    if mistakes:
        raise ConfigError(mistakes)
    record.write(record_file, 0)
    labels.apply(todo)
    labels.remove(record.folders)
    record_file.unlink()
    num_images = sum(each.adds or not each.label for each in todo)
    num_labels = len(todo) - num_images
    parts = [f"{count_noun(num_images, 'image')} moved back"] if num_images else []
    parts += [f"{count_noun(num_labels, 'label')} changed back"] if num_labels or not num_images else []
    print_message(f"{'; '.join(parts)}.", sys.stdout)
    again = "; decisions that a later check has replaced must be made again" * is_of_check
    print_message(f"note: all changes ever made with this list are taken back{again}", sys.stdout)
    if gone:
        print_message(
            f"note: {count_noun(len(gone), 'image')} gone: {printable(shorten_list(gone, MAX_NAMED))}", sys.stdout
        )


def _records(folder: Path, kind: str) -> dict[Path, list[Change]]:
    """Return what was changed with each list of a folder."""
    found = dict[Path, list[Change]]()
    for file in sorted(folder.glob(f"*{decision_lists.RECORD}")):
        with contextlib.suppress(ConfigError):  # it is of other images
            found[file.with_name(f"{file.name.removesuffix(decision_lists.RECORD)}.csv")] = _read(file, kind).changes
    return found


def _elsewhere(folder: Path, root: Path, labels_of: Callable[[Path], Labels]) -> dict[Path, list[Change]]:
    """Return what was changed with lists in other folders than that of a list, which may be a copy of one. Only changes
    that were all made to these images count. root: data.root, whose folders have no lists."""
    found, inside = dict[Path, list[Change]](), root.resolve()
    others = below(Path(), lambda at: not at.resolve().is_relative_to(inside))
    for other in (Path(), *others, decision_lists.downloads()):
        if other.resolve() == folder.resolve():
            continue
        labels = labels_of(other)
        for at, changes in _records(other, labels.kind).items():
            todo, gone, mistakes = labels.pending(changes)
            if not (todo or mistakes) and len(gone) < len(changes):
                found[at] = changes
    return found


def _read(file: Path, kind: str) -> Record:
    """Return the record, an empty one if there is no file. Raises ConfigError if it is another file."""
    problems: list[str] = []
    if not file.exists():
        return Record(kind)
    content = read_mapping(file, problems)
    try:
        found = Record(str(content["kind"]), [Change(*map(str, each)) for each in content["changes"]],
                       [*map(str, content["folders"])], int(content.get("num_made", 0)))  # fmt: skip
        os.fsencode("".join(itertools.chain(*found.changes, found.folders)))  # ValueError: no file can have this name
    except (KeyError, TypeError, ValueError, OverflowError):
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
