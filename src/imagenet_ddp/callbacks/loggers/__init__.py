"""Lightning's loggers, adapted: a resumed run continues at its checkpoint, and no server can hold up a training."""

from typing import TYPE_CHECKING

from imagenet_ddp.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from imagenet_ddp.callbacks.loggers.local import CSVLogger, TensorBoardLogger
    from imagenet_ddp.callbacks.loggers.remote import CometLogger, MLFlowLogger, WandbLogger

__all__ = ["CSVLogger", "CometLogger", "MLFlowLogger", "TensorBoardLogger", "WandbLogger"]

__getattr__ = lazy_names(
    __name__,
    {
        "CSVLogger": "local",
        "CometLogger": "remote",
        "MLFlowLogger": "remote",
        "TensorBoardLogger": "local",
        "WandbLogger": "remote",
    },
)
