"""Compare the images/s of the ordinary loader without loader processes with those of DALI's loader with one thread,
alternating in one process:

    taskset -c 0 python scripts/compare_dali.py FOLDER [image_size]

FOLDER/train/<class>/ contains the images. Only decoding, cropping and collating are measured, without a model or a copy
to a device. On a busy machine, images per CPU second are more reliable than images per second, because DALI's two
threads get a larger part of a shared core.
"""

import statistics
import sys
import time
from pathlib import Path

import torch

from imagenet_ddp.data.loading.dali import DaliLoader, load
from imagenet_ddp.data.loading.dataloader import make_loader
from imagenet_ddp.data.loading.sampler import BatchSampler
from imagenet_ddp.data.sources.folder.scan import class_folders
from imagenet_ddp.data.sources.folder.walk import list_images
from imagenet_ddp.data.transforms import Sizes, TrainTransform

REPEATS = 7
BATCH_SIZE = 32


def main() -> None:
    torch.set_num_threads(1)
    folder, size = Path(sys.argv[1]) / "train", int(sys.argv[2]) if len(sys.argv) > 2 else 224
    images = list_images(folder, class_folders(folder))
    transform = TrainTransform(Sizes(size), (0.08, 1.0), 0.5)

    def sampler() -> BatchSampler:
        return BatchSampler(len(images), BATCH_SIZE, 1, 0, shuffle=True, seed=0, fill_to=2)

    dali = DaliLoader(images, transform, sampler(), seed=0, num_threads=1, device=torch.device("cpu"), pin_memory=False)
    ordinary = make_loader(images, transform, sampler(), seed=0, num_workers=0, pin_memory=False, replace=True)
    rates: dict[str, list[float]] = {"ordinary": [], "dali": []}
    cpu_rates: dict[str, list[float]] = {"ordinary": [], "dali": []}
    for repeat in range(REPEATS + 1):
        for name, loader in (("ordinary", ordinary), ("dali", dali)):
            begin, cpu_begin = time.perf_counter(), time.process_time()
            count = sum(batch["num_counted"] for batch in loader)
            if repeat:  # the first repeat warms up
                rates[name].append(count / (time.perf_counter() - begin))
                cpu_rates[name].append(count / (time.process_time() - cpu_begin))
    dali.close()
    print(f"{len(images)} images at {size} px, DALI {load().__version__}, medians of {REPEATS}:")
    for unit, found in (("second", rates), ("CPU second", cpu_rates)):
        ratio = statistics.median(one / other for one, other in zip(found["ordinary"], found["dali"], strict=True))
        each = ", ".join(f"{name} {statistics.median(values):,.0f}" for name, values in found.items())
        print(f"images per {unit}: {each}; ordinary / DALI {ratio:.2f}")


if __name__ == "__main__":
    main()
