"""prepare=imagenet: from ImageNet's archives to out/train/<WordNet id>/ and out/val/<WordNet id>/. No torch."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from imagenet_ddp.cli import overrides
from imagenet_ddp.data.sources.download import lock_or_wait
from imagenet_ddp.data.sources.folder.scan import class_folders, list_folder
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.prepare.imagenet.archives import Archive, Edition, describe_wrong_md5, ilsvrc2012, validate_size
from imagenet_ddp.prepare.imagenet.devkit import read_val_classes
from imagenet_ddp.prepare.imagenet.extract import Extraction, Record, train_classes, val_classes
from imagenet_ddp.prepare.options import Plan, option
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.text import count_noun

LOCK = ".prepare.lock"
MIB = 2**20
SPARE = 0.02  # of the bytes to write: what a file system needs for a million small files beside their content


def run(plan: Plan, edition: Edition | None = None) -> int:
    """Return exit code 0. Raises ConfigError for what is refused, RunError for what fails on the way."""
    assert plan.archive_dir is not None and plan.out is not None
    edition = edition or ilsvrc2012()
    verify = plan.options["verify"]
    archives, left_out = _find_archives(plan.archive_dir, edition)
    devkit = plan.archive_dir / edition.devkit.name
    if verify:
        if mistakes := [text for path, archive in archives.values() for text in validate_size(path, archive)]:
            raise ConfigError(mistakes)
    else:
        print_message("prepare.verify=false: MD5 and number of images are not compared with the published ones.")
    val = read_val_classes(devkit, edition, verify) if "val" in archives else []
    with _disk_errors(plan.out):
        plan.out.mkdir(parents=True, exist_ok=True)
        lock = plan.out / LOCK
        with lock_or_wait(lock, lock, print_message, partial(_last_line, lock)):
            lock.write_text("starting\n")
            todo: list[tuple[str, Extraction]] = []
            for split, (path, _) in archives.items():
                if not _is_finished(plan.out / split, split, left_out):
                    print_message(f"Reading the table of contents of {path}.")
                    classes = train_classes(path) if split == "train" else val_classes(path, val)
                    todo.append((split, Extraction(path, plan.out / split, classes, verify, print_message)))
            _check_room(plan.out, sum(extraction.num_bytes_left for _, extraction in todo))
            for split, extraction in todo:
                _extract(plan, split, extraction, edition if verify else None)
    for split, why in left_out.items():
        print(f"{split} is left out: {why}.")
    _print_summary(plan.out, edition)
    return 0


def _find_archives(archive_dir: Path, edition: Edition) -> tuple[dict[str, tuple[Path, Archive]], dict[str, str]]:
    """Return (split -> its archive, split -> why it is left out). Raises ConfigError where there is none."""
    found, left_out = {}, {}
    for split, archive in (("val", edition.val), ("train", edition.train)):  # the short work first
        path = archive_dir / archive.name
        if not path.is_file():
            left_out[split] = f"{archive_dir} has no {archive.name}"
        elif split == "val" and not (archive_dir / edition.devkit.name).is_file():
            left_out[split] = f"{archive_dir} has no {edition.devkit.name}, with the classes of its images"
        else:
            found[split] = path, archive
    if found:
        return found, left_out
    names = ", ".join(archive.name for archive in (edition.train, edition.val, edition.devkit))
    reasons = "; ".join(f"{split}: {why}" for split, why in left_out.items())
    raise ConfigError(
        f"archive_dir must contain ImageNet's archives, but does not ({reasons}). Hint: archive_dir=FOLDER, with "
        f"{names} from https://image-net.org/download-images.php."
    )


def _is_finished(folder: Path, split: str, left_out: dict[str, str]) -> bool:
    """Return whether the split is there, from an earlier run or from elsewhere. Raises ConfigError where the folder is
    in the way."""
    if not folder.exists():
        return False
    record, classes = Record.read(folder), class_folders(folder) if folder.is_dir() else []
    hint = f"Hint: move {folder} away, or out=OTHER."
    if record is None or record.num_images is None:
        if not classes:
            raise ConfigError(f"{folder} must not exist yet, but does, without class folders in it. {hint}")
        check = overrides.shell_line("prepare", ["prepare=check", "data=imagenet", option("data.root", folder.parent)])
        left_out[split] = f"{folder} exists, but was not made by this command; `{check}` checks it"
        return True
    num_images = sum(len(list_folder(folder / name)[0]) for name in classes)
    if num_images != record.num_images:
        raise ConfigError(
            f"{folder} must have {count_noun(record.num_images, 'image')}, as many as were extracted, got "
            f"{num_images:,}. {hint}"
        )
    return True


def _extract(plan: Plan, split: str, extraction: Extraction, edition: Edition | None) -> None:
    """Extract one split, and give it its name once all of it is right. edition: to compare it with; None: do not."""
    assert plan.out is not None
    path, draft = extraction.archive, extraction.draft
    record = Record.of(path)
    progress = extraction.progress(partial(_append_line, plan.out / LOCK))
    try:
        extraction.run(plan.num_workers, progress)
    except SystemExit:
        progress.close()
        print_message(f"Stopped. {progress.line()}. The same command resumes there.")
        raise
    finally:
        progress.close()
    record.md5, record.num_classes = extraction.md5, len(extraction.classes)
    record.num_images = sum(len(list_folder(draft / one.name)[0]) for one in extraction.classes)
    if edition is not None:
        archive, num_images = getattr(edition, split), edition.num_images[split]
        if record.md5 != archive.md5:
            raise RunError(
                f"{describe_wrong_md5(path, archive, str(record.md5))} {draft} is deleted once it is replaced."
            )
        if record.num_images != num_images:
            raise RunError(
                f"{draft} must have {count_noun(num_images, 'image')}, got {record.num_images:,}. Hint: delete it, "
                "then run this again."
            )
    record.write(draft)
    os.sync()  # a power cut must not leave empty files under the final name
    draft.rename(plan.out / split)


def _check_room(out: Path, num_bytes: int) -> None:
    need, free = int(num_bytes * (1 + SPARE)), shutil.disk_usage(out).free
    if free < need:
        raise ConfigError(
            f"out must have {need // MIB:,} MiB free, got {free // MIB:,} MiB in {out}. Hint: out=FOLDER on another "
            "disk, or make room; classes already extracted are kept."
        )


@contextlib.contextmanager
def _disk_errors(out: Path) -> Iterator[None]:
    """Turn errors of the disk into a RunError."""
    try:
        yield
    except BrokenPipeError:  # the reader of stdout has left
        raise
    except OSError as error:
        what = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        raise RunError(
            f"the images cannot be written to {out}: {what}. Hint: make room, or check that disk and who may write to "
            "it; the same command then resumes there."
        ) from error


def _append_line(path: Path, line: str) -> None:
    """Show a waiting process that this one makes progress, and how much."""
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def _last_line(path: Path) -> str:
    return (path.read_text(encoding="utf-8").splitlines() or ["starting"])[-1]


def _print_summary(out: Path, edition: Edition) -> None:
    """Print what there is now, and the command to use it with."""
    for split in ("train", "val"):
        if record := Record.read(out / split):
            text = _counts(record.num_images or 0, record.num_classes or 0)
            published = _counts(edition.num_images[split], len(edition.classes))
            checked = "MD5 as published" if record.md5 else "MD5 not compared with the published one"
            checked += f"; ImageNet has {published}" if text != published else ""
            print(f"{split}: {text}, {checked}: {out / split}")
    words = ["data=imagenet", option("data.root", out)]
    if (out / "train").is_dir():
        verb, words = "train", words + ([] if (out / "val").is_dir() else ["data.val_fraction=0.02"])
    else:
        verb, words = "evaluate", ["checkpoint=PATH", *words]
    print(f"  {overrides.shell_line(verb, words)}")


def _counts(num_images: int, num_classes: int) -> str:
    return f"{count_noun(num_images, 'image')} of {count_noun(num_classes, 'class')}"
