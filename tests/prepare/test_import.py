"""prepare=import: what is in Parquet and tar files is packed as it is, after any interruption; what strangers send is
refused or left out."""

import csv
import hashlib
import io
import json
import os
import shutil
import signal
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import fake_imagenet
from helpers.fake_imagenet import CLASSES, tar
from helpers.forked_commands import start_code
from PIL import Image
from torchvision.datasets import imagenet as torchvision_imagenet

from imagenet_ddp.data.sources import pack_format
from imagenet_ddp.data.sources.base import Source
from imagenet_ddp.data.sources.packed import PackedImages
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.prepare import options as prepare_options
from imagenet_ddp.prepare import pack
from imagenet_ddp.prepare.archives import checksums, devkit

arrow = pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
parquet = pytest.importorskip("pyarrow.parquet")

NAMES = [CLASSES[3], CLASSES[1], CLASSES[4]]  # in the order of the WordNet ids
KEPT = ("prepare.short_side=0",)  # files are packed byte for byte
SMALL_SHARDS = ("prepare.form=raw", "prepare.short_side=0", "prepare.shard_mib=1")
FEATURES = {"image": {"_type": "Image"}, "label": {"names": NAMES, "_type": "ClassLabel"}}


def jpeg(seed: int) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 255, (4, 5, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((300, 200 + seed), Image.Resampling.BICUBIC).save(buffer, "JPEG")
    return buffer.getvalue()


TRAIN = [(jpeg(number), number % 3) for number in range(24)]
VAL = [(jpeg(100 + number), (2 * number) % 3) for number in range(6)]


def write_parquet(
    path: Path,
    rows: Sequence[tuple[bytes | None, int]],
    features: Any = FEATURES,
    name: str = "%d.JPEG",
    rows_per_group: int = 5,
) -> None:
    """As datasets writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
    images = [{"bytes": data, "path": name % number} for number, (data, _) in enumerate(rows)]
    table = arrow.table({
        "image": arrow.array(images, kind), "label": arrow.array([label for _, label in rows], arrow.int64()),
    })  # fmt: skip
    metadata = {"huggingface": json.dumps({"info": {"features": features}})} if features else None
    parquet.write_table(table.replace_schema_metadata(metadata), path, row_group_size=rows_per_group)


@pytest.fixture
def shards_of_datasets(tmp_path: Path) -> Path:
    folder = tmp_path / "archives"
    write_parquet(folder / "data/train-00000-of-00002.parquet", TRAIN[:13])
    write_parquet(folder / "data/train-00001-of-00002.parquet", TRAIN[13:])
    write_parquet(folder / "data/validation-00000-of-00001.parquet", VAL)
    write_parquet(folder / "data/test-00000-of-00001.parquet", [(jpeg(200), -1)])
    return folder


@pytest.fixture
def tars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The archives of ImageNet, with a few images."""
    folder = tmp_path / "archives"
    folder.mkdir()
    of_class = [{f"{name}_{k}.JPEG": data for k, (data, label) in enumerate(TRAIN) if NAMES[label] == name}
                for name in NAMES]  # fmt: skip
    inner = {f"{name}.tar": tar(images) for name, images in zip(NAMES, of_class, strict=True)}
    numbers = {name: number for number, name in CLASSES.items()}
    contents = {
        fake_imagenet.TRAIN: tar(inner),
        fake_imagenet.VAL: tar({f"ILSVRC2012_val_{k:08}.JPEG": data for k, (data, _) in enumerate(VAL, 1)}),
        fake_imagenet.DEVKIT: fake_imagenet.devkit("".join(f"{numbers[NAMES[label]]}\n" for _, label in VAL)),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    meta = {name: (name, hashlib.md5(data, usedforsecurity=False).hexdigest()) for name, data in contents.items()}
    monkeypatch.setattr(torchvision_imagenet, "ARCHIVE_META", meta)
    monkeypatch.setattr(devkit, "class_table", lambda: [[name, "", str(key)] for key, name in CLASSES.items()])
    return folder


def argv(folder: Path, out: Path, *options: str) -> list[str]:
    typed = ["prepare=import", f"archive_dir={folder}", f"out={out}", "prepare.num_workers=1", "data.decoder=pillow"]
    return [*typed, *options]


def looked_at(folder: Path, out: Path, *options: str) -> tuple[prepare_options.Plan, Source]:
    plan = prepare_options.read(argv(folder, out, *options), {})
    assert plan.scan is not None and plan.scan.open is not None
    return plan, plan.scan.open()


def imports(folder: Path, out: Path, *options: str) -> None:
    assert pack.run(prepare_options.read(argv(folder, out, *options), {})) == 0


def refused(folder: Path, *options: str) -> str:
    with pytest.raises(ConfigError) as caught:
        prepare_options.read(argv(folder, folder.parent / "out", *options), {})
    assert not (folder.parent / "out").exists()
    return str(caught.value)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def packed(out: Path, split: str = "train") -> list[tuple[bytes, str]]:
    """Bytes and class of each image, in any order."""
    manifest = pack_format.read_manifest(out)
    images = PackedImages(out, split, manifest.splits[split], manifest.form)
    found = [(images.encoded(index), manifest.classes[images.targets[index]]) for index in range(len(images))]
    return sorted((data, name) for data, name in found if data)


def given(rows: list[tuple[bytes, int]]) -> list[tuple[bytes, str]]:
    return sorted((data, NAMES[label]) for data, label in rows)


def test_each_image_of_parquet_files_is_packed(
    shards_of_datasets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "out"
    imports(shards_of_datasets, out, *KEPT)
    assert packed(out) == given(TRAIN) and packed(out, "val") == given(VAL)
    said = capsys.readouterr()
    assert "24 train and 6 val images packed" in said.out and "MB/s read" in said.out
    assert "The images of test are left out." in said.err
    with (out / "classes.csv").open(encoding="utf-8-sig", newline="") as file:
        assert [*csv.reader(file)] == [["class", "label", "train", "val"], *([name, name, "8", "2"] for name in NAMES)]
    sums = {
        str(path.relative_to(shards_of_datasets)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(shards_of_datasets.rglob("*.parquet"))
    }
    assert (out / "SHA256SUMS").read_text() == "".join(f"{sha}  {name}\n" for name, sha in sums.items())
    names = PackedImages(out, "train", pack_format.read_manifest(out).splits["train"], "jpeg").names
    assert names[13] == "data/train-00001-of-00002/0/0.JPEG"


@pytest.mark.parametrize("labels", ["devkit", "kaggle", "table"])
def test_each_image_of_tar_files_is_packed(labels: str, tars: Path, tmp_path: Path):
    out, options = tmp_path / "out", list[str]()
    rows = [(f"ILSVRC2012_val_{number:08}", NAMES[label]) for number, (_, label) in enumerate(VAL, 1)]
    if labels != "devkit":
        (tars / fake_imagenet.DEVKIT).unlink()
    if labels == "kaggle":
        lines = ["ImageId,PredictionString", *(f"{name},{key} 1 2 3 4 {key} 5 6 7 8" for name, key in rows)]
        (tars / "LOC_val_solution.csv").write_text("\n".join(lines))
    if labels == "table":
        assert "put ILSVRC2012_devkit_t12.tar.gz or Kaggle's LOC_val_solution.csv beside" in refused(tars)
        (tmp_path / "val.csv").write_text("path,label\n" + "".join(f"{name}.JPEG,{key}\n" for name, key in rows))
        options = [f"labels={tmp_path / 'val.csv'}"]
    plan, source = looked_at(tars, out, *KEPT, *options)
    assert source.val is not None and source.classes == NAMES
    assert [(source.val.encoded(index), int(source.val.targets[index])) for index in range(6)] == VAL
    if labels == "devkit":
        assert pack.run(plan) == 0
        assert packed(out) == given(TRAIN) and packed(out, "val") == given(VAL)


def test_an_archive_of_imagenet_with_another_md5_is_refused(tars: Path, tmp_path: Path):
    content = bytearray((tars / fake_imagenet.VAL).read_bytes())
    content[-1] ^= 1  # in the padding
    (tars / fake_imagenet.VAL).write_bytes(content)
    with pytest.raises(ConfigError, match=r"must have their published MD5, but \S*img_val.tar have not. Hint: downl"):
        imports(tars, tmp_path / "out")


def test_a_row_with_folders_names_only_images_in_them(tmp_path: Path):
    folder = tmp_path / "archives"
    folder.mkdir()
    (folder / "val.tar").write_bytes(tar({"x/a/1.jpg": VAL[0][0], "x/b/1.jpg": VAL[1][0]}))
    table = tmp_path / "labels.csv"
    table.write_text("path,label\na/1.jpg,cat\nb/1.jpg,dog\nb/2.jpg,dog\n")
    source = looked_at(folder, tmp_path / "out", f"labels={table}")[1]
    assert source.val is not None and [source.classes[each] for each in source.val.targets] == ["cat", "dog"]
    assert source.notes[0] == "The labels of 1 image are not used: the archives have no such image."
    table.write_text("path,label\n1.jpg,cat\n1.jpg,dog\n2.jpg,\n")
    assert "a path of its own, and a label, but 2 images do not: 1.jpg (dog), 2.jpg ()" in refused(
        folder, f"labels={table}"
    )


def test_folders_of_a_tar_in_a_tar_are_its_classes(tmp_path: Path):
    """Shards have any name; where they have folders, these are the classes."""
    for split in ("train", "val"):
        shards = {f"part-{k}.tar": tar({f"{name}/{k}.jpg": TRAIN[k][0] for name in ("cat", "dog")}) for k in range(2)}
        (tmp_path / f"{split}.tar").write_bytes(tar(shards))
    _, source = looked_at(tmp_path, tmp_path / "out")
    assert (
        source.train is not None and source.classes == ["cat", "dog"] and source.train.targets.tolist() == [0, 1, 0, 1]
    )


def test_a_checksum_is_that_of_the_file_also_after_a_copy_that_keeps_its_time(tmp_path: Path):
    archive, draft = tmp_path / "train.tar", tmp_path / "draft"
    draft.mkdir()
    for content in (b"damaged", b"correct"):
        (tmp_path / "new").write_bytes(content)
        os.utime(tmp_path / "new", ns=(1, 1))
        (tmp_path / "new").replace(archive)
        digest = hashlib.sha256(content).hexdigest()
        assert checksums.sums_of([archive], tmp_path, draft).decode() == f"{digest}  train.tar\n"


# ---- interrupted -----------------------------------------------------------------------------------------------------


# The command, which is killed when the record of a shard is written: before or after.
KILLED = """
import signal
from imagenet_ddp.prepare import options, pack, shards

name, is_before, *words = args
save = shards.Shard.save

def save_or_die(self, folder):
    if self.file.file != name or not is_before:
        save(self, folder)
    if self.file.file == name:
        os.kill(os.getpid(), signal.SIGKILL)

shards.Shard.save = save_or_die
pack.run(options.read(words, {}))
"""


@pytest.mark.slow
def test_killed_it_goes_on_after_the_finished_shards(
    shards_of_datasets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    imports(shards_of_datasets, tmp_path / "whole", *SMALL_SHARDS)
    whole = contents(tmp_path / "whole")
    assert sum(name.startswith("train-") for name in whole) >= 4
    for name, before in (("train-00001.bin", True), ("train-00002.bin", False), ("val-00000.bin", True)):
        words = argv(shards_of_datasets, tmp_path / "out", *SMALL_SHARDS)
        killed = start_code(KILLED, name, before, *words)
        assert killed.wait(120) == -signal.SIGKILL, killed.err
        with pytest.raises(ConfigError, match="packing was interrupted"):
            pack_format.read_manifest(tmp_path / "out")
    damaged = tmp_path / "out" / pack_format.WORK / "train-00001.bin"  # by a power cut
    damaged.write_bytes(bytes(damaged.stat().st_size))
    emptied = damaged.with_name("train-00000.bin")
    emptied.with_name(f".{emptied.name}.npz").write_bytes(b"")
    finished = {path.name: path.stat().st_mtime_ns for path in damaged.parent.glob("train-*.bin")}
    del finished[damaged.name], finished[emptied.name]
    capsys.readouterr()
    imports(shards_of_datasets, tmp_path / "out", *SMALL_SHARDS)
    assert "of 30 images are packed already." in capsys.readouterr().err
    assert contents(tmp_path / "out") == whole
    assert {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in finished} == finished


# ---- from strangers --------------------------------------------------------------------------------------------------


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_the_names_and_links_of_a_strangers_tar_touch_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder, out = tmp_path / "archives", tmp_path / "out"
    folder.mkdir()
    (tmp_path / "secret.jpg").write_bytes(TRAIN[20][0])
    for file, rows in (("train.tar", TRAIN[:6]), ("val.tar", VAL[:3])):
        with tarfile.open(folder / file, "w") as archive:
            for kind, target in (
                (tarfile.SYMTYPE, str(tmp_path / "secret.jpg")),
                (tarfile.LNKTYPE, "../secret.jpg"),
                (tarfile.FIFOTYPE, ""),
                (tarfile.CHRTYPE, ""),
            ):
                archive.addfile(special("cat/link.jpg", kind, target))
            for number, (data, _) in enumerate(rows):
                top = ("../../..", "/etc", ".", "\x1b[2J" * 60)[number % 4]
                info = tarfile.TarInfo(f"{top}/{'cat' if number % 2 else 'dog'}/{number}\x1b[2J.jpg")
                content = data if number else b"no image"
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    imports(folder, out, *KEPT, "data.bad_image_limit=2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archives", "out", "secret.jpg"]
    assert packed(out) == sorted((data, "cat" if k % 2 else "dog") for k, (data, _) in enumerate(TRAIN[:6]) if k)
    said = capsys.readouterr()
    assert len(packed(out, "val")) == 2 and "(2 left out)" in said.out
    assert "4 links to images left out" in said.out + said.err
    assert len((out / "bad_images.csv").read_text().splitlines()) == 3


def huge_header(kind: bytes) -> bytes:
    """A header that declares a name of 1 TiB."""
    info = tarfile.TarInfo("name")
    info.type, info.size = kind, 2**40
    return info.tobuf(tarfile.GNU_FORMAT)


GOOD = tar({"cat/1.jpg": TRAIN[0][0], "dog/2.jpg": TRAIN[1][0]})
IMAGE_OF_1_TIB = tarfile.TarInfo("cat/1.jpg")
IMAGE_OF_1_TIB.size = 2**40
DAMAGED_TARS = {
    "name": huge_header(tarfile.GNUTYPE_LONGNAME),
    "pax": huge_header(tarfile.XHDTYPE),
    "sparse": huge_header(tarfile.GNUTYPE_SPARSE),
    "size": IMAGE_OF_1_TIB.tobuf(tarfile.GNU_FORMAT),
    "checksum": GOOD[:148] + b"0000000\0" + GOOD[156:],
    "cut": GOOD[: len(TRAIN[0][0])],
    "gzip": b"\x1f\x8b" + bytes(2000),
    "empty": b"",
}


@pytest.mark.parametrize("kind", DAMAGED_TARS)
def test_a_damaged_tar_is_refused(kind: str, tmp_path: Path):
    folder = tmp_path / "archives"
    folder.mkdir()
    (folder / "val.tar").write_bytes(GOOD)
    (folder / "train.tar").write_bytes(DAMAGED_TARS[kind])
    (folder / "train_2.tar").write_bytes(GOOD[:-20_000])
    found = refused(folder)
    assert found.count("must be a whole tar file, but cannot be read") == 2, found
    assert found.count("Hint: ") == 2


def rewritten(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        parquet.write_table(change(parquet.read_table(path)), path)

    return write


DAMAGED_PARQUET: dict[str, tuple[Callable[[Path], Any], str]] = {
    "text": (lambda path: path.write_text("no Parquet file"), "must be a Parquet file of images, but cannot be read"),
    "cut": (lambda path: os.truncate(path, path.stat().st_size - 100), "but cannot be read"),
    "empty": (lambda path: path.write_bytes(b""), "but cannot be read"),
    "no_image": (rewritten(lambda table: table.select(["label"])), "one column for the image, but its columns are lab"),
    "text_label": (
        rewritten(lambda table: table.set_column(1, "label", table["label"].cast("string"))),
        "must have the same columns",
    ),
    "two_images": (
        rewritten(lambda table: table.append_column("mask", table["image"])),
        "must have one column for the image, but has image, mask. Hint: set +data.args.image=COLUMN",
    ),
    "metadata": (rewritten(lambda table: table.replace_schema_metadata({"huggingface": "[["})), "cannot be read"),
    "features": (
        rewritten(lambda table: table.replace_schema_metadata({"huggingface": '{"info": 1}'})), "cannot be read"
    ),
    "label": (lambda path: write_parquet(path, [(jpeg(0), 3), (jpeg(0), -5)]), "but 2 images do not: "),
    "names": (
        lambda path: write_parquet(path, VAL, {"label": {"_type": "ClassLabel", "names": ["a", "b"]}}),
        "must name the same classes",
    ),
    "rows": (
        lambda path: write_parquet(path, [(None, 0)] * 10_000, name="%.0s", rows_per_group=10_000),
        "must have an image in each row, but has 10,000 rows in",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGED_PARQUET)
def test_a_damaged_parquet_file_is_refused(kind: str, shards_of_datasets: Path):
    damage, message = DAMAGED_PARQUET[kind]
    path = shards_of_datasets / "data/validation-00000-of-00001.parquet"
    damage(path)
    found = refused(shards_of_datasets)
    assert message in found and "Hint: " in found and "Traceback" not in found


def test_a_missing_or_damaged_image_of_a_parquet_file_is_listed(
    shards_of_datasets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = shards_of_datasets / "data/train-00000-of-00002.parquet"
    write_parquet(path, [(None, 0), (b"", 1), (b"\xff\xd8no image", 2), *TRAIN[3:13]], name="../../%d.JPEG")
    content = bytearray(path.read_bytes())
    begin = parquet.ParquetFile(path).metadata.row_group(1).column(0).dictionary_page_offset
    content[begin : begin + 40] = b"\xff" * 40  # the headers of five images
    path.write_bytes(content)
    imports(shards_of_datasets, tmp_path / "out", *KEPT, "data.bad_image_limit=8")
    assert packed(tmp_path / "out") == given([*TRAIN[3:5], *TRAIN[10:]])
    with (tmp_path / "out/bad_images.csv").open(encoding="utf-8-sig", newline="") as file:
        found = [*csv.reader(file)][1:]
    assert [row[0].rpartition("/")[2] for row in found] == [f"{k}.JPEG" for k in (0, 1, 2, 5, 6, 7, 8, 9)]
    assert "its part of the file is damaged" in found[3][1]
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(RunError, match=r"at most 7 images may be unreadable .* Hint: look at these files in the arch"):
        imports(shards_of_datasets, tmp_path / "out", *KEPT, "data.bad_image_limit=7")


def test_a_value_that_a_small_file_repeats_is_in_memory_once(shards_of_datasets: Path, tmp_path: Path):
    """A file of less than 1 MB with 200 times the same 500 kB."""
    path = shards_of_datasets / "data/train-00000-of-00002.parquet"
    write_parquet(path, [(bytes(500_000), 0)] * 200, rows_per_group=200)
    assert path.stat().st_size < 1_000_000
    images = looked_at(shards_of_datasets, tmp_path / "out")[1].train
    assert images is not None
    before = arrow.total_allocated_bytes()
    for index in (0, 1, 199):
        assert images.encoded(index) == bytes(500_000)
        assert arrow.total_allocated_bytes() - before < 20_000_000


def test_all_mistakes_are_one_list(shards_of_datasets: Path):
    for path in shards_of_datasets.rglob("*.parquet"):
        path.write_text("no Parquet file")
    with pytest.raises(ConfigError) as caught:
        prepare_options.read(["prepare=import", f"archive_dir={shards_of_datasets}", "prepare.quality=0"], {})
    found = str(caught.value)
    assert found.count("must be a Parquet file of images") == 4
    assert "out must be the folder to write" in found and "prepare.quality must be" in found


def test_other_archives_are_refused_with_what_to_do(shards_of_datasets: Path, tmp_path: Path):
    (shards_of_datasets / "val.tar").write_bytes(GOOD)
    assert "Parquet files or tar files, got both" in refused(shards_of_datasets)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "must have .parquet or .tar files, but" in refused(empty)
    (empty / "val;touch x.tar.gz").touch()
    assert f"Hint: unpack it first: `gunzip '{empty}/val;touch x.tar.gz'`" in refused(empty)
    (empty / "train.tar").write_bytes(GOOD)
    assert "must have validation images" in refused(empty)


def test_a_full_disk_is_foreseen(shards_of_datasets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    free = shutil._ntuple_diskusage(10**9, 10**9, 1_000_000)  # type: ignore[attr-defined]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    with pytest.raises(ConfigError, match="must have 6 MiB free, got 0 MiB in"):
        imports(shards_of_datasets, tmp_path / "out", *SMALL_SHARDS)


def test_names_and_labels_that_would_shift_or_merge_classes_are_refused(tmp_path: Path):
    (tmp_path / "names").mkdir()
    for kind, names in (("null", ["cat", None, "dog"]), ("number", ["cat", 5, "dog"])):
        folder = tmp_path / "names" / kind
        folder.mkdir()
        for split, rows in (("train", TRAIN[:6]), ("validation", VAL)):
            write_parquet(folder / f"{split}.parquet", rows, {"label": {"_type": "ClassLabel", "names": names}})
        assert "must name its classes in the metadata" in refused(folder)


def test_missing_and_double_files_are_noticed(shards_of_datasets: Path, tmp_path: Path):
    first = shards_of_datasets / "data/train-00000-of-00002.parquet"
    _, source = looked_at(shards_of_datasets, tmp_path / "out")
    assert not source.doubts
    first.rename(first.with_name("train-00000-of-00003.parquet"))
    _, source = looked_at(shards_of_datasets, tmp_path / "out")
    assert "1 of 3 files are there" in " ".join(source.doubts) and "1 of 2 files" in " ".join(source.doubts)
    draft = tmp_path / "draft"
    draft.mkdir()
    copies = [tmp_path / "a.tar", tmp_path / "b.tar"]
    for copy in copies:
        copy.write_bytes(GOOD)
    with pytest.raises(ConfigError, match=r"b\.tar must be another file than a\.tar"):
        checksums.sums_of(copies, tmp_path, draft)
    copies[0].write_bytes(GOOD[:-512])
    with pytest.raises(RunError, match="has changed"):
        checksums.require_unchanged(copies, tmp_path, draft)
