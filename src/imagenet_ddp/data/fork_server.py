"""Prepare multiprocessing's fork server, which imports this module once for all workers: it does not print that a
training process left in the middle of a request, such as when no more files can be opened."""

import sys

import imagenet_ddp.data.loader  # noqa: F401  # what the workers need
from imagenet_ddp.data.loader_processes import report_unless_parent_left

sys.excepthook = report_unless_parent_left
