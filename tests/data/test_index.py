import multiprocessing
import os
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import clean_environ

from imagenet_ddp.data import folders, index, sources, walking
from imagenet_ddp.data.files import FileImages, split_off, walk
from imagenet_ddp.data.folders import class_folders
from imagenet_ddp.data.index import Cache, Index, find_cache, open_index
from imagenet_ddp.data.shared import SharedArrays
from imagenet_ddp.data.sources import open_source
from imagenet_ddp.schema import ConfigError, DataConfig


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "train"
    touch(folder, *(f"{name}/{number:03}.jpg" for name in ("cat", "dog", "owl") for number in range(5)))
    touch(folder, "dog/deep/er/0.png", "dog/deep.jpg")
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """Everything is worth remembering, and nothing has to settle: tests are short."""
    return Cache(tmp_path / "cache", head_start_s=0.0, settle_s=0.0)


def never(line: str) -> None:
    raise AssertionError(line)


def paths(found: Index) -> list[str]:
    return (
        [os.fsdecode(part.tobytes()) for part in np.split(found.arrays["text"], found.arrays["ends"][:-1])]
        if found
        else []
    )


def look(folder: Path, cache: Cache, say: Callable[[str], None] = never) -> Index:
    return open_index(folder, class_folders(folder), cache, say)


def is_remembered(found: Index) -> bool:
    assert ("from the index of" in found.origin) != ("walked in" in found.origin)
    return "from the index of" in found.origin


def test_the_second_time_comes_from_the_file(tree: Path, cache: Cache):
    first, second = look(tree, cache), look(tree, cache)
    assert "remembered in" in first.origin
    assert is_remembered(second)
    assert paths(first) == paths(second)
    assert paths(first)[5:8] == ["dog/000.jpg", "dog/001.jpg", "dog/002.jpg"]
    assert paths(first)[10:12] == ["dog/deep.jpg", "dog/deep/er/0.png"]
    for found in (first, second):
        assert found.arrays["targets"].tolist() == [0] * 5 + [1] * 7 + [2] * 5
        assert found.arrays["targets"].dtype == np.int64


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: (tree / "cat" / "new.jpg").touch(),
        lambda tree: (tree / "owl" / "004.jpg").unlink(),
        lambda tree: (tree / "dog" / "deep" / "er" / "0.png").rename(tree / "dog" / "deep" / "er" / "1.png"),
        lambda tree: touch(tree, "dog/deep/other/0.jpg"),
        lambda tree: touch(tree, "fox/0.jpg"),
        lambda tree: (tree / "cat").rename(tree / "cats"),
        lambda tree: ((tree / "cat").rename(tree / "x"), (tree / "dog").rename(tree / "cat"),
                      (tree / "x").rename(tree / "dog")),
        lambda tree: touch(tree, "README.txt"),
    ],
    ids=["added", "removed", "renamed deep", "new deep", "new class", "renamed class", "swapped", "beside"],
)  # fmt: skip
def test_a_changed_folder_is_walked_anew(tree: Path, cache: Cache, change: Callable[[Path], None]):
    look(tree, cache)
    assert is_remembered(look(tree, cache))
    change(tree)
    found = look(tree, cache)
    assert not is_remembered(found)
    assert paths(found) == paths(look(tree, Cache()))
    assert is_remembered(look(tree, cache))


def test_times_that_were_set_back_do_not_hide_a_change(tree: Path, cache: Cache):
    """As rsync -a and tar leave them."""
    os.utime(tree / "cat", (1e9, 1e9))
    look(tree, cache)
    (tree / "cat" / "new.jpg").touch()
    os.utime(tree / "cat", (1e9, 1e9))
    assert "cat/new.jpg" in paths(look(tree, cache))


