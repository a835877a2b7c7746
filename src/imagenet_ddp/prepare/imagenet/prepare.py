"""Run prepare=imagenet: extract ImageNet's archives to out/train/<WordNet id>/ and out/val/<WordNet id>/.

Does not import torch.
"""

from pathlib import Path

from imagenet_ddp.cli import overrides
from imagenet_ddp.cli.text_values import quoted
from imagenet_ddp.data.sources.download import lock_or_wait, validate_size, verify
from imagenet_ddp.data.sources.listing import class_folders, list_folder
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.prepare.disk_space import explain_disk_errors, require_free_space
from imagenet_ddp.prepare.imagenet.archives import URL, Edition, ilsvrc2012, train_classes, val_classes
from imagenet_ddp.prepare.imagenet.extract import draft_folder, extract
from imagenet_ddp.prepare.options import Plan
from imagenet_ddp.system.text import count_noun

LOCK = ".prepare.lock"
SPARE = 0.02  # share of the bytes to write that the file system adds for a million small files


def run(plan: Plan, edition: Edition | None = None) -> int:
    """Extract the archives and return exit code 0. Raises ConfigError for refused options, RunError on failure."""
    archive_dir, edition = Path(plan.config["archive_dir"]), edition or ilsvrc2012()
    archives, left_out = _find_archives(archive_dir, edition)
    if mistakes := [text for split, path in archives.items() for text in validate_size(path, getattr(edition, split))]:
        raise ConfigError(mistakes)
    with explain_disk_errors(plan.out):
        plan.out.mkdir(parents=True, exist_ok=True)
        with lock_or_wait(plan.out / LOCK, None):
            todo = [split for split in archives if not _is_finished(plan.out / split, edition.num_images[split])]
            _check_room(plan.out, [(archives[split], draft_folder(plan.out / split)) for split in todo])
            for split in todo:
                path = archives[split]
                verify(path, getattr(edition, split))
                if split == "val":
                    devkit = archive_dir / edition.devkit.name
                    verify(devkit, edition.devkit)
                    classes = val_classes(path, devkit, edition.classes)
                else:
                    classes = train_classes(path)
                extract(path, plan.out / split, classes, edition.num_images[split], plan.num_workers)
    for split, why in left_out.items():
        print(f"{split} is left out: {why}.")
    _print_summary(plan.out, edition)
    return 0


def _find_archives(archive_dir: Path, edition: Edition) -> tuple[dict[str, Path], dict[str, str]]:
    """Return (split -> its archive, split -> why it is left out). Raises ConfigError if no archive is found."""
    found, left_out = {}, {}
    for split, archive in (("val", edition.val), ("train", edition.train)):  # val first, because it is quick
        path = archive_dir / archive.name
        if not path.is_file():
            left_out[split] = f"{archive_dir} has no {archive.name}"
        elif split == "val" and not (archive_dir / edition.devkit.name).is_file():
            left_out[split] = f"{archive_dir} has no {edition.devkit.name}, which lists the classes of its images"
        else:
            found[split] = path
    if found:
        return found, left_out
    names = ", ".join(archive.name for archive in (edition.train, edition.val, edition.devkit))
    reasons = "; ".join(f"{split}: {why}" for split, why in left_out.items())
    raise ConfigError(
        f"archive_dir must contain ImageNet's archives, but does not ({reasons}). Hint: set archive_dir=FOLDER "
        f"to a folder with {names} from {URL}."
    )


def _is_finished(folder: Path, num_images: int) -> bool:
    """Return whether the folder already has the complete split, whoever wrote it. Raises ConfigError if the folder is
    incomplete."""
    if not folder.exists():
        return False
    found = sum(len(list_folder(folder / name)[0]) for name in class_folders(folder)) if folder.is_dir() else 0
    if found != num_images:
        raise ConfigError(
            f"{folder} exists, so it must have {count_noun(num_images, 'image')} in class folders, got {found:,}. "
            f"Hint: move {folder} away, or set out=FOLDER to another folder."
        )
    return True


def _check_room(out: Path, todo: list[tuple[Path, Path]]) -> None:
    """Raise ConfigError if the disk is too full. todo: (archive, folder with the classes already extracted from it)."""
    need = sum(archive.stat().st_size for archive, _ in todo) * (1 + SPARE)
    need -= sum(path.stat().st_size for _, draft in todo for path in draft.rglob("*.JPEG"))
    require_free_space(out, need, ". Classes already extracted are kept")


def _print_summary(out: Path, edition: Edition) -> None:
    """Print what exists now, and a command that uses it."""
    for split in ("train", "val"):
        if (out / split).is_dir():
            counts = f"{count_noun(edition.num_images[split], 'image')} of {count_noun(len(edition.classes), 'class')}"
            print(f"{split}: {counts}: {out / split}")
    words = ["data=imagenet", quoted(f"data.root={out}")]
    if (out / "train").is_dir():
        verb, words = "train", words + ([] if (out / "val").is_dir() else ["data.val_fraction=0.02"])
    else:
        verb, words = "evaluate", ["checkpoint=PATH", *words]
    print(f"  {overrides.shell_line(verb, words)}")
