"""Packed images from an object store: a server of S3's protocol on this machine."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from conftest import write_images
from helpers.train_runs import wait_for
from torch._utils import ExceptionWrapper

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data.loader_processes import worker_context
from imagenet_ddp.data.sources import shard_cache
from imagenet_ddp.data.sources.base import Source
from imagenet_ddp.data.sources.pack_format import File
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.data.sources.shard_cache import ShardCache, ShardError
from imagenet_ddp.data.sources.streamed import StreamedImages
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.prepare import options as prepare_options
from imagenet_ddp.prepare import pack

pytestmark = pytest.mark.skipif(find_spec("s3fs") is None, reason="the extra s3 is not installed")
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
MIB = 2**20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 training images in 8 shards or so, 9 validation images in 2, each shard of about 1 MiB."""
    root = tmp_path_factory.mktemp("many")
    for split, count in (("train", 20), ("val", 4)):
        write_images(root / "tree" / split, dict.fromkeys("abc", count), size=200)
    argv = ["prepare=pack", "data=imagefolder", f"data.root={root / 'tree'}", f"out={root / 'out'}"]
    plan = prepare_options.read(
        [
            *argv,
            "prepare.form=raw",
            "prepare.short_side=0",
            "prepare.shard_mib=1",
            "prepare.num_workers=1",
            "data.exif_orientation=false",
        ],
        {},
    )
    assert plan is not None
    assert pack.run(plan) == 0
    return root / "out"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """http://127.0.0.1:PORT. A process of its own, because it and its client would wait for each other's threads."""
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    address = ""
    for line in process.stderr:
        if "http://127.0.0.1:" in line:
            address = line.partition("Running on ")[2].strip()
            break
    reader = threading.Thread(target=process.stderr.read, daemon=True)
    reader.start()
    assert address, "moto did not start"
    yield address
    process.send_signal(signal.SIGTERM)
    process.wait(10)
    reader.join(10)
    process.stderr.close()


