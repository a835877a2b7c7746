"""Adapt Lightning's loggers so that a resumed run continues logging at its checkpoint, and no server can delay a
training.

To add a logger, add a class to this package, a file to conf/logger, and an entry to LOGGER_PACKAGES in
runs/validate.py.
"""

from typing import TYPE_CHECKING

from imagenet_ddp.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from imagenet_ddp.callbacks.loggers.local_files import CSVLogger, TensorBoardLogger
    from imagenet_ddp.callbacks.loggers.online_services import CometLogger, MLFlowLogger, WandbLogger

__all__ = ["CSVLogger", "CometLogger", "MLFlowLogger", "TensorBoardLogger", "WandbLogger"]

__getattr__ = lazy_names(
    __name__,
    {
        "CSVLogger": "local_files",
        "CometLogger": "online_services",
        "MLFlowLogger": "online_services",
        "TensorBoardLogger": "local_files",
        "WandbLogger": "online_services",
    },
)
