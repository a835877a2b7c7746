"""Lightning callbacks: exact resume, progress, history, metrics. docs/library.md shows how to use them alone.

Names are imported when they are first used: importing this package does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from imagenet_ddp.callbacks.checkpoint import ResumeCheckpoint
    from imagenet_ddp.callbacks.history import History
    from imagenet_ddp.callbacks.learning_rate import LearningRate
    from imagenet_ddp.callbacks.progress import Progress
    from imagenet_ddp.callbacks.running_metrics import RunningMetrics

__all__ = ["History", "LearningRate", "Progress", "ResumeCheckpoint", "RunningMetrics"]

_MODULES = {
    "History": "history",
    "LearningRate": "learning_rate",
    "Progress": "progress",
    "ResumeCheckpoint": "checkpoint",
    "RunningMetrics": "running_metrics",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
