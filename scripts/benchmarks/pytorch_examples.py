"""Train with the loop of pytorch/examples' imagenet/main.py, reduced to one device. It transforms Pillow images, uses
DataLoader, SGD and cross entropy, and reads the loss and the accuracies in each step.

Source: https://github.com/pytorch/examples/blob/main/imagenet/main.py
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torchvision.models as models
import torchvision.transforms as transforms
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

PRINT_FREQ = 10


class AverageMeter:
    def __init__(self) -> None:
        self.sum: Any = 0.0
        self.count = 0

    def update(self, value: Any, n: int = 1) -> None:
        self.sum += value * n
        self.count += n

    @property
    def avg(self) -> Any:
        return self.sum / self.count


def accuracy(output: Tensor, target: Tensor, topk: tuple[int, ...]) -> list[Tensor]:
    with torch.no_grad():
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
        return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / target.size(0)) for k in topk]


def make_loader(folder: str, size: int, batch_size: int, workers: int, *, pin_memory: bool = False) -> DataLoader:
    """Return a DataLoader of FOLDER/<class>/*, whose images are read by Pillow and normalised as floats on the CPU."""
    normalize = transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    flow = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize]
    dataset = ImageFolder(folder, transforms.Compose(flow))
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, num_workers=workers, pin_memory=pin_memory)


def main(
    loader: dict[str, Any], out: str, *, arch: str, steps: int, warm_up: int, device: str, num_threads: int
) -> None:
    """Train, then write the seconds per step and the share of time spent waiting for data to the JSON file `out`.
    loader: arguments of make_loader."""
    torch.set_num_threads(num_threads)
    model = models.__dict__[arch]().to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    batches = make_loader(**loader, pin_memory=device != "cpu")
    losses, top1, top5, data_s = AverageMeter(), AverageMeter(), AverageMeter(), AverageMeter()
    model.train()
    start = end = time.time()
    for i, (images, target) in enumerate(batches):
        if i == warm_up:
            synchronize(device)
            start, data_s = time.time(), AverageMeter()
        else:
            data_s.update(time.time() - end)
        if i == warm_up + steps:
            break
        images = images.to(device, non_blocking=True)
        target = target.to(device, non_blocking=True)
        output = model(images)
        loss = criterion(output, target)
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        losses.update(loss.item(), images.size(0))
        top1.update(acc1[0], images.size(0))
        top5.update(acc5[0], images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        end = time.time()
        if i % PRINT_FREQ == 0:
            print(f"[{i}/{len(batches)}] loss {losses.avg:.4e} top-1 {float(top1.avg):.2f} top-5 {float(top5.avg):.2f}")
    synchronize(device)
    elapsed = time.time() - start
    Path(out).write_text(
        json.dumps({"step_s": elapsed / steps, "data_wait_frac": data_s.sum / elapsed}), encoding="utf-8"
    )


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
