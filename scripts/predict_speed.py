"""Compare the images per second of predict with those of a plain torchvision loop:

    python scripts/predict_speed.py CHECKPOINT IMAGES [MODEL.onnx ...]

Both predict from files to probabilities, alternating in one process. Prints the medians over the rounds as Markdown.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torchvision import transforms

from imagenet_ddp.cli import parse
from imagenet_ddp.config.schema.commands import PredictConfig
from imagenet_ddp.data.loader import read_in_order
from imagenet_ddp.data.sources.files import find_images
from imagenet_ddp.engine.predictor import Predictor, eval_transform, load_net
from imagenet_ddp.engine.stored_config import open_predictor, resolved_config
from imagenet_ddp.engine.trained_model import load
from imagenet_ddp.system.cpu_cores import cpu_model, num_cores

ROUNDS, BATCH_SIZE = 5, 32


def predictor_of(path: str) -> Predictor:
    request = parse.command_line("predict", [f"checkpoint={path}", f"images={path}"], os.environ)
    return open_predictor(resolved_config(request, os.environ, PredictConfig))


def with_predictor(predictor: Predictor, paths: list[str]) -> Callable[[], None]:
    def run() -> None:
        for images in read_in_order(predictor.read, paths, BATCH_SIZE, num_cores()):
            predictor.predict(images, min(5, len(predictor.classes)))

    return run


def with_torchvision(checkpoint: str, paths: list[str]) -> Callable[[], None]:
    """Return a function that predicts as tutorials do, with Pillow, transforms and batches. Sizes, weights and batch
    size are those of predict."""
    request = parse.command_line("predict", [f"checkpoint={checkpoint}", f"images={checkpoint}"], os.environ)
    config = resolved_config(request, os.environ, PredictConfig)
    net, seen = load_net(config, load(config, Path(checkpoint))), eval_transform(config)
    transform = transforms.Compose(
        [
            transforms.Resize(seen.val_resize),
            transforms.CenterCrop(seen.image_size),
            transforms.ToTensor(),
            transforms.Normalize(seen.mean, seen.std),
        ]
    )

    @torch.inference_mode()
    def run() -> None:
        for start in range(0, len(paths), BATCH_SIZE):
            images: list[Any] = [
                transform(Image.open(path).convert("RGB")) for path in paths[start : start + BATCH_SIZE]
            ]
            probabilities = net(torch.stack(images)).softmax(dim=1)
            probabilities.topk(min(5, probabilities.shape[1]))

    return run


def main() -> None:
    checkpoint, folder, *exported = sys.argv[1:]
    paths = find_images(folder)
    ways = {
        "plain torchvision loop": with_torchvision(checkpoint, paths),
        **{
            f"predict, {Path(path).suffix}": with_predictor(predictor_of(path), paths)
            for path in (checkpoint, *exported)
        },
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS + 1):
        for name, run in ways.items():
            start = time.perf_counter()
            run()
            if number:  # the first round only fills caches
                seconds[name].append(time.perf_counter() - start)
    print(f"{len(paths)} images, {cpu_model()}, {num_cores()} cores, {torch.get_num_threads()} threads\n")
    print("| | images/s | ratio |\n|---|---|---|")
    first = statistics.median(next(iter(seconds.values())))
    for name, times in seconds.items():
        median = statistics.median(times)
        print(f"| {name} | {len(paths) / median:.0f} | {first / median:.2f} |")


if __name__ == "__main__":
    main()
