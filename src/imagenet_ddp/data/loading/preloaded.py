"""What the fork server imports before it forks loader processes, which then share its memory."""

from imagenet_ddp.system.heavy_imports import import_torch

with import_torch():
    import imagenet_ddp.data.loading.dataloader  # noqa: F401
