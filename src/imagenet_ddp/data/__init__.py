"""Load images for training: `ImageDataModule` for any Lightning Trainer, `Images` and `Source` for your own data.

    data = ImageDataModule.from_options(name="imagefolder", root="pets", image_size=224, batch_size=64)
    trainer.fit(model, datamodule=data)  # batch["image"], batch["target"]; len(data.source.classes)

Names are imported on first use, because the checks before a run must not import torch.
"""

from typing import TYPE_CHECKING

from imagenet_ddp.system.process import lazy_names

if TYPE_CHECKING:
    from imagenet_ddp.data.decoding.errors import UnreadableImage
    from imagenet_ddp.data.module import ImageDataModule
    from imagenet_ddp.data.sources.base import Images, Source

__all__ = ["ImageDataModule", "Images", "Source", "UnreadableImage"]

__getattr__ = lazy_names(
    __name__,
    {
        "ImageDataModule": "module",
        "Images": "sources.base",
        "Source": "sources.base",
        "UnreadableImage": "decoding.errors",
    },
)
