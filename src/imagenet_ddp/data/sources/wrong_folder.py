"""Explain what is wrong with folders that should hold a folder per class: there are none, the classes are one level
below, or the folders of the splits do not go together."""

import re
from collections.abc import Sequence
from pathlib import Path

from imagenet_ddp.config.schema.data import FolderData
from imagenet_ddp.data.sources.layout import (
    Layout,
    above_class,
    class_folders_or_none,
    find_layout,
    inner_folder,
    is_split,
    splits_in,
    with_classes,
)
from imagenet_ddp.data.sources.walk import Heic, class_folders, list_folder
from imagenet_ddp.mistakes import Fix, Mistake, did_you_mean, setting
from imagenet_ddp.system.files import describe_path
from imagenet_ddp.system.text import class_list, count_noun, shorten_list

# names of folders of photographs of anything
OF_ALL = re.compile(r"(?<![^\W_])(photos?|images?|imgs?|pictures?|pics?|data(set)?)(?![^\W_])", re.IGNORECASE)


def without_typed(options: list[str], data: FolderData) -> list[str]:
    return [option for option in options if option not in (f"data={data.name}", f"data.root={data.root}")]


def no_classes(
    folder: Path, key: str, classes: Sequence[str], data: FolderData, need_train: bool, known: Sequence[str]
) -> Mistake | None:
    """Return a mistake if the sub-folders are not the classes: there are none, they are splits, or the classes are one
    level below."""
    is_train, where, root = key == "data.train_dir", describe_path(folder), Path(str(data.root))
    if not classes:
        return unsorted(folder, "data.root" if folder == root else key)
    named = [name for name in classes if is_split(name)]
    if len(named) > 1 and splits_in(folder):
        inside = find_layout(FolderData(root=str(folder)))
        options = [*without_typed([f"data.root={folder}"], data), f"data.train_dir={inside.train.name}"]
        options += [f"data.val_dir={inside.val.name}"] if inside.val.is_dir() else ["data.val_fraction=0.1"]
        options += ["data.val_fraction=null"] if inside.val.is_dir() and data.val_fraction is not None else []
        what = (
            f"{where} must contain a folder per class, but {shorten_list(named)} are named as splits and contain "
            "folders themselves"
        )
        return Mistake(what, (key, "data.root"), (setting(*options),))
    if len(classes) > 1 or not (is_train or is_split(classes[0]) or (need_train and classes[0] not in known)):
        return None
    what = f"{where} must contain folders of at least two classes, but contains only {classes[0]}"
    if (inner := inner_folder(folder)) != folder:
        path, has = inner.relative_to(root) if inner.is_relative_to(root) else inner, class_list(class_folders(inner))
        fix = setting(f"{key}={path}", aim=f"if its folders, {has}, are the classes")
        return Mistake(what, (key, "data.root"), (fix,))
    return Mistake(what, ("data.root",), hint=f"add images of another class as {folder}/<class>/") if is_train else None


def unsorted(folder: Path, key: str, *, needs_labels: bool = True) -> Mistake:
    """Return the mistake of a folder without class folders, and how many images lie in it. key: of the folder.
    needs_labels: whether a trained net is of no use for these images."""
    images, left_out = list_folder(folder)
    heic = Heic.of(left_out)
    have = (count_noun(len(images), "image") if images else "no images") + heic.words
    what = f"{describe_path(folder)} must contain a folder per class, but has {have} and no class folders"
    table = " or list them in a table (data=table data.root=FILE.csv)" if images else ""
    if key == "data.root" and images and (above := above_class(folder)) != folder:
        return Mistake(what, (key,), (did_you_mean(f"data.root={above}"),))
    other = "" if needs_labels else "; for images without labels, run `python -m imagenet_ddp.predict`, with images="
    hint = f"{heic.hint}sort the images into {folder}/<class>/{table and ','}{table}{other}"
    return Mistake(what, (key,), hint=hint)


def above_classes(folder: Path) -> Mistake | None:
    """Return what is wrong if data.root is the folder above the right one: what is read as a class looks like a folder
    of classes. A folder with many sub-folders is not asked."""
    if not (found := with_classes(folder)):
        return None
    names = [at.name for at in found]
    what = f"The images of the class {names[0]} are in its {len(class_folders(found[0])):,} sub-folders"
    if len(found) > 1:
        what = f"The images of {len(found):,} classes are in sub-folders of these: {class_list(names)}"
    return Mistake(what, ("data.root",), of_inner(folder))


def is_doubtful(folder: Path) -> bool:
    """Return whether one of the classes of above_classes is hardly one: its sub-folders have other names than those of
    each other class, which years or places would share, or it is called "photos"."""
    below = {name: {*map(str.casefold, class_folders_or_none(folder / name))} for name in class_folders(folder)}
    return any(
        OF_ALL.search(at.name)
        or all(below[at.name].isdisjoint(names) for name, names in below.items() if name != at.name)
        for at in with_classes(folder)
    )


def of_inner(folder: Path) -> tuple[Fix, ...]:
    """Return what to type if one of the sub-folders of data.root is meant, as the folder above it was typed. The
    likeliest comes first: one called "photos", else the one with the most folders."""
    each = {inner: class_folders(inner) for inner in with_classes(folder)}
    return tuple(
        setting(f"data.root={inner}", aim=f"if its folders, {class_list(each[inner])}, are the classes")
        for inner in sorted(each, key=lambda inner: (not OF_ALL.search(inner.name), -len(each[inner])))[:3]
    )


def overlap(
    layout: Layout, train_classes: Sequence[str], val_classes: Sequence[str], data: FolderData
) -> list[Mistake]:
    """Return a mistake if the folders of train and val, or two of their class folders, are the same, also by links, or
    if one is inside the other."""
    train, val = layout.train.resolve(), layout.val.resolve()
    classes = {(layout.train / name).resolve() for name in train_classes}
    is_shared = any((layout.val / name).resolve() in classes for name in val_classes)
    if not (is_shared or train.is_relative_to(val) or val.is_relative_to(train)):
        return []
    what = (
        f"data.val_dir must contain other images than data.train_dir, but {describe_path(layout.val)} and "
        f"{layout.train} are the same folder, or one contains folders of the other"
    )
    hint = (
        "put other images into a folder of their own, or keep a share of each class with data.val_fraction=0.1. To "
        f"score training images, run evaluate with data.val_dir={data.val_dir}"
    )
    return [Mistake(what, ("data.val_dir", "data.train_dir", "data.root"), hint=hint)]


def foreign_classes(train: list[str], val: list[str]) -> list[Mistake]:
    """Return a mistake about the classes that only the validation images have, or [] if there are none. A class without
    validation images is allowed."""
    if not (only_val := sorted(set(val) - set(train))):
        return []
    what = (
        f"each class of val must also be a class of train, but {len(only_val)} of {len(val)} "
        f"{'is' if len(only_val) == 1 else 'are'} not: {class_list(only_val)}"
    )
    return [Mistake(what, ("data.root",), hint="rename those folders as in train, or remove them")]