def test_a_link_that_leads_elsewhere_now_is_noticed(tree: Path, cache: Cache, tmp_path: Path):
    touch(tmp_path / "v1", "a.jpg")
    touch(tmp_path / "v2", "b.jpg")
    (tree / "ant").symlink_to(tmp_path / "current")
    (tmp_path / "current").symlink_to("v1")
    assert "ant/a.jpg" in paths(look(tree, cache))
    (tmp_path / "current").unlink()
    (tmp_path / "current").symlink_to("v2")
    assert "ant/b.jpg" in paths(look(tree, cache))


def test_what_is_inside_a_file_does_not_matter(tree: Path, cache: Cache):
    look(tree, cache)
    (tree / "cat" / "000.jpg").write_bytes(b"other")
    assert is_remembered(look(tree, cache))


def test_a_folder_changed_just_before_is_not_trusted(tree: Path, tmp_path: Path):
    cache = Cache(tmp_path / "cache", head_start_s=0.0)
    assert look(tree, cache).origin.endswith("not remembered, because folders were changed just before")
    assert not is_remembered(look(tree, cache))
    time.sleep(index.SETTLE_S + 0.1)
    os.utime(tree / "cat", (4e9, 4e9))  # a time to come, set by somebody: its change is of now
    assert "changed just before" in look(tree, cache).origin
    time.sleep(index.SETTLE_S + 0.1)
    look(tree, cache)
    assert is_remembered(look(tree, cache))


def test_a_disk_without_times_is_not_trusted(tree: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch):
    real = os.stat
    monkeypatch.setattr(walking, "stamp_of", lambda path: (real(path).st_ino, 0, 0))  # as some mounted object stores
    assert look(tree, cache).origin.endswith("not remembered, because this disk keeps no times of folders")


def test_a_small_tree_needs_no_file(tree: Path, tmp_path: Path):
    found = look(tree, Cache(tmp_path / "cache"))
    assert (found.origin, len(found)) == ("", 17)
    assert not (tmp_path / "cache").exists()


def in_directory(whole: bytes, at: int, number: int) -> bytes:
    """Two bytes of the first member's entry in the directory of a zip (APPNOTE.TXT 4.3.12)."""
    at += whole.index(b"PK\x01\x02")
    return whole[:at] + number.to_bytes(2, "little") + whole[at + 2 :]


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda whole: b"", "No data left in file"),
        (lambda whole: b"PK\x03\x04", "File is not a zip file"),
        (lambda whole: whole[: len(whole) // 2], "File is not a zip file"),
        (lambda whole: whole.replace(b"cat/000.jpg", b"dat/000.jpg", 1), "Bad CRC-32 for file 'text.npy'"),
        (lambda whole: in_directory(whole, 8, 1), "File 'text.npy' is encrypted"),  # bit 0 of the flags
        (lambda whole: in_directory(whole, 10, 98), "That compression method is not supported"),  # PPMd
        (lambda whole: b'{"no": "npz"}', "pickle"),
    ],
    ids=["empty", "begun", "half", "flipped", "encrypted", "other method", "no zip"],
)
def test_a_broken_file_is_said_and_written_anew(tree: Path, cache: Cache, damage: Callable[[bytes], bytes], why: str):
    expected = paths(look(tree, cache))
    assert cache.folder
    [file] = cache.folder.glob("*.npz")
    file.write_bytes(damage(file.read_bytes()))
    said: list[str] = []
    assert paths(look(tree, cache, said.append)) == expected
    assert len(said) == 1
    assert said[0].startswith(f"The index {file} cannot be used (") and why in said[0]
    assert said[0].endswith(f"): {tree} is walked anew.")
    assert is_remembered(look(tree, cache))


def test_an_index_of_other_extensions_or_classes_is_another(tree: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch):
    look(tree, cache)
    assert len(open_index(tree, ["dog", "cat"], cache, never)) == 12
    monkeypatch.setattr(index, "EXTENSIONS", frozenset([".jpg"]))
    assert not is_remembered(look(tree, cache))


