"""Read folders of class folders (data=imagefolder)."""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.config.schema.data import TABLE_SUFFIXES, FolderData
from imagenet_ddp.config.schema.purpose import Purpose
from imagenet_ddp.data.decoding.decode import Reading
from imagenet_ddp.data.sources.base import Scan, Source, SourceType, one_form
from imagenet_ddp.data.sources.groups import number_groups, wrong_groups
from imagenet_ddp.data.sources.image_files import FileImages, digest, list_images
from imagenet_ddp.data.sources.layout import (
    VAL,
    Layout,
    above_class,
    class_folders_or_none,
    find_layout,
    folder_of_classes,
    has_class_folders,
    is_split,
    splits_in,
)
from imagenet_ddp.data.sources.validation_split import split_validation
from imagenet_ddp.data.sources.walk import (
    Heic,
    class_folders,
    describe_left_out,
    list_folder,
    look_in,
    other_types,
    unpacked,
)
from imagenet_ddp.data.sources.wrong_folder import (
    above_classes,
    foreign_classes,
    is_doubtful,
    no_classes,
    of_inner,
    overlap,
    unsorted,
    without_typed,
)
from imagenet_ddp.mistakes import Fix, Mistake, did_you_mean, meant, must_be, setting, stands_for
from imagenet_ddp.system.files import beside, describe_path
from imagenet_ddp.system.text import class_list, count_noun, percent

KAGGLE = Path("Data") / "CLS-LOC"  # the folder of train and val in Kaggle's archive of ImageNet
MIN_IMAGENET = 900  # class folders from which on WordNet IDs mean ImageNet-1k, not a subset such as Imagenette
WORDNET_ID = re.compile(r"n\d{8}")
OF_VAL = " (and its images in val)"
OWN_SHARE = 0.2  # of each class, kept for validation if data.root contains the class folders


@dataclass(frozen=True)
class Listed:
    """The images of one folder of class folders. names: of those folders; classes: the same in one Unicode form. empty:
    what is wrong if some, but not all, of the training classes have no images."""

    names: list[str]
    classes: list[str]
    images: FileImages
    empty: Sequence[Mistake] = ()

    @property
    def filled(self) -> list[str]:
        counts = self.images.num_of_each(len(self.classes)).tolist()
        return [name for name, count in zip(self.classes, counts, strict=True) if count]

    def only(self, classes: Collection[str]) -> "Listed":
        """Leave out the other classes, which must have no images, and say so where the whole is not refused. The check
        itself names those that have no images in this folder alone."""
        left_out = [name for name in self.classes if name not in classes]
        if not left_out:
            return replace(self, empty=())
        kept, images = [name for name in self.classes if name in classes], copy(self.images)
        places = [place for place, name in enumerate(self.classes) if name in classes]
        images.targets = np.searchsorted(places, images.targets)
        number, are = count_noun(len(left_out), "class folder"), "is" if len(left_out) == 1 else "are"
        what = f"{number} of {images.location} without images {are} left out here, and refused by train: "
        empty = [
            replace(each, what=what + class_list(left_out), hint=each.hint.removesuffix(OF_VAL)) for each in self.empty
        ]
        names = [name for name in self.names if one_form(name) in classes]
        return replace(self, names=names, classes=kept, images=images, empty=empty)


