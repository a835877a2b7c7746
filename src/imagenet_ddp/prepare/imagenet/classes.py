"""What ImageNet's archives hold: the images of each class, and where their bytes lie. No torch."""

import re
from collections import Counter
from functools import partial
from pathlib import Path

from imagenet_ddp.data.sources.folder.scan import is_image
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.prepare.imagenet.archives import Edition
from imagenet_ddp.prepare.imagenet.devkit import Devkit
from imagenet_ddp.prepare.imagenet.extract import Group
from imagenet_ddp.prepare.imagenet.tar_index import BrokenTarError, Member, members
from imagenet_ddp.system.text import shorten_list


def of_train(path: Path, kit: Devkit | None, edition: Edition, verify: bool) -> list[Group]:
    """Raises ConfigError. verify: all classes of the devkit, where there is one, and of the edition are expected. The
    images of a class are always counted against the devkit."""
    known = kit.num_train_images if kit is not None else None
    inner = _members(path, len(known) if known is not None else None)
    names = [member.name.removesuffix(".tar") for member in inner]
    hint = f"Hint: download {path.name} again; for another edition, prepare.verify=false."
    if odd := [member.name for member in inner if not re.fullmatch(r"n\d{8}\.tar", member.name)]:
        raise ConfigError(
            f"{path} must hold an archive per class, n01440764.tar, but holds {shorten_list(odd)}. {hint}"
        )
    if twice := [name for name, number in Counter(names).items() if number > 1]:
        raise ConfigError(f"{path} must hold each class once, but not {shorten_list(twice)}. {hint}")
    if verify and known is not None and (differ := sorted(set(names) ^ set(known))):
        raise ConfigError(
            f"{path} must hold the {len(known):,} classes of {edition.devkit.name}, but {len(differ):,} "
            f"are in one of them only: {shorten_list(differ)}. {hint}"
        )
    if verify and len(names) != edition.num_classes:
        raise ConfigError(f"{path} must hold {edition.num_classes:,} classes, but holds {len(names):,}. {hint}")
    numbers = [known.get(name) if known is not None else None for name in names]
    return [
        Group(name, member.size, partial(_of_class, path, member, number), number)
        for name, member, number in zip(names, inner, numbers, strict=True)
    ]


def _of_class(path: Path, archive: Member, num_expected: int | None) -> list[Member]:
    """The images of a class archive that lies inside the archive at path."""
    with path.open("rb", buffering=0) as file:
        try:
            found = members(file.fileno(), archive.offset, archive.offset + archive.size, num_expected)
        except BrokenTarError as error:
            raise ConfigError(
                f"{archive.name} in {path} must be a whole archive of {archive.size:,} bytes, but {error}. "
                f"Hint: download {path.name} again."
            ) from error
    names = Counter(member.name for member in found)
    if odd := [name for name, number in names.items() if number > 1 or not is_image(name)]:
        raise ConfigError(
            f"{archive.name} in {path} must hold images, each once, but holds {shorten_list(odd)}. "
            f"Hint: download {path.name} again."
        )
    return found


def of_val(path: Path, kit: Devkit) -> list[Group]:
    """The images lie in one heap; their numbers are places in the devkit's list of classes. Raises ConfigError."""
    count = len(kit.val_classes)
    found = _members(path, count)
    numbers = [re.fullmatch(r"ILSVRC2012_val_(\d{8})\.JPEG", member.name) for member in found]
    if odd := [member.name for member, number in zip(found, numbers, strict=True) if not number]:
        raise ConfigError(
            f"{path} must hold ILSVRC2012_val_00000001.JPEG and so on, but holds {shorten_list(odd)}. "
            f"Hint: download {path.name} again."
        )
    by_number = {int(number[1]): member for member, number in zip(found, numbers, strict=True) if number}
    if by_number.keys() != set(range(1, count + 1)) or len(found) != count:
        raise ConfigError(
            f"{path} must hold {count:,} images, as many as the devkit has classes for, but holds "
            f"{len(found):,}. Hint: download {path.name} again."
        )
    classes: dict[str, list[Member]] = {}
    for number, name in enumerate(kit.val_classes, 1):
        classes.setdefault(name, []).append(by_number[number])
    return [
        Group(name, sum(member.size for member in images), partial(list, images), len(images))
        for name, images in sorted(classes.items())
    ]


def _members(path: Path, num_expected: int | None) -> list[Member]:
    size = path.stat().st_size
    with path.open("rb", buffering=0) as file:
        try:
            return members(file.fileno(), 0, size, num_expected)
        except BrokenTarError as error:
            raise ConfigError(
                f"{path} ({size:,} bytes) must be a whole tar archive, but {error}. Hint: download it again."
            ) from error
