"""Compare the validation top-1 of one recipe over several seeds when images are read in three ways: by the plain
pipeline, by this project from files, and by this project from a pack:

    python scripts/compare_accuracy.py SEEDS OPTIONS        for example: 3 experiment=quick data.root=FOLDER

Only the way from an image file to pixels differs; net, optimizer, order of images and flips are the same. In the plain
pipeline, Pillow decodes the whole image, and torchvision crops and resizes it as in
https://github.com/pytorch/examples/blob/main/imagenet/main.py
"""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PLAIN = "IMAGENET_DDP_COMPARE_PLAIN"  # environment variable of the processes that train with the plain pipeline


def plain_training() -> None:
    """Run `python -m imagenet_ddp.train`, but read images through the plain pipeline."""
    import torch
    from torch import Tensor
    from torchvision import transforms
    from torchvision.datasets.folder import pil_loader
    from torchvision.transforms.functional import pil_to_tensor

    from imagenet_ddp.data import loader as dataloader
    from imagenet_ddp.data.sampler import Key
    from imagenet_ddp.data.transforms import EvalTransform, TrainTransform
    from imagenet_ddp.system.seeding import hash_seed
    from imagenet_ddp.train import main

    def fill(self: dataloader.ImageDataset, out: Tensor, key: Key, index: int) -> bool:
        transform = self.transform
        if isinstance(transform, TrainTransform):
            steps: list = [transforms.RandomResizedCrop(transform.size(key.epoch), transform.data.crop_scale)]
        else:
            assert isinstance(transform, EvalTransform)
            steps = [transforms.Resize(transform.val_resize), transforms.CenterCrop(transform.image_size)]
        seed = hash_seed(self.seed, key.epoch, key.index)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            image = transforms.Compose(steps)(pil_loader(self.images.path(index)))
        out.copy_(pil_to_tensor(image))
        return isinstance(transform, TrainTransform) and random.Random(seed).random() < transform.data.flip

    dataloader.ImageDataset._fill = fill
    main()


def run(module: str, options: list[str], folder: Path, plain: bool = False) -> None:
    command = [sys.executable, __file__] if plain else [sys.executable, "-m", module]
    environ = {**os.environ, PLAIN: "1"} if plain else {**os.environ}
    subprocess.run([*command, *options], cwd=folder, env=environ, check=True, stdout=subprocess.DEVNULL)


def compare(num_seeds: int, options: list[str], folder: Path) -> None:
    options = [*options, "data.num_workers=0"]
    experiment = [option for option in options if option.startswith(("experiment=", "recipe="))]
    root = next(option for option in options if option.startswith("data.root="))
    rest = [option for option in options if option not in experiment and option != root]
    run("imagenet_ddp.prepare", ["prepare=pack", "data=imagefolder", root, "out=packed"], folder)
    arms = {
        "plain": [*experiment, "data=imagefolder", root, *rest],
        "files": [*experiment, "data=imagefolder", root, *rest],
        "packed": [*experiment, "data=packed", f"data.root={folder / 'packed'}", *rest],
    }
    found: dict[str, list[float]] = {name: [] for name in arms}
    for seed in range(num_seeds):
        for name, typed in arms.items():
            run_dir = folder / f"{name}_{seed}"
            typed = [*typed, f"seed={seed}", f"hydra.run.dir={run_dir}"]
            run("imagenet_ddp.train", typed, folder, plain=name == "plain")
            found[name].append(json.loads((run_dir / "summary.json").read_text())["best/val/top1"])
            print(f"seed {seed}, {name}: {found[name][-1]:.3f}", flush=True)
    for name, values in found.items():
        print(f"{name}: median {statistics.median(values):.3f}, {min(values):.3f} to {max(values):.3f}")


if __name__ == "__main__":
    if PLAIN in os.environ:
        plain_training()
    else:
        if len(sys.argv) < 3 or not sys.argv[1].isdigit():
            sys.exit(f"{__doc__}")
        with tempfile.TemporaryDirectory() as name:
            compare(int(sys.argv[1]), sys.argv[2:], Path(name))
