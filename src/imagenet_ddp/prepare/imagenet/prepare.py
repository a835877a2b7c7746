"""prepare=imagenet: from ImageNet's archives to out/train/<WordNet id>/ and out/val/<WordNet id>/. No torch."""

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from imagenet_ddp.data.sources.download import lock_or_wait
from imagenet_ddp.data.sources.folder.scan import class_folders, image_names, is_image
from imagenet_ddp.engine import job as engine_job
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.prepare.imagenet import classes, devkit, extract
from imagenet_ddp.prepare.imagenet.archives import ILSVRC2012, Archive, Edition, Md5, wrong_md5, wrong_size
from imagenet_ddp.prepare.imagenet.devkit import Devkit
from imagenet_ddp.prepare.imagenet.extract import Group, Unpacking
from imagenet_ddp.prepare.options import FailedError, Plan, option
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.progress_bar import Progress
from imagenet_ddp.system.text import count_noun

LOCK, PROGRESS = ".prepare.lock", ".prepare.progress"
SPARE = 0.02  # of the bytes to write: what a file system needs for a million small files beside their content
MIB = 2**20


@dataclass(frozen=True)
class Job:
    split: str  # train, val
    archive: Archive
    path: Path
    folder: Path


def run(plan: Plan, edition: Edition = ILSVRC2012) -> int:
    """Exit code 0. Raises ConfigError for what is refused, FailedError for what went wrong on the way."""
    assert plan.archive_dir is not None and plan.out is not None
    verify = plan.options["verify"]
    jobs, left_out = _jobs(plan.archive_dir, plan.out, edition)
    kit_path = plan.archive_dir / edition.devkit.name
    if verify and (found := [text for job in jobs for text in wrong_size(job.path, job.archive)]):
        raise ConfigError(found)
    kit = _devkit(kit_path, edition.devkit, verify) if kit_path.is_file() else None
    if not verify:
        print_message(
            "prepare.verify=false: neither MD5 nor the number of all images is compared with the official one."
        )
    with _room_and_rights(plan.out):
        plan.out.mkdir(parents=True, exist_ok=True)
        growing = plan.out / PROGRESS
        with lock_or_wait(plan.out / LOCK, growing, print_message, partial(_last_line, growing)):
            try:
                _prepare(plan, [job for job in jobs if not _is_there(job, left_out)], kit, edition)
            finally:
                growing.unlink(missing_ok=True)
    for split, why in left_out.items():
        print(f"{split} is left out: {why}.")
    _next(plan.out, edition)
    return 0


# ---- what is to be done --------------------------------------------------------------------------------------------


def _jobs(archive_dir: Path, out: Path, edition: Edition) -> tuple[list[Job], dict[str, str]]:
    """(what can be done, split -> why it cannot)."""
    left_out = {}
    jobs = []
    for split, archive in (("val", edition.val), ("train", edition.train)):  # the short work first
        job = Job(split, archive, archive_dir / archive.name, out / split)
        if not job.path.is_file():
            left_out[split] = f"{archive_dir} has no {archive.name}"
        elif split == "val" and not (archive_dir / edition.devkit.name).is_file():
            left_out[split] = f"the classes of its images are in {edition.devkit.name}, and {archive_dir} has none"
        else:
            jobs.append(job)
    if jobs:
        return jobs, left_out
    names = [archive.name for archive in (edition.train, edition.val, edition.devkit)]
    hint = f"archive_dir=FOLDER, with {', '.join(names)} from https://image-net.org/download-images.php"
    if any(archive_dir.glob("imagenet-object-localization-challenge*")):
        hint = "unzip Kaggle's archive, which holds folders already: data=imagenet data.root=FOLDER/ILSVRC/Data/CLS-LOC"
    reasons = "; ".join(f"{split}: {why}" for split, why in left_out.items())
    raise ConfigError(f"archive_dir must hold ImageNet's archives, but: {reasons}. Hint: {hint}.")


def _devkit(path: Path, archive: Archive, verify: bool) -> Devkit:
    if verify and (found := Md5(path).result()) != archive.md5:
        raise ConfigError(wrong_md5(path, archive.md5, found))
    return devkit.read(path)


def _is_there(job: Job, left_out: dict[str, str]) -> bool:
    """Whether an earlier run has finished it, or someone else. Raises ConfigError where the folder is in the way."""
    if not job.folder.exists():
        return False
    record = extract.read_record(job.folder)
    hint = f"Hint: move {job.folder} away, or out=OTHER."
    if record is None or record.num_images is None:
        if job.folder.is_dir() and class_folders(job.folder):
            words = ["prepare=check", "data=imagenet", option("data.root", job.folder.parent)]
            look = engine_job.command("prepare", words)
            left_out[job.split] = f"{job.folder} is there, but was not made by this command; `{look}` looks at it"
            return True
        what = "holds images without class folders" if _is_flat(job.folder) else "holds no class folders"
        raise ConfigError(f"{job.folder} is expected not to exist yet, but does, and {what}. {hint}")
    num_images = sum(len(image_names(job.folder / name)) for name in class_folders(job.folder))
    if num_images != record.num_images:
        raise ConfigError(
            f"{job.folder} must have {count_noun(record.num_images, 'image')}, as it was prepared, but has "
            f"{num_images:,}. {hint}"
        )
    return True


