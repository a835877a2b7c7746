"""Find the folders of the splits below data.root, by their usual names."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from imagenet_ddp.config.schema.data import FolderData
from imagenet_ddp.data.sources.walk import Heic, class_folders, has_images, has_more_images, list_folder

_MORE = r"(?:[ _-]?(?:set|data|images?|imgs?))?"
TRAIN = re.compile(f"train(?:ing)?{_MORE}", re.IGNORECASE)
VAL = re.compile(f"(?:val(?:id(?:at(?:ion|e))?)?|dev|eval(?:uation)?){_MORE}", re.IGNORECASE)
TEST = re.compile(f"test(?:ing)?{_MORE}", re.IGNORECASE)
COPY = re.compile(r"(.*[\W_])?(back[ _-]?ups?|bak)([\W_].*)?|.+[\W_]copy([\W_].*)?|copy of .+", re.IGNORECASE)
MOST_ABOVE = 20  # sub-folders of a folder that may be the one above the folder of the classes


@dataclass(frozen=True)
class Layout:
    """The folders that contain the class folders of each split. Either may not exist. note: a sentence for the log if
    they are not those that data.root, data.train_dir and data.val_dir name, else ""."""

    train: Path
    val: Path
    note: str = ""


def find_layout(data: FolderData, *, need_train: bool = True) -> Layout:
    """Return the folders of the splits of data.root, which must be set. need_train: False for an evaluation.

    - A folder that is missing under its default name, train or val, may have another usual name, in any case. test/
      counts as validation images if there are no others.
    - If data.root is itself the folder of one split, the other one is beside it.
    - In an evaluation, the class folders may be directly in data.root.
    """
    root, is_share = Path(str(data.root)), data.val_fraction is not None
    may_name_train, may_name_val = data.train_dir == "train", data.val_dir == "val"
    place = root if root.name else root.absolute()
    named = Layout(root / data.train_dir, root / data.val_dir)
    has_train, has_val = named.train.is_dir() and named.train != root, named.val.is_dir() and named.val != root
    if (has_train or not may_name_train) and (has_val or not may_name_val):
        return named
    train, val = named.train, named.val
    inside = splits_in(root)
    # a folder named test beside cat and dog is a class
    is_whole = has_train or any(map(TRAIN.fullmatch, inside)) or inside == class_folders_or_none(root)
    if is_whole and not has_train and may_name_train:
        train = root / next(filter(TRAIN.fullmatch, inside), data.train_dir)
    if is_whole and not has_val and may_name_val:
        others = [] if is_share else filter(TEST.fullmatch, inside)
        found = sorted(filter(VAL.fullmatch, inside), key=lambda name: not name.lower().startswith("val"))  # then dev
        val = root / next((name for name in (*found, *others)), data.val_dir)
    is_missing = not ((class_folders_or_none(train) and train != root) or val.is_dir())
    if is_missing and may_name_train and is_split(place.name) and class_folders_or_none(root):
        beside = find_layout(replace(data, root=str(place.parent)), need_train=need_train)
        if TRAIN.fullmatch(place.name):
            is_used = need_train or is_share or (beside.val.is_dir() and beside.val != place.parent)
            train, val = (root, beside.val) if is_used else (train, val)
        elif need_train and beside.train.is_dir():
            train, val = beside.train, root
        is_missing = (train, val) == (named.train, named.val)
    has_classes = len(classes := class_folders_or_none(root)) > 1 or (classes and not splits_in(root / classes[0]))
    if is_missing and not need_train and not is_share and may_name_val and has_classes:
        return Layout(train, root, f"{root} has no {data.val_dir}/, so all images of its class folders are used.")
    if (train, val) == (named.train, named.val):
        return named
    used = [train] if is_share else [train, val] if need_train else [val]
    return Layout(train, val, f"The images are those of {' and '.join(map(str, used))}.")


def splits_in(folder: Path) -> list[str]:
    """Return the sorted names of the sub-folders that are named as splits and contain class folders of their own."""
    return [name for name in class_folders_or_none(folder) if is_split(name) and class_folders_or_none(folder / name)]


def class_folders_or_none(folder: Path) -> list[str]:
    """Return class_folders, or [] for a folder that cannot be read."""
    try:
        return class_folders(folder)
    except OSError:
        return []


def has_class_folders(folder: Path) -> bool:
    """Return whether images lie in each sub-folder, of which there are at least two, as in a folder of classes."""
    names = class_folders_or_none(folder)
    return len(names) > 1 and all(has_images(folder / name) for name in names)


def above_class(folder: Path) -> Path:
    """Return the folder that contains this one as a class beside others, else this one."""
    above = folder.absolute().parent
    return above if not class_folders_or_none(folder) and has_class_folders(above) else folder


def with_classes(folder: Path) -> list[Path]:
    """Return the sub-folders that look like folders of classes, without splits: images lie in two or more of their own
    sub-folders, and fewer beside these than there are of them. A folder with many sub-folders is not asked."""
    names = class_folders_or_none(folder)
    each = [folder / name for name in names if len(names) <= MOST_ABOVE and not is_split(name)]
    with_images = {at: sum(has_images(at / name) for name in class_folders_or_none(at)) for at in each}
    return [at for at, number in with_images.items() if number > 1 and not has_more_images(at, number - 1)]


def folder_of_classes(folder: Path) -> Path | None:
    """Return the sub-folder that must be meant, because no other can hold the classes: the others are named as splits,
    are copies of it by their names and classes, or have no images. None if there is no such sub-folder."""
    found = [at for at in with_classes(folder) if not COPY.fullmatch(at.name)]
    if len(found) != 1:
        return None
    classes = {*class_folders_or_none(found[0])}
    for at in (folder / name for name in class_folders_or_none(folder) if name != found[0].name):
        is_copy = COPY.fullmatch(at.name) and {*class_folders_or_none(at)} <= classes
        if not (is_split(at.name) or is_copy) and (has_images(at) or _has_any(at)):
            return None
    return found[0]


def _has_any(folder: Path) -> bool:
    """Return whether images lie anywhere below a folder, also photographs in a format that is not read."""
    try:
        images, left_out = list_folder(folder, whole=False)
    except OSError:
        return True
    return bool(images or Heic.of(left_out).words)


def inner_folder(folder: Path) -> Path:
    """Return the folder that contains the classes if each level above it has a single folder, as in train/train/cat,
    else the folder itself."""
    inner, classes = folder, class_folders_or_none(folder)
    for _ in range(5):  # links may form a circle
        if len(classes) != 1:
            break
        inner /= classes[0]
        classes = class_folders_or_none(inner)
    return inner if len(classes) > 1 else folder


def is_split(name: str) -> bool:
    return any(kind.fullmatch(name) for kind in (TRAIN, VAL, TEST))
