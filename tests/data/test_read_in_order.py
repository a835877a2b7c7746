import threading
import time
from typing import Any

import torch

from imagenet_ddp.data.loader import read_in_order
from imagenet_ddp.system.cpu_cores import num_cores


def test_what_is_not_needed_any_more_is_not_read():
    """After Ctrl-C, say."""
    few, taken, lock = 4 * num_cores(), [], threading.Lock()

    def read(path: str) -> torch.Tensor:
        with lock:
            taken.append(path)
        time.sleep(0.5 if int(path) >= few else 0)
        return torch.tensor(int(path))

    reader: Any = read
    batches = read_in_order(reader, [str(number) for number in range(3 * few)], few, num_cores())
    assert [int(image) for image in next(batches)] == list(range(few))  # type: ignore[arg-type]
    batches.close()
    assert len(taken) < 3 * few
