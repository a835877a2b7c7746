"""Identify a sample of an epoch: an image, and everything that determines its augmentation."""

from typing import NamedTuple

from imagenet_ddp.system.seeding import hash_seed


class Key(NamedTuple):
    """Everything a sample depends on, so that any worker on any rank makes the same one."""

    epoch: int
    index: int  # type: ignore[assignment]  # hides tuple.index
    counts: bool
    step_images: int  # images that count in this step, over all ranks
    update_images: int  # images that count in this update of the weights, over all ranks
    repeat: int = 0  # how often the image stood in this epoch's order before (data.repeats, data.sampling)

    def image_seed(self, seed: int) -> int:
        """Return the seed of the image's own randomness."""
        return hash_seed(seed, self.epoch, self.index, *((1, self.repeat) if self.repeat else ()))

    def batch_seed(self, seed: int) -> int:
        """Return the seed of the batch that begins with this image."""
        return hash_seed(seed, self.epoch, self.index, 2, self.repeat)
