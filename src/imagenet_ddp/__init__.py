"""Image classification with PyTorch Lightning and Hydra. Commands: `python -m imagenet_ddp.train|evaluate|predict`."""

__version__ = "0.1.0"
