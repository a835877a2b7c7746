"""Compare the validation top-1 of one recipe over several seeds when images are read by the plain pipeline and by this
project:

    python scripts/compare_accuracy.py SEEDS OPTIONS        for example: 3 experiment=quick data.root=FOLDER

Only the way from an image file to pixels differs; net, optimizer, order of images and flips are the same. In the plain
pipeline, Pillow decodes the whole image, and torchvision crops and resizes it as in
https://github.com/pytorch/examples/blob/main/imagenet/main.py
"""

import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def train_plainly() -> None:
    """Run `python -m imagenet_ddp.train`, but read images through the plain pipeline."""
    import torch
    from torch import Tensor
    from torchvision import transforms
    from torchvision.datasets.folder import pil_loader
    from torchvision.transforms.functional import pil_to_tensor

    from imagenet_ddp.data import loader
    from imagenet_ddp.data.sampler import SampleKey
    from imagenet_ddp.data.transforms import TrainTransform
    from imagenet_ddp.system.seeding import hash_seed
    from imagenet_ddp.train import main

    def fill(self: loader.ImageDataset, out: Tensor, key: SampleKey, index: int) -> tuple[bool, int]:
        own: Any = self.transform
        if isinstance(own, TrainTransform):
            steps = [transforms.RandomResizedCrop(own.size(key.epoch), own.data.crop_scale)]
        else:
            steps = [transforms.Resize(own.val_resize), transforms.CenterCrop(own.image_size)]
        seed = hash_seed(self.seed, key.epoch, key.index)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            image = transforms.Compose(steps)(pil_loader(self.images.path(index)))
        out.copy_(pil_to_tensor(image))
        return isinstance(own, TrainTransform) and random.Random(seed).random() < own.data.flip, 0

    loader.ImageDataset._fill = fill
    main()


def compare(num_seeds: int, options: list[str], folder: Path) -> None:
    programs = {"plain": [__file__, "plain"], "files": ["-m", "imagenet_ddp.train"]}
    found: dict[str, list[float]] = {name: [] for name in programs}
    for seed in range(num_seeds):
        for name, program in programs.items():
            run_dir = folder / f"{name}_{seed}"
            own = ["data=imagefolder", "data.num_workers=0", f"seed={seed}", f"hydra.run.dir={run_dir}"]
            subprocess.run([sys.executable, *program, *options, *own], check=True, stdout=subprocess.DEVNULL)
            found[name].append(json.loads((run_dir / "summary.json").read_text())["best/val/top1"])
            print(f"seed {seed}, {name}: {found[name][-1]:.3f}", flush=True)
    for name, values in found.items():
        print(f"{name}: mean {statistics.mean(values):.3f}, {min(values):.3f} to {max(values):.3f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["plain"]:
        del sys.argv[1]
        train_plainly()
    elif len(sys.argv) < 3 or not sys.argv[1].isdigit():
        sys.exit(__doc__)
    else:
        with tempfile.TemporaryDirectory() as work:
            compare(int(sys.argv[1]), sys.argv[2:], Path(work))
