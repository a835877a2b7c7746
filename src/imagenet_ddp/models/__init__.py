"""The LightningModule and the nets. docs/library.md shows how to use them without the command line.

Names are imported on first use: importing this package does not import torch.
"""

from typing import TYPE_CHECKING

from imagenet_ddp.system.process import lazy_names

if TYPE_CHECKING:
    from imagenet_ddp.models.factory import create_model
    from imagenet_ddp.models.lightning_module import ImageClassifier

__all__ = ["ImageClassifier", "create_model"]

__getattr__ = lazy_names(__name__, {"ImageClassifier": "lightning_module", "create_model": "factory"})
