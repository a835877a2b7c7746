"""Provide Lightning callbacks for exact resuming, progress, history and metrics. docs/library.md shows how to use them
in your own Trainer.

Names are imported on first use, so importing this package does not import torch.
"""

from typing import TYPE_CHECKING

from imagenet_ddp.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from imagenet_ddp.callbacks.checkpoint import ResumeCheckpoint
    from imagenet_ddp.callbacks.gradient_norm import GradientNorm
    from imagenet_ddp.callbacks.history import History
    from imagenet_ddp.callbacks.image_files import BatchSheet
    from imagenet_ddp.callbacks.learning_rate import LearningRate
    from imagenet_ddp.callbacks.nonfinite_loss import NonFiniteLoss
    from imagenet_ddp.callbacks.progress import Progress
    from imagenet_ddp.callbacks.train_log import TrainLog

__all__ = [
    "BatchSheet",
    "GradientNorm",
    "History",
    "LearningRate",
    "NonFiniteLoss",
    "Progress",
    "ResumeCheckpoint",
    "TrainLog",
]

__getattr__ = lazy_names(
    __name__,
    {
        "BatchSheet": "image_files",
        "GradientNorm": "gradient_norm",
        "History": "history",
        "LearningRate": "learning_rate",
        "NonFiniteLoss": "nonfinite_loss",
        "Progress": "progress",
        "ResumeCheckpoint": "checkpoint",
        "TrainLog": "train_log",
    },
)
