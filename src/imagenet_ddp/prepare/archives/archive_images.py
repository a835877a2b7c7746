"""Images inside the files of an archive, which are read where they lie: nothing is extracted."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from imagenet_ddp.data.decoding.decode import Picture, open_picture
from imagenet_ddp.data.sources.base import Images, Names
from imagenet_ddp.data.sources.layout import TEST, TRAIN, VAL
from imagenet_ddp.system.text import count_noun, printable, shorten_list


class ArchiveImages(Images):
    """One split. names: of the images, for messages and tables; never used as paths. path() differs for all images.

    parts: int64 (N,), the number of the part of the files that each image is in, if a part is read from its beginning;
    the images of a part follow each other, and the processes that encode get their bytes. None: each process reads
    single images.
    """

    is_encoded = True
    names: Names
    parts: np.ndarray | None = None

    def path(self, index: int) -> str:
        return f"{self.location}: {self.names[index]}"

    def encoded(self, index: int) -> bytes:
        raise NotImplementedError

    def open(self, index: int) -> Picture:
        return open_picture(self.encoded(index), self.path(index), self.reading)

    def sizes(self) -> np.ndarray:
        """Return int64, the sizes by which a changed archive is noticed."""
        raise NotImplementedError


def split_of(words: Sequence[str]) -> str | None:
    """Return train, val or test: the split that one of the words is a usual name of, the first of them first."""
    kinds = {"train": TRAIN, "val": VAL, "test": TEST}
    return next((split for word in words for split, kind in kinds.items() if kind.fullmatch(word)), None)


def split_of_file(path: Path, folder: Path) -> str | None:
    """Return the split that the name of a file, or of a folder above it, tells: train for train-00000-of-00294.parquet,
    ILSVRC2012_img_train.tar and train/0000.parquet."""
    above = reversed(path.parent.relative_to(folder).parts)
    return split_of([*re.split(r"[^A-Za-z]+", path.stem), *above])


def listed(rule: str, wrong: Sequence[str], hint: str) -> list[str]:
    """Return a message about the images that break a rule, or [] if there are none."""
    texts = [printable(each)[:200] for each in wrong[:5]]
    more = f" and {len(wrong) - 5:,} more" if len(wrong) > 5 else ""
    what = f"{rule}, but {count_noun(len(wrong), 'image')} {'does' if len(wrong) == 1 else 'do'} not"
    return [f"{what}: {shorten_list(texts)}{more}. Hint: {hint}."] if wrong else []
