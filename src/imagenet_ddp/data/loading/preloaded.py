"""Import the modules that loader processes need. The fork server imports this module before it forks those processes,
so that they share the memory of the imported modules."""

import sys

from imagenet_ddp.data.loading.worker_processes import report_unless_parent_left
from imagenet_ddp.system.heavy_imports import import_torch

with import_torch():
    import imagenet_ddp.data.loading.dataloader  # noqa: F401

sys.excepthook = report_unless_parent_left
