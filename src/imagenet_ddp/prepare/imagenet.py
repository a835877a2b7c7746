"""Run prepare=imagenet: extract ImageNet's archives to out/train/<WordNet id>/ and out/val/<WordNet id>/ with
torchvision, which verifies their MD5. A split has its final name once it is complete."""

import os
import shutil
import sys
from pathlib import Path

from torchvision.datasets import imagenet as torchvision_imagenet

from imagenet_ddp.cli import overrides
from imagenet_ddp.cli.overrides import quoted
from imagenet_ddp.data.sources.imagenet import NUM_IMAGES
from imagenet_ddp.data.sources.walk import class_folders, list_folder
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.mistakes import Mistake, setting
from imagenet_ddp.prepare.archives.devkit import DEVKIT, val_classes
from imagenet_ddp.prepare.options import Plan, require_free_space
from imagenet_ddp.runs.disk_errors import disk_errors_as_run_error
from imagenet_ddp.system.bounded_wait import lock_or_wait
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.text import count_noun

URL = "https://image-net.org/download-images.php"
ARCHIVES = {"val": "ILSVRC2012_img_val.tar", "train": "ILSVRC2012_img_train.tar"}  # val first, because it is quick
LOCK = ".prepare.lock"
SPARE = 0.02  # share of the bytes to write that the file system adds for a million small files


def run(plan: Plan) -> int:
    """Extract the archives and return exit code 0. Raises ConfigError for refused options, RunError on failure."""
    archive_dir, out = Path(str(plan.config.archive_dir)), plan.out.absolute()
    found, left_out = _find_archives(archive_dir)
    with disk_errors_as_run_error(out):
        out.mkdir(parents=True, exist_ok=True)
        with lock_or_wait(out / LOCK):
            todo = [split for split in found if not _is_finished(out / split, NUM_IMAGES[split][0])]
            for split in todo:
                shutil.rmtree(_draft(out, split), ignore_errors=True)  # left by a killed run
            require_free_space(out, sum((archive_dir / ARCHIVES[split]).stat().st_size for split in todo) * (1 + SPARE))
            for split in todo:
                _extract(archive_dir, split, out)
    for why in left_out:
        print_message(why, sys.stdout)
    _print_summary(out)
    return 0


def _find_archives(archive_dir: Path) -> tuple[list[str], list[str]]:
    """Return (splits whose archives are there, a sentence about each other split)."""
    found, left_out = [], []
    for split, name in ARCHIVES.items():
        needed = [name, DEVKIT] if split == "val" else [name]
        if missing := [name for name in needed if not (archive_dir / name).is_file()]:
            left_out.append(f"{split} is left out: {archive_dir} has no {' and no '.join(missing)}.")
        else:
            found.append(split)
    if not found:
        what = f"archive_dir must contain ImageNet's archives, but {archive_dir} does not"
        aim = f"to a folder with {', '.join(ARCHIVES.values())} and {DEVKIT} from {URL}"
        raise ConfigError(Mistake(what, ("archive_dir",), (setting("archive_dir=FOLDER", aim=aim),)))
    return found, left_out


def _draft(out: Path, split: str) -> Path:
    return out / f"{split}.unpacking"


def _extract(archive_dir: Path, split: str, out: Path) -> None:
    draft, expected = _draft(out, split), NUM_IMAGES[split][0]
    print_message(f"Checking the MD5 of {archive_dir / ARCHIVES[split]}, then extracting it to {draft}.")
    try:
        if split == "train":
            torchvision_imagenet.parse_train_archive(archive_dir, folder=str(draft))
        else:
            torchvision_imagenet.parse_val_archive(archive_dir, wnids=_val_classes(archive_dir), folder=str(draft))
    except RuntimeError as error:  # of torchvision's check of the MD5
        raise ConfigError(
            f"the archives of {split} in {archive_dir} must have their published MD5, but one has not. Hint: delete "
            "it, download it again, then run this command again."
        ) from error
    if (extracted := _num_images(draft)) != expected:
        raise RunError(
            f"{draft} must have {count_noun(expected, 'image')}, got {extracted:,}. Hint: download the archive again."
        )
    os.sync()  # a power cut must not leave empty files under the final name
    draft.rename(out / split)


def _val_classes(archive_dir: Path) -> list[str]:
    """Return devkit.val_classes. Raises RuntimeError for another MD5 than the published one."""
    path, (_, md5) = archive_dir / DEVKIT, torchvision_imagenet.ARCHIVE_META["devkit"]
    if not torchvision_imagenet.check_integrity(path, md5):
        raise RuntimeError
    return val_classes(path)


def _is_finished(folder: Path, num_images: int) -> bool:
    """Return whether the folder already has the complete split, whoever wrote it. Raises ConfigError if the folder is
    incomplete."""
    if not folder.exists():
        return False
    if (found := _num_images(folder)) != num_images:
        raise ConfigError(
            f"{folder} exists, so it must have {count_noun(num_images, 'image')} in class folders, got {found:,}. "
            f"Hint: move {folder} away, or set out=FOLDER to another folder."
        )
    return True


def _num_images(folder: Path) -> int:
    return sum(len(list_folder(folder / name)[0]) for name in class_folders(folder)) if folder.is_dir() else 0


def _print_summary(out: Path) -> None:
    for split, (num_images, _) in NUM_IMAGES.items():
        if (out / split).is_dir():
            print_message(f"{split}: {count_noun(num_images, 'image')}: {out / split}", sys.stdout)
    share = [] if (out / "val").is_dir() else ["data.val_fraction=0.02"]
    line = overrides.shell_line("train", ["data=imagenet", quoted(f"data.root={out}"), *share])
    print_message(f"  {line}", sys.stdout, whole=True)
