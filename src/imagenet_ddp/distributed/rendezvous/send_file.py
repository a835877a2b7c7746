"""A file that only number 0 has, sent to the others through the store they have met at."""

import atexit
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch.distributed import Store

from imagenet_ddp.distributed.rendezvous.gather_ranks import RankGroup, answered
from imagenet_ddp.distributed.rendezvous.timeout import Deadline
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.checksum import sha256

CHUNK_BYTES = 4 * 2**20
POLL_S = 0.002


@answered()
def send_file(rank_group: RankGroup, path: Path | None) -> Path | None:
    """Number 0's file on all: their own where it lies there too with the same content, else a copy. None: none."""
    store, number, timeout_s = rank_group.store, rank_group.number, rank_group.timeout_s
    if rank_group.size == 1:
        return path
    mine = None
    if number == 0 and path is not None:
        mine = {"path": str(path), "bytes": path.stat().st_size, "sha256": sha256(path)}
    told = rank_group.broadcast("file", mine)
    if told is None:
        return None
    there = number == 0 or _is_there(told)
    store.set(f"file/of/{number}", "there" if there else "lacking")
    if number == 0:
        lacking = lambda: [n for n in range(rank_group.size) if not store.check([f"file/of/{n}"])]  # noqa: E731
        rank_group.wait(lambda: not lacking(), timeout_s, lacking, f"whether they have {path}")
        needy = [n for n in range(rank_group.size) if store.get(f"file/of/{n}") == b"lacking"]
        if needy:
            assert path is not None
            _send(store, path, len(needy), timeout_s)
        return path
    return Path(told["path"]) if there else _receive(store, told, timeout_s)


def _is_there(told: Mapping[str, Any]) -> bool:
    here = Path(told["path"])
    return here.is_file() and here.stat().st_size == told["bytes"] and sha256(here) == told["sha256"]


def _send(store: Store, path: Path, num_readers: int, timeout_s: float) -> None:
    """Piece by piece, each deleted when all have read it."""
    with path.open("rb") as file:
        piece = 0
        while content := file.read(CHUNK_BYTES):
            store.set(f"file/{piece}", content)  # type: ignore[arg-type]  # bytes too, which its type does not say
            what = f"{path} could not be sent to all"
            _wait(lambda number=piece: int(store.add(f"file/{number}/read", 0)) >= num_readers, timeout_s, what)
            store.delete_key(f"file/{piece}")
            piece += 1


def _receive(store: Store, told: Mapping[str, Any], timeout_s: float) -> Path:
    name = Path(told["path"])
    folder = tempfile.mkdtemp(prefix="imagenet_ddp_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # this process's workers are done with it by then
    target = Path(folder) / name.name
    received = piece = 0
    with target.open("wb") as file:
        while received < told["bytes"]:
            _wait(lambda number=piece: store.check([f"file/{number}"]), timeout_s, f"{name} did not arrive from rank 0")
            content = store.get(f"file/{piece}")
            store.add(f"file/{piece}/read", 1)
            received += file.write(content)
            piece += 1
    if sha256(target) != told["sha256"]:
        raise ConfigError(f"{name} arrived from rank 0 with another content. Hint: is somebody writing to it there?")
    return target


def _wait(done: Callable[[], bool], timeout_s: float, what: str) -> None:
    patience = Deadline(timeout_s)
    while not done():
        if not patience.lasts(lambda seconds: f"{what} yet, {seconds:.0f} s.", POLL_S):
            raise ConfigError(f"{what} within {timeout_s:g} s. Hint: a shared disk.")
