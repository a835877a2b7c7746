"""prepare=stl10: download and unpack STL-10 before training, as data=stl10 does by itself. No torch."""

from pathlib import Path

from imagenet_ddp.cli import overrides
from imagenet_ddp.data.sources import stl10
from imagenet_ddp.data.sources.download import Archive
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.prepare.options import Plan, option
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.text import count_noun


def run(plan: Plan, archive: Archive = stl10.OFFICIAL) -> int:
    """Return exit code 0. Raises ConfigError."""
    root = plan.out or Path(plan.config["data"]["root"] or "data")
    if plan.out is None and not (root / stl10.FOLDER).is_dir():
        print_message(f"out is not set: writing to {root.absolute()}. out=FOLDER chooses another folder.")
    try:
        folder = stl10.prepare(root, plan.config["data"]["download"], archive, archive_dir=plan.archive_dir)
        found = {split: stl10.read_split(folder, split, None)[0] for split in ("train", "test")}
    except ConfigError as error:
        raise ConfigError([text.replace("data.root", "out") for text in error.mistakes]) from error
    for text in stl10.notes(folder):
        print(text)
    classes = count_noun(len(stl10.class_names(folder)), "class")
    for name, (split, targets) in zip(("train", "val"), found.items(), strict=True):
        print(f"{name}: {count_noun(len(targets), 'image')} of {classes}: {folder / f'{split}_X.bin'}")
    print(f"  {overrides.shell_line('train', ['data=stl10', option('data.root', root)])}")
    return 0
