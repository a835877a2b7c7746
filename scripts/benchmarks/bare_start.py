"""Import torch, torchvision and Lightning, take one training step, and record when it ended.

This is the baseline of start.py. It imports nothing from imagenet_ddp.
"""

import json
import sys
import time
from pathlib import Path

import lightning.pytorch  # noqa: F401  (imported only to be measured)
import torch
import torch.nn.functional as F
import torchvision.models


def main(out: str, *, arch: str, size: int, batch_size: int, precision: str, device: str, num_threads: int) -> None:
    torch.set_num_threads(num_threads)
    net = torchvision.models.get_model(arch).to(memory_format=torch.channels_last).to(device)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    images = torch.randn(batch_size, 3, size, size).to(device, memory_format=torch.channels_last)
    target = torch.randint(0, 1000, (batch_size,)).to(device)
    with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16-mixed"):
        logits = net(images)
    F.cross_entropy(logits.float(), target).backward()
    optimizer.step()
    if device == "cuda":
        torch.cuda.synchronize()
    first_step_at = time.time()
    Path(out).write_text(json.dumps({"first_step_at": first_step_at}), encoding="utf-8")


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
