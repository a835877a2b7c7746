"""Train image classifiers with PyTorch Lightning and Hydra. `python -m imagenet_ddp` lists the commands."""

__version__ = "0.1.0"
