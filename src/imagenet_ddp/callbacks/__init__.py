"""Provide Lightning callbacks for exact resuming, progress, history and metrics. docs/library.md shows how to use them
in your own Trainer."""

from imagenet_ddp.callbacks.checkpoint import ResumeCheckpoint
from imagenet_ddp.callbacks.gradient_norm import GradientNorm
from imagenet_ddp.callbacks.learning_rate import LearningRate
from imagenet_ddp.callbacks.nonfinite_loss import NonFiniteLoss
from imagenet_ddp.callbacks.progress import Progress
from imagenet_ddp.callbacks.run_files import BatchSheet, History
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