@pytest.fixture
def bucket(server: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The store as an fsspec file system, with the pack in bucket/pack."""
    import s3fs

    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    store = s3fs.S3FileSystem(endpoint_url=server, skip_instance_cache=True)
    store.mkdir("bucket")
    store.put(f"{folder}/", "bucket/pack/", recursive=True)
    yield store
    store.rm("bucket", recursive=True)


def keys(server: str, cache: Path, root: str = "s3://bucket/pack", **more: Any) -> DataConfig:
    args = {"endpoint_url": server} if root.startswith("s3") else {}
    usual = {"args": args, "shuffle_window_shards": 2}
    return DataConfig.of(name="streamed", root=root, cache_dir=str(cache), **usual | more)


def opened(data: DataConfig, name: str = "train") -> StreamedImages:
    images = getattr(open_source(data, 0), name)
    assert isinstance(images, StreamedImages)
    return images


def cached(images: StreamedImages) -> list[str]:
    return sorted(path.name for path in images.folder.glob("train-*.bin"))


def same(one: Source, other: Source) -> bool:
    return all(
        a.targets.tolist() == b.targets.tolist() and all(torch.equal(a.read(i), b.read(i)) for i in range(len(a)))
        for a, b in ((one.train, other.train), (one.val, other.val))
        if a is not None and b is not None
    )


def test_streamed_is_the_same_as_packed(server: str, bucket: Any, folder: Path, tmp_path: Path):
    packed = open_source(DataConfig.of(name="packed", root=str(folder)), 0)
    streamed = open_source(keys(server, tmp_path), 0)
    assert isinstance(streamed.train, StreamedImages)
    assert cached(streamed.train) == [], "nothing is fetched before it is needed"
    assert (streamed.classes, streamed.labels) == (packed.classes, packed.labels)
    assert same(streamed, packed)
    assert streamed.train.path(0) == "s3://bucket/pack/train: a/000.jpg"
    assert not list(streamed.train.folder.glob("*.part"))
    bucket.rm("bucket/pack/train-00000.bin")  # no second fetch
    assert same(open_source(keys(server, tmp_path), 0), packed)


def test_a_bounded_cache(server: str, bucket: Any, folder: Path, tmp_path: Path):
    """All images in the order of an epoch, twice: at most the shard being fetched is beyond the limit."""
    bound = 4.4 * MIB
    images = opened(keys(server, tmp_path, cache_gib=bound / 2**30))
    before = {name.name: name.read_bytes() for name in folder.glob("train-*.bin")}
    most, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.001):
            sizes = []
            for path in images.folder.glob("*.bin*"):
                try:
                    sizes.append(path.stat().st_size)
                except FileNotFoundError:
                    continue
            most[0] = max(most[0], sum(sizes))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for epoch in (0, 1):
        order = images.order(3, epoch)
        assert order is not None
        assert sorted(order) == list(range(60))
        for index in order.tolist():
            record = images.record(index)
            expected = before[images.split.shards[record.shard].file][record.offset :][: record.num_bytes]
            assert images.read(index).permute(1, 2, 0).numpy().tobytes() == expected
    stop.set()
    watcher.join()
    assert most[0] <= bound + 1.1 * MIB
    assert len(cached(images)) < len(images.split.shards)


def test_shards_are_fetched_ahead(server: str, bucket: Any, tmp_path: Path):
    images = opened(keys(server, tmp_path))
    order, sequence = images.order(0, 0), images.shards_of(0, 0)
    assert order is not None
    images.read(int(order[0]))
    files = [images.split.shards[shard].file for shard in sequence]
    wait_for(lambda: cached(images) == sorted(files[:4]))  # this window and the next
    images.read(int(order[-1]))  # resumed near the end
    wait_for(lambda: set(files[-2:]) <= set(cached(images)))
    val = opened(keys(server, tmp_path), "val")
    val.order(0, 0)
    val.read(0)
    wait_for(lambda: (val.folder / "val-00001.bin").exists())


@pytest.mark.slow
def test_one_process_fetches_and_the_others_wait(server: str, bucket: Any, tmp_path: Path):
    images = opened(keys(server, tmp_path))
    assert len(pickle.dumps(images)) < 8_000
    context = worker_context()
    log = tmp_path / "log"
    with ProcessPoolExecutor(2, context, _count_fetches, (log, dict(os.environ))) as pool:
        results = [pool.submit(_read_all, images) for _ in range(2)]
        sums = [result.result(timeout=100) for result in results]
    assert sums == [_read_all(images)] * 2
    fetched = log.read_text().split()
    assert sorted(fetched) == sorted(set(fetched)) == cached(images)


def _count_fetches(log: Path, environ: dict[str, str]) -> None:
    os.environ.update(environ)  # the server may have been started before the credentials were there
    whole = ShardCache._fetch

    def fetch(self: ShardCache, file: File) -> None:
        with log.open("a", encoding="utf-8") as lines:
            lines.write(f"{file.file}\n")
        whole(self, file)

    ShardCache._fetch = fetch


def _read_all(images: StreamedImages) -> int:
    return sum(int(images.read(index).sum()) for index in range(len(images)))


@pytest.mark.slow(2)
def test_killed_in_mid_fetch(server: str, bucket: Any, folder: Path, tmp_path: Path):
    images = opened(keys(server, tmp_path))
    file = images.split.shards[images.record(0).shard].file
    (images.folder / f"{file}.part").write_bytes((folder / file).read_bytes()[:1000])
    images.read(0)
    assert (images.folder / file).read_bytes() == (folder / file).read_bytes()


@pytest.mark.slow(2)
def test_what_cannot_be_fetched_is_named(server: str, bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shard_cache, "FIRST_WAIT_S", 0.01)
    images = opened(keys(server, tmp_path / "one"))
    bucket.rm("bucket/pack/train-00001.bin")
    data = bytearray(bucket.cat_file("bucket/pack/train-00002.bin"))
    data[77] ^= 1
    bucket.pipe_file("bucket/pack/train-00002.bin", bytes(data))
    for shard, said in ((1, "FileNotFoundError"), (2, "ValueError: its SHA-256 is not that in packed.json")):
        index = next(index for index in range(60) if images.record(index).shard == shard)
        with pytest.raises(
            ShardError, match=rf"s3://bucket/pack/train-0000{shard}\.bin cannot be read: {said}"
        ) as told:
            images.read(index)
        with pytest.raises(ShardError) as retold:  # as it comes from a loader process
            ExceptionWrapper(told._excinfo).reraise()  # type: ignore[attr-defined]
        assert str(retold.value) == str(told.value)
    with pytest.raises(ConfigError, match=r"s3://nowhere/pack/packed\.json cannot be read: FileNotFoundError"):
        opened(keys(server, tmp_path / "two", "s3://nowhere/pack"))
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"NoCredentialsError: .* Hint: .*AWS_ACCESS_KEY_ID"):
        opened(keys(server, tmp_path / "two", args={"endpoint_url": server, "skip_instance_cache": True}))


def test_a_short_failure_is_tried_again(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    images = opened(keys("", tmp_path, f"file://{folder}"))
    left, tries = [3], []
    whole = fsspec.core.url_to_fs

    def place(url: str, **options: Any) -> Any:
        tries.append(url)
        if left[0]:
            left[0] -= 1
            raise ConnectionResetError("reset by peer")
        return whole(url, **options)

    monkeypatch.setattr(shard_cache, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(fsspec.core, "url_to_fs", place)
    images.read(0)
    assert len(tries) == 4
    left[0] = 100
    other = next(index for index in range(60) if images.record(index).shard != images.record(0).shard)
    with pytest.raises(ShardError, match="ConnectionResetError: reset by peer"):
        images.read(other)


@pytest.mark.slow(2)
def test_a_cache_too_small(server: str, bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match=r"data\.cache_gib must be at least 0\.0.* two windows of 2 shards") as caught:
        opened(keys(server, tmp_path, cache_gib=3 / 1024))
    (option,) = caught.value.mistakes[0].fixes[0].options
    assert opened(keys(server, tmp_path, cache_gib=float(option.partition("=")[2])))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, MIB))  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"has 1 MiB free. Hint: set data\.cache_gib=SIZE"):
        opened(keys(server, tmp_path))


@pytest.mark.timeout(120)
def test_a_server_that_sends_without_end_is_left(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Neither the index nor a shard takes more room than it may have."""
    endless = ["packed.json"]

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            name = self.path.rpartition("/")[2]
            try:
                while name in endless:
                    self.wfile.write(bytes(MIB))
                self.wfile.write((folder / name).read_bytes())
            except OSError:  # the client has gone
                pass

        def log_message(self, format: str, *args: Any) -> None: ...

    monkeypatch.setattr(shard_cache, "TRIES", 1)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    data = keys("", tmp_path, f"http://127.0.0.1:{server.server_port}")
    with pytest.raises(ConfigError, match=r"packed\.json cannot be read: ValueError: it has more than 67,108,864"):
        opened(data)
    endless[:] = ["train.names.npy"]
    with pytest.raises(ConfigError, match=r"names\.npy cannot be read: ValueError: it has more than [\d,]+ bytes"):
        opened(data)
    endless[:] = ["val-00000.bin"]
    images = opened(data, "val")
    with pytest.raises(ShardError, match=r"val-00000\.bin cannot be read: ValueError: it has more than"):
        images.read(0)
    server.shutdown()
    server.server_close()
