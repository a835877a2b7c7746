"""Find the near-copies among the images of a run: in the list of a check, or by the features of a pass."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.curation.decision_lists import DECISIONS, earlier_decisions
from imagenet_ddp.curation.features import FILE as FEATURES
from imagenet_ddp.curation.features import current, find_pass, read_features
from imagenet_ddp.curation.near_copies import FILE, find_near_copies, read_list
from imagenet_ddp.data.sources.base import Names
from imagenet_ddp.data.sources.image_files import FileImages
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake
from imagenet_ddp.report.findings import copies_sentence
from imagenet_ddp.report.predictions import Predictions
from imagenet_ddp.sections.near_copies import near_copies
from imagenet_ddp.sections.section import Checked, Section


def near_copies_of(
    found: Predictions, file: Path | None, check: Mapping[str, Any], delimiter: str = "comma"
) -> tuple[Section, list[str]] | None:
    """Return (the section of the page, the sentences of its findings, the first of which has the accuracy without the
    evaluated images that have a near-copy among the others, which are training images); None if nobody has looked for
    copies. Paths are those of the folder in which evaluate was started.

    file: the list of a check; None: that of the last pass over the images, or what its features tell. check: result of
    last_check. Images that were removed since do not count, nor groups that a person has decided to keep. Raises
    ConfigError if the file is no such list, or is of other images.
    """
    start = found.started_in

    def whole(path: str) -> str:
        return os.path.abspath(start / path)  # noqa: PTH100 (resolves no links)

    row_of = {whole(path): row for row, path in enumerate(found.paths)}
    decided = Path(str(check.get("folder") or ""), FILE) if file is None else file
    if file is not None:
        images, groups = read_list(file)
    elif (last := find_pass(found.paths, start)) is not None:
        listed = current(last, FILE)
        images, groups = read_list(listed) if listed else (read_features(last / FEATURES), None)
    else:
        return None
    paths = [whole(path) for path in images.paths]
    is_val = np.array([path in row_of for path in paths], dtype=bool)
    if file is not None and paths and not is_val.any():
        what = f"near_copies={file} must list some of the evaluated images, such as {found.paths[0]}, but lists none"
        hint = "name the list of a check of the same images, and run both commands in the same folder"
        raise ConfigError(Mistake(what, ("near_copies",), hint=hint))
    images = replace(images, is_val=is_val, index=np.where(is_val, np.cumsum(is_val), np.cumsum(~is_val)) - 1)
    splits = {
        name: FileImages(start, Names.of(np.array(paths, dtype=object)[chosen].tolist()), images.targets[chosen])
        for name, chosen in (("train", ~is_val), ("val", is_val))
    }
    if groups is None:
        groups = find_near_copies(images, splits)
        if groups.num_unread and not groups.num_compared:
            return None  # the paths are no files that can be opened here, such as those of a packed source
    is_there = np.array([Path(path).is_file() for path in paths], dtype=bool)
    groups = groups.among(images, is_there if is_there.any() else ~is_there)  # or the images are no files of their own
    root = os.path.commonpath(paths) if len({*paths}) > 1 else ""
    decisions = {FILE: earlier_decisions(decided, decided.with_name(DECISIONS))}
    section = near_copies(
        Checked(root, images.labels, splits, features=images, near_copies=groups, delimiter=delimiter,
                decisions=decisions if decisions[FILE] else {})
    )  # fmt: skip
    leaked = [row_of[paths[at]] for at in groups.leaked(images).tolist()]
    sentence = copies_sentence(found, np.isin(np.arange(len(found)), leaked))
    assert section is not None  # there are groups, or none
    return section, [sentence, *(each.text for each in section.findings if each.urgency)]