def test_a_cache_that_cannot_be_written_costs_a_walk(tree: Path, tmp_path: Path):
    (tmp_path / "file").touch()
    for _ in range(2):
        found = look(tree, Cache(tmp_path / "file" / "cache", head_start_s=0.0, settle_s=0.0))
        assert len(found) == 17
        assert "not remembered: " in found.origin
        assert "Not a directory" in found.origin


def test_no_draft_is_left_and_old_files_leave(tree: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(index, "KEPT", 2)
    for classes in (["cat"], ["dog"], ["owl"]):
        open_index(tree, classes, cache, never)
        time.sleep(0.02)
    assert cache.folder
    names = sorted(path.suffix for path in cache.folder.iterdir())
    assert names == [".lock", ".lock", ".npz", ".npz"]
    assert not is_remembered(open_index(tree, ["cat"], cache, never))
    assert is_remembered(open_index(tree, ["owl"], cache, never))


def test_where_indexes_are_kept():
    assert find_cache(True, {"XDG_CACHE_HOME": "/x"}).folder == Path("/x/imagenet_ddp")
    assert find_cache(True, {}) == Cache(reason="neither HOME nor XDG_CACHE_HOME names a folder")
    assert find_cache(False, {"HOME": "/x"}) == Cache(reason="data.index_cache=false")


def test_what_is_left_out_is_counted(tmp_path: Path, cache: Cache):
    touch(
        tmp_path / "train",
        *("cat/a.jpg", "cat/._a.jpg", "cat/b.txt", "cat/deep/c.xml", "cat/deep/d.txt", "cat/noext", "cat/.git/x.jpg"),
        *("dog/a.jpg", "loose.jpg", "list.csv", ".DS_Store"),
    )
    os.mkfifo(tmp_path / "train" / "dog" / "pipe.jpg")
    for found in (look(tmp_path / "train", cache), look(tmp_path / "train", cache)):
        assert paths(found) == ["cat/a.jpg", "dog/a.jpg"]
        assert found.without() == (
            "9 files left out: 1 beside the class folders, 2 hidden, 1 neither files nor folders, 5 not images by "
            "extension (.txt, .csv, .xml, none)"
        )
    assert Index(look(tmp_path, Cache()).arrays, Counter()).without() == ""


def test_the_log_says_what_is_left_out_and_where_the_index_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    touch(tmp_path, "train/cat/a.jpg", "train/cat/a.txt", "val/cat/b.jpg")
    keys = asdict(DataConfig(name="imagefolder", root=str(tmp_path)))
    left_out = f"In {tmp_path}/train, 1 file left out: 1 not images by extension (.txt)."
    assert open_source(keys, 0, {}).notes == [left_out]  # walked at once: no word about the index
    real = sources.find_cache
    monkeypatch.setattr(sources, "find_cache", lambda *asked: replace(real(*asked), head_start_s=0.0))
    notes = open_source({**keys, "index_cache": False}, 0, {}).notes
    assert notes[-1] == left_out
    assert [note.rpartition(", ")[2] for note in notes[:-1]] == ["not remembered: data.index_cache=false."] * 2
    assert notes[0].startswith(f"Index of {tmp_path}/train: 1 images, walked in 0.0 s, ")


def test_a_late_disk_is_asked_in_many_threads(tree: Path, monkeypatch: pytest.MonkeyPatch):
    for number in range(40):
        touch(tree, f"more{number}/a/b.jpg")
    real, late_s = os.scandir, 0.02
    expected = paths(look(tree, Cache()))

    def late(path: str):
        time.sleep(late_s)
        return real(path)

    monkeypatch.setattr(folders.os, "scandir", late)
    begin = time.monotonic()
    assert paths(look(tree, Cache())) == expected
    assert time.monotonic() - begin < 0.5 * (86 * late_s)


def test_links_are_followed_where_they_lead_out_of_the_split(tree: Path, tmp_path: Path):
    touch(tmp_path, "big/fox/0.jpg", "big/hen/0.jpg", "other/1.jpg", "other/deep/2.jpg")
    for name in ("fox", "hen"):
        (tree / name).symlink_to(tmp_path / "big" / name)
    links = [
        ("fox", "big/hen"),
        ("hen", "big/fox"),
        ("hen", "train"),
        ("owl", "big/hen/x"),
        ("owl", "other"),
        ("cat", "other"),
    ]
    for number, (name, target) in enumerate(links):
        (tree / name / f"link{number}").symlink_to(tmp_path / target)
    (tree / "cat" / "again").symlink_to(tmp_path / "other")
    (tmp_path / "other" / "deep" / "loop").symlink_to(tmp_path / "other")
    for late_s in (walking.LATE_S, 0.0):  # 0.0: by threads
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(walking, "LATE_S", late_s)
            found = paths(look(tree, Cache()))
        assert [path for path in found if "/0" not in path and "deep" not in path] == [
            "cat/again/1.jpg",
            "owl/link4/1.jpg",
        ]
        assert [path for path in found if path[:3] in ("fox", "hen")] == ["fox/0.jpg", "hen/0.jpg"]
        assert [path for path in found if path.endswith("2.jpg") and "deep" in path and "00" not in path] == [
            "cat/again/deep/2.jpg",
            "owl/link4/deep/2.jpg",
        ]


def test_a_class_without_a_folder_has_no_images_and_the_folder_may_be_missing(tree: Path, cache: Cache):
    found = open_index(tree, ["ant", "cat", "zebra"], cache, never)
    assert found.arrays["targets"].tolist() == [1] * 5
    assert is_remembered(open_index(tree, ["ant", "cat", "zebra"], cache, never))
    touch(tree, "ant/0.jpg")
    assert open_index(tree, ["ant", "cat", "zebra"], cache, never).arrays["targets"].tolist() == [0] + [1] * 5
    assert len(open_index(tree / "nowhere", ["cat"], cache, never)) == 0


def test_errors_of_the_disk_are_said(tree: Path, monkeypatch: pytest.MonkeyPatch):
    def stale(path: str):
        raise OSError(116, "Stale file handle", path)

    monkeypatch.setattr(folders.os, "scandir", stale)
    with pytest.raises(ConfigError, match=rf"{tree}/? is expected to be readable, but: Stale file handle\. HINT: "):
        open_index(tree, ["cat"], Cache(), never)


# ---- several processes ---------------------------------------------------------------------------------------------

RANK = """
    import os, sys, time
    from pathlib import Path
    from imagenet_ddp.data import folders, index, sources, walking
    from imagenet_ddp.data.index import Cache, open_index

    folder, cache, late_s, wait_s = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    real, number = os.scandir, 0
    def late(path):
        global number
        number += 1
        time.sleep(late_s)
        return real(path)
    os.scandir = late
    folders.NUM_THREADS = 1
    print("begin", flush=True)
    sys.stdin.readline()
    classes = folders.class_folders(folder)
    found = open_index(folder, classes, Cache(cache, head_start_s=0.1, settle_s=0.0, wait_s=wait_s), print)
    print(len(found), number, found.origin)
"""


def start_ranks(number: int, *arguments: object) -> list["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", textwrap.dedent(RANK), *map(str, arguments)]
    ranks = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean_environ())
        for _ in range(number)
    ]
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "begin\n"
    return ranks


