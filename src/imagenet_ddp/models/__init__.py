"""The LightningModule and the nets. docs/library.md shows how to use them without the command line.

Names are imported when they are first used: importing this package does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from imagenet_ddp.models.factory import create_model
    from imagenet_ddp.models.lightning_module import ImageClassifier

__all__ = ["ImageClassifier", "create_model"]


_MODULES = {"ImageClassifier": "lightning_module", "create_model": "factory"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