class ImageFolder(SourceType[FolderData]):
    def scan(self, data: FolderData, seed: int, purpose: Purpose, *, whole: bool = True) -> Scan:
        need_train, is_share = purpose.needs_train, data.val_fraction is not None
        if mistakes := self._wrong_root(data, need_train):
            return Scan(data, seed, purpose, mistakes)
        layout, found = find_layout(data, need_train=need_train), list[Mistake]()
        if is_share and layout.val.is_dir():
            allowed = f"null if there is a folder of validation images ({describe_path(layout.val)})"
            ways = (
                setting("data.val_fraction=null", aim="to use that folder"),
                setting("data.val_dir=none", aim="to leave it out and keep a share of the training images"),
            )
            found.append(must_be("data.val_fraction", allowed, f"{data.val_fraction}", *ways))
        train = val = None
        if need_train or is_share:
            train, more = self._list(layout.train, "data.train_dir", data, need_train, whole)
            found += [*more, *(train.empty if train and purpose not in (Purpose.CHECK, Purpose.RELABEL) else ())]
            if train and is_share:
                found += wrong_groups(data.groups, train.images, whole=whole)
        if not is_share and (layout.val.is_dir() or not found):
            val, more = self._list(layout.val, "data.val_dir", data, need_train, whole, train.names if train else ())
            found += more
        if train and purpose is Purpose.CHECK:
            train = train.only({*train.filled, *(val.filled if val else ())})
        if train and val:
            if purpose in (Purpose.TRAIN, Purpose.CHECK):
                way = "move them to one side, or set data.val_dir=none data.val_fraction=0.2 for a split by group"
                found += wrong_groups(data.groups, train.images, val.images, whole=whole, way=way)
            found += overlap(layout, train.names, val.names, data) or foreign_classes(train.classes, val.filled)
        return Scan(data, seed, purpose, found, partial(_open, data, seed, layout, train, val))

    def implied(self, data: FolderData) -> dict[str, Any]:
        """If data.root itself contains the class folders, keep a share of each class for validation. With these keys
        typed, sub-folders that look like folders of classes are classes."""
        if not data.root or (data.name, data.train_dir, data.val_dir) != ("imagefolder", "train", "val"):
            return {}
        root, layout = Path(data.root), find_layout(data)
        if layout.train.is_dir() or layout.val.is_dir() or splits_in(root) or len(class_folders_or_none(root)) < 2:
            return {}
        if folder_of_classes(root):
            return {}
        return {"train_dir": ".", "val_fraction": data.val_fraction or OWN_SHARE}

    def recognise(self, root: str, folder: Path, otherwise: str) -> list[str]:
        if (folder / KAGGLE / "train").is_dir():
            return ["data=imagenet", f"data.root={Path(root) / KAGGLE}"]
        if not folder.is_dir():
            return []
        layout, classes = find_layout(FolderData(root=str(folder))), class_folders(folder)
        if layout.train.is_dir():
            more = [] if layout.val.is_dir() else ["data.val_fraction=0.1"]
            return [f"data={_by_names(layout.train, otherwise)}", f"data.root={root}", *more]
        # an archive unpacked into a folder of its own
        if len(classes) == 1 and not is_split(classes[0]) and class_folders(folder / classes[0]):
            return self.recognise(str(Path(root) / classes[0]), folder / classes[0], otherwise)
        if inner := folder_of_classes(folder):
            if any(map(VAL.fullmatch, splits_in(folder))):
                return [f"data={_by_names(inner, otherwise)}", f"data.root={root}", f"data.train_dir={inner.name}"]
            return self.recognise(str(Path(root) / inner.name), inner, otherwise)
        if classes and not layout.val.is_dir():  # the folder itself contains the class folders
            name = _by_names(folder, otherwise)
            options = ["data.train_dir=.", "data.val_fraction=0.1"] if name == "imagenet" else []
            return [f"data={name}", f"data.root={root}", *options]
        return []

    def _wrong_root(self, data: FolderData, need_train: bool) -> list[Mistake]:
        splits = "train/<class>/*.jpg and val/<class>/*.jpg"
        either = f"<class>/*.jpg, or with {splits}" if data.name == "imagefolder" else splits
        said = stands_for(data.root or "")
        fix = Fix(("data.root=FOLDER",), said=f"{said}set data.root to the path of a folder with {either}")
        if not data.root:
            return [must_be("data.root", "the folder of the images", "null", fix)]
        if not (root := Path(data.root)).is_dir():
            if root.suffix.lower() in TABLE_SUFFIXES:
                fix = meant("data=table", f"data.root={data.root}")
            elif root.exists():
                near = next(filter(has_class_folders, [*root.absolute().parents][:2]), None)
                fix = unpacked(root, "data.root") or (did_you_mean(f"data.root={near}") if near else fix)
            elif near := beside(root, Path.is_dir):
                fix = did_you_mean(f"data.root={above_class(near)}")
            missing = "" if root.exists() else str(root)
            what = f"{describe_path(root)} {'does not exist' if missing else 'is a file'}"
            return [Mistake(f"data.root must be a folder, but {what}", ("data.root",), (fix,), missing=missing)]
        is_default = (data.train_dir, data.val_dir) == ("train", "val")
        if is_default and not (root / "train").is_dir() and not class_folders(root):
            is_other = without_typed(self.options_for(data.root, data.name), data)
            return [] if is_other else [unsorted(root, "data.root", needs_labels=need_train)]
        return []

    def _list(
        self, folder: Path, key: str, data: FolderData, need_train: bool, whole: bool, known: Sequence[str] = ()
    ) -> tuple[Listed | None, list[Mistake]]:
        """Return (the images of a split, its mistakes). known: the class folders of the training images."""
        is_train, where = key == "data.train_dir", describe_path(folder)
        if not folder.is_dir():
            return None, [self._no_folder(folder, key, data, need_train, known)]
        inside = look_in(folder)
        if mistake := no_classes(folder, key, inside.names, data, need_train, known):
            return None, [mistake]
        classes = sorted(set(map(one_form, inside.names)))
        images = list_images(folder, classes, Reading.of(data), inside, whole=whole)
        listed = Listed(inside.names, classes, images)
        empty = sorted(set(classes) - set(listed.filled))
        of_empty = (list_folder(folder / name)[1] for name in inside.names if one_form(name) in empty)
        words, first = _instead(sum(of_empty, Counter[str]()))
        if is_train and empty:
            what = (
                f"every class folder in {where} must contain images, but {len(empty)} of "
                f"{len(classes)} {'contains' if len(empty) == 1 else 'contain'} none{words}: {class_list(empty)}"
            )
            hint = f"{first}add images, or remove the folder{OF_VAL * (data.val_fraction is None)}"
            fixes = of_inner(folder) if folder == Path(str(data.root)) else ()
            mistake = Mistake(what, ("data.root",), fixes, hint=hint)
            return (replace(listed, empty=[mistake]), []) if listed.filled else (listed, [mistake])
        if len(empty) == len(classes):
            have = f"have none{words}" if words else "are empty"
            what = f"{where} must contain images, but its class folders {have}"
            return listed, [Mistake(what, ("data.root",), hint=f"{first}add images")]
        return listed, []

    def _no_folder(self, folder: Path, key: str, data: FolderData, need_train: bool, known: Sequence[str]) -> Mistake:
        """Return the mistake of a split whose folder does not exist."""
        is_train, root, is_share = key == "data.train_dir", str(data.root), data.val_fraction is not None
        options = without_typed(self.options_for(root, data.name), data)
        options = [each for each in options if not (is_share and each.startswith("data.val_fraction="))]
        single = class_folders_or_none(Path(root)) if is_train and not options and data.train_dir == "train" else []
        is_first = len(single) == 1 and not is_split(single[0])  # a first class, with others to come
        if is_first and (mistake := no_classes(Path(root), key, single, data, need_train, known)):
            return mistake
        if not is_train and not need_train and (name := next(iter(splits_in(Path(root))), None)):
            options = [f"data.val_dir={name}"]
        if options and options[0].startswith("data.root="):  # each level above the classes has a single folder
            inner = options[0].partition("=")[2]
            what = f"data.root must contain the class folders, but those of {describe_path(Path(root))} are in {inner}"
            here, more = class_folders_or_none(Path(root)), list[Fix]()
            may_be_classes = len(here) > 1 and all(list_folder(Path(root, name), whole=False)[0] for name in here)
            if is_train and may_be_classes and not splits_in(Path(root)):
                keys = ("data.train_dir=.", f"data.val_fraction={data.val_fraction or OWN_SHARE}")
                more = [setting(*keys, aim=f"if {class_list(here)} are the classes")]
            return Mistake(what, ("data.root",), (meant(*options), *more))
        if not is_train and not need_train and not class_folders_or_none(Path(root)):
            return unsorted(Path(root), "data.root", needs_labels=False)
        of_key = setting(*options) if options else setting(f"{key}=NAME", aim="to another folder")
        fixes = (is_train and not options and of_inner(Path(root))) or (of_key,)
        return Mistake(f"{key} must be a folder, but {describe_path(folder)} does not exist", (key, "data.root"), fixes)