def test_one_process_walks_and_the_others_wait(tree: Path, tmp_path: Path):
    for number in range(30):
        touch(tree, f"more{number}/a.jpg")
    ranks = start_ranks(3, tree, tmp_path / "cache", 0.02, 60)
    said = [rank.communicate("\n", timeout=60)[0] for rank in ranks]
    assert [line.split()[0] for line in said] == ["47"] * 3
    # its classes are listed, then 36 folders and theirs; who waits has walked for the head start alone
    walked = [line for line in said if "remembered in" in line]
    waited = [line for line in said if "from the index of" in line]
    assert (len(walked), len(waited)) == (1, 2)
    assert all(int(line.split()[1]) < 30 for line in waited)
    assert int(walked[0].split()[1]) == 38


def test_the_death_of_the_one_that_walks_and_too_long_a_wait(tree: Path, tmp_path: Path):
    for number in range(30):
        touch(tree, f"more{number}/a.jpg")
    [slow] = start_ranks(1, tree, tmp_path / "cache", 0.3, 60)
    assert slow.stdin is not None
    slow.stdin.write("\n")
    slow.stdin.flush()
    deadline = time.monotonic() + 20
    while not list((tmp_path / "cache").glob("*.lock")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.2)
    [impatient] = start_ranks(1, tree, tmp_path / "cache", 0.01, 0.5)
    said = impatient.communicate("\n", timeout=60)[0]
    assert f"Another process has walked {tree} for more than 0.5 s: this one walks it too." in said
    assert said.splitlines()[-1].startswith("47 ")
    [patient] = start_ranks(1, tree, tmp_path / "cache", 0.01, 60)
    assert patient.stdin is not None
    patient.stdin.write("\n")
    patient.stdin.flush()
    time.sleep(0.5)
    slow.kill()
    said = patient.communicate(timeout=60)[0]
    assert said.startswith("47 ")
    slow.communicate()


