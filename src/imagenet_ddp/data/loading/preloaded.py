"""List the modules that the fork server imports before it forks loader processes, which then share their memory."""

import sys

from imagenet_ddp.data.loading.worker_processes import report_unless_parent_left
from imagenet_ddp.system.heavy_imports import import_torch

with import_torch():
    import imagenet_ddp.data.loading.dataloader  # noqa: F401

sys.excepthook = report_unless_parent_left
