"""Define a section of the page of prepare=check, and what it is made from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from imagenet_ddp.curation.cross_validation import LearningCurve
from imagenet_ddp.curation.features import Features
from imagenet_ddp.curation.near_copies import NearCopies
from imagenet_ddp.curation.wrong_labels import KEEP, MOVE, REMOVE, is_keep
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.pages.thumbnails import thumbnail
from imagenet_ddp.system.table_files import as_text_cell, csv_line

MOST_CLASSES = 30  # of which each may be chosen for an image; of more, those that are suggested


class Urgency(IntEnum):
    """How early a finding is to be mended. GOOD: it is no fault."""

    GOOD = 0
    LATER = 1  # it hardly changes the accuracy
    SOON = 2  # it lowers the accuracy
    FIRST = 3  # the accuracy itself would be wrong, images are missing or were not judged; the exit code is 1


class Finding(NamedTuple):
    """One sentence at the head of the page, for a person who trains for the first time. section: name of the section
    with the details; "": none."""

    text: str
    urgency: Urgency
    section: str = ""


@dataclass(frozen=True)
class Section:
    """One section. name: of its template in this folder, and of its place in the page. title: in the list of
    sections. context: the values of `s` in the template. figures: (name, value, note) for the head of the page. files:
    name -> content of the lists that stand beside the page. decide: name of the one to write decisions into; "": none.
    lines: what only the terminal says, below the findings. missing: what was not checked for a reason that is no fault
    of the images; the exit code is 1."""

    name: str
    title: str
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    findings: Sequence[Finding] = ()
    heading: str = ""  # "": the title
    figures: Sequence[tuple[str, str, str]] = ()
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    decide: str = ""
    lines: Sequence[str] = ()
    missing: Sequence[str] = ()


class Copy(NamedTuple):
    """Two images with the same content. where: their splits, and whether they are in one class. first, second: (split,
    position)."""

    where: str
    first: tuple[str, int]
    second: tuple[str, int]


def keep_first(decided: Sequence[str]) -> list[str]:
    """Return the proposal to keep the first of a group of copies, and to remove the others; "" for each if a person has
    decided otherwise. decided: what the earlier list says of each."""
    proposed = [REMOVE if number else KEEP for number in range(len(decided))]
    is_open = all(text in ("", own) for text, own in zip(decided, proposed, strict=True))
    return proposed if is_open else [""] * len(decided)


def other_classes(likeliest: Sequence[str], classes: Sequence[str], label: str) -> list[str]:
    """Return the classes that an image may get, the likeliest first. label: its class now."""
    others = classes if len(classes) <= MOST_CLASSES else []
    return [name for name in dict.fromkeys([*likeliest, *others]) if name != label]


@dataclass(frozen=True)
class Checked:
    """What is known of the images when the page is made.

    images: split -> its images. labels: names of the classes for display. classes: the same as decisions have them.
    unreadable: (split, position, reason). copies: images of equal content. copies_outside:
    path of an image outside the class folders -> that of an image of equal content inside. quality: split -> array of
    curation.quality.ROW. features: of the images; None: no net has seen them. near_copies, probabilities, curve: of
    the rows of the features; the probabilities are those of regressions that did not see the image, float32 (N,
    classes). why_unseen: why features or probabilities are missing although a net was asked for. command: the line
    that adds the features; "": there is none. relabel: name of each list whose decisions can be applied -> the line
    that does so. can_remove: whether images can be removed so. train: the line that trains on the images; "": no
    net has seen them. groups: its option that keeps each group of near-copies on one side of the split; "" if it is
    not automatic, or separates none. doubts: messages of the source. delimiter: of CSV files. decisions: name of
    each list that gets a column for decisions -> path, label and suggested class, "" for any -> what a person has
    decided about the list of an earlier check.
    """

    root: str
    labels: list[str]
    images: Mapping[str, Images]
    unreadable: Sequence[tuple[str, int, str]] = ()
    copies: Sequence[Copy] = ()
    quality: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    features: Features | None = None
    near_copies: NearCopies | None = None
    probabilities: np.ndarray | None = None
    curve: LearningCurve | None = None  # set with the probabilities
    why_unseen: str = ""
    command: str = ""
    relabel: Mapping[str, str] = field(default_factory=dict[str, str])
    can_remove: bool = False
    train: str = ""
    groups: str = ""
    doubts: Sequence[str] = ()
    classes: Sequence[str] = ()
    delimiter: str = "comma"
    decisions: Mapping[str, Mapping[tuple[str, str, str], str]] = field(default_factory=dict[str, Any])
    copies_outside: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def to_train(self) -> str:
        """How the sentence before the line in `train` begins. The doubts are the first in the list of what to mend."""
        if not self.doubts:
            return "To"
        numbers = "number 1" if len(self.doubts) == 1 else f"numbers 1 to {len(self.doubts)}"
        return f"First deal with {numbers} of what to mend, above. Then, to"

    def label(self, split: str, index: int) -> str:
        """Return the label of an image, or its labels."""
        target = self.images[split].targets[index]
        if self.images[split].targets.ndim == 1:
            return self.labels[int(target)]
        return ", ".join(self.labels[number] for number in target.nonzero()[0].tolist())

    def decided(self, file: str, path: str, label: str = "", suggested: str = "") -> str:
        """Return what a person has decided about a row of a list; "": nothing."""
        found = self.decisions.get(file, {})
        return found.get((path, label, suggested)) or found.get((path, label, ""), "")

    def is_kept(self, file: str, path: str, label: str) -> bool:
        return is_keep(self.decided(file, path, label), label)

    def choice(
        self,
        file: str,
        path: str,
        label: str = "",
        *,
        group: object = "",
        classes: Sequence[str] = (),
        chosen: str = "",
    ) -> dict[str, Any] | None:
        """Return what the macro `choose` shows of an image in a list: its row of DECISIONS, and what may be decided;
        None if nothing could carry it out. group: of copies. classes: that it may get, the suggested one first. chosen:
        what is proposed unless a person has decided otherwise: an earlier list has the proposals, too."""
        if file not in self.relabel:
            return None
        suggested = classes[0] if classes else ""
        decided = self.decided(file, path, label, suggested)
        is_decided = decided or any(key[0] == path for found in self.decisions.values() for key in found)
        text = decided or ("" if is_decided else chosen)
        is_proposed = bool(text) and text == chosen
        chosen = as_text_cell({KEEP: KEEP, REMOVE: REMOVE, MOVE: suggested}.get(text.casefold(), text))
        words = {KEEP: KEEP} if label else {}
        words |= {as_text_cell(name): f"move to {name}" for name in classes}
        words |= {REMOVE: REMOVE} if self.can_remove else {}
        words |= {chosen: chosen} if chosen and chosen not in words else {}
        row = csv_line([path, label, f"{file} {group}" if group else "", file])
        return {"row": row, "chosen": chosen, "words": words, "is_proposed": is_proposed}

    def name(self, split: str, index: int) -> str:
        """Return the path of an image below data.root."""
        path = self.images[split].path(index)
        inside = bool(self.root) and PurePath(path).is_relative_to(self.root)
        return str(PurePath(path).relative_to(self.root)) if inside else path

    def item(self, split: str, index: int, **more: Any) -> dict[str, Any]:
        """Return what the macros `gallery` and `groups` show of an image, with further values for their callers."""
        images = self.images[split]
        known = {"uri": thumbnail(images, index), "path": images.path(index), "split": split}
        return known | {"name": self.name(split, index), "label": self.label(split, index)} | more