# ---- in memory -----------------------------------------------------------------------------------------------------


def many(number: int) -> FileImages:
    names = [f"n{i // 1000:08}/n{i // 1000:08}_{i}.JPEG" for i in range(number)]
    return FileImages.of(Path("/data"), names, np.arange(number) // 1000)


def _in_a_child(images: FileImages, part: FileImages, queue: "multiprocessing.Queue[object]") -> None:
    rows = (0, 5, len(images) - 1)
    queue.put(([images.path(i) for i in rows], [part.path(i) for i in range(3)], part.targets[:3].tolist()))
    queue.put((_private_kib(), images._arrays._fd is not None, images.targets.flags.writeable))


def _private_kib() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory that has no name is Linux's")
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_started_process_has_the_same_index_not_another(method: str):
    images = many(20_000)
    part = images.subset(np.array([19_999, 3, 7_000])).subset(np.array([2, 0, 1]))
    context: Any = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=_in_a_child, args=(images, part, queue))
    process.start()
    whole, some, targets = queue.get(timeout=60)
    _, is_shared, writeable = queue.get(timeout=60)
    process.join()
    assert whole == [images.path(0), images.path(5), images.path(19_999)]
    assert some == [images.path(7_000), images.path(19_999), images.path(3)]
    assert targets == [7, 19, 0]
    assert is_shared
    assert not writeable


def test_other_targets_go_along():
    """As evaluation sets them, against a checkpoint whose classes stand in another order."""
    import pickle

    images = many(2_000)
    images.targets = 1 - images.targets
    assert pickle.loads(pickle.dumps(images)).targets[:3].tolist() == [1, 1, 1]


def test_arrays_are_equal_and_closed():
    arrays = {"a": np.arange(50_000), "b": np.zeros((0, 3), dtype=np.int64), "c": np.arange(6, dtype=np.uint8)[::2]}
    shared = SharedArrays(arrays)
    for name, array in arrays.items():
        assert np.array_equal(shared[name], array)
        assert shared[name].dtype == array.dtype
        assert not shared[name].flags.writeable
    fd = shared._fd
    del shared
    if fd is not None:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_a_split_off_large_index_is_quick(tree: Path):
    images = many(200_000)
    begin = time.monotonic()
    train, val = split_off(images, 0.1, 0)
    assert (len(train), len(val)) == (180_000, 20_000)
    assert time.monotonic() - begin < 5  # a path at a time took 4 µs × 200,000 and more
    assert walk(tree, ["cat"]).path(0) == str(tree / "cat" / "000.jpg")