def _is_flat(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    with os.scandir(folder) as entries:
        return any(is_image(entry.name) for entry in entries)


# ---- doing it ------------------------------------------------------------------------------------------------------


def _prepare(plan: Plan, jobs: list[Job], kit: Devkit | None, edition: Edition) -> None:
    assert plan.out is not None
    verify = plan.options["verify"]
    work: list[tuple[Job, list[Group], Unpacking, Progress]] = []
    need = num_files = 0
    for job in jobs:
        print_message(f"Reading what {job.path} holds.")
        if job.split == "train":
            groups = classes.of_train(job.path, kit, edition, verify)
        else:
            assert kit is not None  # else it was left out
            groups = classes.of_val(job.path, kit)
        unpack = Unpacking(job.path, job.folder, groups, print_message)
        progress = Progress(job.split, len(groups), "classes", weight=sum(group.num_bytes for group in groups),
                            on_line=partial(_append, plan.out / PROGRESS))  # fmt: skip
        need += unpack.begin(progress)
        num_files += edition.num_images[job.split] - unpack.num_images if verify else 0
        work.append((job, groups, unpack, progress))
    _room(plan.out, int(need * (1 + SPARE)), num_files)
    for job, groups, unpack, progress in work:
        md5 = Md5(job.path) if verify else None
        progress.more = (lambda md5=md5: f" (MD5 {100 * md5.share:.0f} %)") if md5 is not None else None
        try:
            unpack.run(plan.num_workers, progress)
            progress.end()
            if unpack.failed:
                raise FailedError(unpack.failed)
            _finish(job, len(groups), unpack, md5, edition, partial(_append, plan.out / PROGRESS))
        except SystemExit:
            progress.end()
            print_message(f"Stopped. {progress.line()}. The same command goes on there.")
            raise
        finally:
            progress.end()
            if md5 is not None:
                md5.stop()


def _finish(
    job: Job, num_classes: int, unpack: Unpacking, md5: Md5 | None, edition: Edition, on_line: Callable[[str], None]
) -> None:
    """Once all is right, the split gets its name."""
    draft = extract.draft_folder(job.folder)
    record = extract.of_archive(job.path)
    if md5 is not None:
        record.md5 = md5.result(on_line)
        if record.md5 != job.archive.md5:
            raise FailedError(
                wrong_md5(job.path, job.archive.md5, record.md5) + f" What came out of it stays in {draft}, and is "
                "cleared away when another archive is there."
            )
        if unpack.num_images != edition.num_images[job.split]:
            raise FailedError(
                f"{draft} must have {edition.num_images[job.split]:,} images, but has "
                f"{unpack.num_images:,}. Hint: delete it, and run this again."
            )
    record.num_images, record.num_classes = unpack.num_images, num_classes
    extract.write_record(draft, record)
    os.sync()  # a power cut must not leave empty files under the final name
    draft.rename(job.folder)


# ---- the disk ------------------------------------------------------------------------------------------------------


def _room(out: Path, num_bytes: int, num_files: int) -> None:
    free = shutil.disk_usage(out).free
    if free < num_bytes:
        raise ConfigError(
            f"out must have room for {num_bytes // MIB:,} MiB more, but {out} has {free // MIB:,} MiB. "
            "Hint: out=FOLDER on another disk, or make room; what is unpacked already is kept."
        )
    inodes = os.statvfs(out)
    if inodes.f_files and inodes.f_favail < num_files:  # some file systems make them as they are needed, and say 0
        raise ConfigError(
            f"out must have room for {num_files:,} more files, but {out} has it for {inodes.f_favail:,} "
            "(`df -i`). Hint: out=FOLDER on another disk."
        )


@contextlib.contextmanager
def _room_and_rights(out: Path) -> Iterator[None]:
    """Errors of the disk as sentences."""
    try:
        yield
    except OSError as error:
        what = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "make room on the disk, then run this again: it goes on there"
        else:
            hint = "look at that disk and its rights, then run this again: it goes on there"
        raise FailedError(f"{out} must take the images, but does not: {what}. Hint: {hint}.") from error


def _append(path: Path, line: str) -> None:
    """For a process that waits: it sees the file grow, and says its last line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def _last_line(path: Path) -> str:
    with contextlib.suppress(OSError, IndexError):
        return path.read_text(encoding="utf-8").splitlines()[-1]
    return "it has just begun"


# ---- the end -------------------------------------------------------------------------------------------------------


def _next(out: Path, edition: Edition) -> None:
    """What is there now, and the command for it."""
    for split in ("train", "val"):
        if record := extract.read_record(out / split):
            checked = "MD5 as published" if record.md5 else "MD5 not compared with the official one"
            found = record.num_images or 0, record.num_classes or 0
            official = edition.num_images[split], edition.num_classes
            if found != official:
                checked += f"; ImageNet has {_images(*official)}"
            print(f"{split}: {_images(*found)}, {checked}: {out / split}")
    words = ["data=imagenet", option("data.root", out)]
    if (out / "train").is_dir():
        verb, words = "train", words + ([] if (out / "val").is_dir() else ["data.val_fraction=0.02"])
    else:
        verb, words = "evaluate", ["checkpoint=PATH", *words]
    print(f"  {engine_job.command(verb, words)}")


def _images(number: int, num_classes: int) -> str:
    return f"{count_noun(number, 'image')} of {count_noun(num_classes, 'class')}"
