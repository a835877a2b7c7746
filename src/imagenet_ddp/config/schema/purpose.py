"""Say what a command wants the images for."""

from enum import Enum


class Purpose(Enum):
    """A purpose decides what a look at the images finds."""

    TRAIN = "train"
    EVALUATE = "evaluate"  # only the validation images are needed
    CHECK = "check"  # a class without images is left out, where a training refuses the data
    RELABEL = "relabel"  # such a class is kept

    @property
    def needs_train(self) -> bool:
        return self is not Purpose.EVALUATE

    @property
    def splits(self) -> tuple[str, ...]:
        return ("train", "val") if self.needs_train else ("val",)
