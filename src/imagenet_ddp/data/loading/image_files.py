"""Read image files in order and in advance, in threads or, for many files, in processes."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from torch import Tensor
from torch.utils.data import DataLoader

from imagenet_ddp.data.decoding.image import Reading, UnreadableImage, decode
from imagenet_ddp.data.loading.worker_processes import (
    choose_mp_context,
    init_worker,
    raise_open_file_limit,
    start_fork_server,
)
from imagenet_ddp.data.sources.folder.images import read_file
from imagenet_ddp.system.cpu_cores import num_cores

FEW = 512  # files that threads can read in the time in which a process imports torch
AHEAD = 2  # batches that are read in advance


@dataclass(frozen=True)
class FileReader:
    """Read, decode and prepare an image file. Instances are pickled into each process. prepare: called with the decoded
    image, uint8 (3, H, W)."""

    reading: Reading
    prepare: Callable[[Tensor], Tensor]

    def __call__(self, path: str) -> Tensor | UnreadableImage:
        """Return the prepared image, or an UnreadableImage with the reason why it cannot be read. This method is
        thread-safe."""
        try:
            return self.prepare(decode(read_file(path), path, self.reading))
        except UnreadableImage as error:
            return error
        except OSError as error:
            return UnreadableImage(path, error.strerror or str(error))


def _read_all(reader: FileReader, paths: list[str]) -> list[Tensor | UnreadableImage]:
    return [reader(path) for path in paths]


def read_in_order(
    reader: FileReader, paths: Sequence[str], batch_size: int, num_workers: int
) -> Generator[list[Tensor | UnreadableImage]]:
    """Yield the images in the order of `paths`, batch_size at a time. num_workers: number of processes that read them;
    with 0, or for at most FEW files, one thread per core reads them."""
    if num_workers and len(paths) > FEW:
        start_fork_server()
        raise_open_file_limit()  # each image in transit is an open file
        yield from DataLoader(
            paths, batch_size, num_workers=num_workers, collate_fn=partial(_read_all, reader),  # type: ignore[arg-type]
            prefetch_factor=AHEAD, multiprocessing_context=choose_mp_context(), worker_init_fn=init_worker,
        )  # fmt: skip
        return
    pool = ThreadPoolExecutor(num_cores())
    try:
        coming: deque[list[Future[Tensor | UnreadableImage]]] = deque()
        for start in range(0, len(paths) + AHEAD * batch_size, batch_size):
            coming.append([pool.submit(reader, path) for path in paths[start : start + batch_size]])
            if len(coming) > AHEAD and (batch := [each.result() for each in coming.popleft()]):
                yield batch
    finally:
        pool.shutdown(cancel_futures=True)  # otherwise Ctrl-C waits for all files that are still to be read