def _open(data: FolderData, seed: int, layout: Layout, train: Listed | None, val: Listed | None) -> Source:
    notes, doubts = [layout.note] if layout.note else [], [*map(str, train.empty)] if train else []
    if data.val_fraction is not None and train is not None:
        above = above_classes(layout.train)
        notes += [str(above)] if above else []
        notes.append(f"{percent(data.val_fraction, 0)} of each class of {layout.train} is kept for validation.")
        notes += _notes(train.images)
        number_groups(data.groups, train.images, notes=notes)
        images, held_out, digits = split_validation(train.images, data.val_fraction, seed, data.val_fold)
        wrong_root = above if above and is_doubtful(layout.train) else None
        return Source(train.classes, images, held_out, notes=notes, digest=digits, doubts=doubts, wrong_root=wrong_root)
    assert val is not None
    classes = val.classes if train is None else train.classes
    positions = np.array([bisect_left(classes, name) for name in val.classes])
    scored, images = copy(val.images), None if train is None else train.images
    scored.targets = positions[scored.targets]
    notes += _notes(images, scored)
    if images is not None:
        number_groups(data.groups, images, scored, notes=notes)
    return Source(classes, images, scored, notes=notes, digest=digest(images, scored), doubts=doubts)


def _by_names(folder: Path, otherwise: str) -> str:
    """Return imagenet for about a thousand classes named by WordNet ID, and imagefolder for classes with other names.
    A few classes with such names can be read as either, but data=imagenet selects the recipe of the whole data set."""
    classes = class_folders(folder)
    if not all(map(WORDNET_ID.fullmatch, classes)):
        return "imagefolder"
    return "imagenet" if len(classes) >= MIN_IMAGENET else otherwise


def _instead(left_out: Counter[str]) -> tuple[str, str]:
    """Return (what folders without images contain, "" if nothing; what to do with it first). left_out: of these."""
    heic, (number, types) = Heic.of(left_out), other_types(left_out)
    if heic.words or not number:
        return heic.words, heic.hint
    return f", but {count_noun(number, 'file')} {types}", "save these as PNG, TIFF or JPEG, "


def _notes(*splits: FileImages | None) -> list[str]:
    """Return a sentence for the log about the files that were left out of each split."""
    found = [images for images in splits if images is not None and images.left_out]
    return [f"In {images.location}, {describe_left_out(images.left_out, images.loose)}." for images in found]
