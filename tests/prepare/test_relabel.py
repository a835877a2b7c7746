"""prepare=relabel: what a person decides is done to folders and tables, can be undone exactly, and nothing is lost."""

import csv
import errno
import functools
import io
import itertools
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from imagenet_ddp.curation.decision_lists import Decision, downloads, earlier_decisions
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.prepare import folder_labels, label_changes, relabel
from imagenet_ddp.prepare import options as prepare_options

HEADER = ["path", "label", "suggested", "score", "split", "decision"]
FOLDER = ("data=imagefolder", "data.root=pets")
TABLE = ("data=table", "data.root=pets.csv", "data.val_fraction=0.5")
# with bytes that are not UTF-8, é as two characters (as macOS stores it), blanks and a sub-folder
NAMES = ("1.jpg", "2.jpg", "caf\udce9.jpg", "e\u0301te\u0301 2.jpg", "2024/a b.jpg")


@pytest.fixture(autouse=True)
def pets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of three classes, whose files contain their first path."""
    monkeypatch.chdir(tmp_path)
    for split, name, image in itertools.product(("train", "val"), ("chat", "dog", "été"), NAMES):
        path = Path("pets", split, name, image)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(ascii(str(path)), encoding="utf-8")
    (tmp_path / "outside.jpg").write_text("not of the pets")
    return tmp_path


def files(root: str = ".") -> dict[str, str]:
    return {
        str(path): path.read_text("utf-8", "surrogateescape")
        for path in sorted(Path(root).rglob("*"))
        if path.is_file()
    }


def decide(*rows: tuple[str, ...], delimiter: str = ",", bom: str = "") -> None:
    """Write a list: (path, label, suggested, decision) of each row."""
    text = io.StringIO(bom, newline="")
    text.seek(0, io.SEEK_END)
    writer = csv.writer(text, delimiter=delimiter)
    writer.writerows([HEADER, *((path, old, new, "0,1", "train", word) for path, old, new, word in rows)])
    Path("list.csv").write_bytes(text.getvalue().encode(errors="backslashreplace"))


@functools.cache
def planned(*options: str) -> prepare_options.Plan:
    return prepare_options.read(["prepare=relabel", "decisions=list.csv", *options], {})


def prepare(*options: str) -> None:
    assert relabel.run(planned(*options)) == 0


def refused(*options: str) -> list[str]:
    before = files()
    with pytest.raises(ConfigError) as caught:
        prepare(*options)
    assert files() == before, "nothing is touched"
    return [*map(str, caught.value.mistakes)]


EXAMPLE = (
    ("pets/train/chat/1.jpg", "chat", "dog", "Move"),  # dog has one of this name
    ("pets/train/chat/caf\udce9.jpg", "chat", "dog", "été"),
    ("pets/val/chat/e\u0301te\u0301 2.jpg", "chat", "dog", "keep"),
    ("train/dog/2024/a b.jpg", "dog", "e\u0301te\u0301", "move"),
    ("pets/train/dog/2.jpg", "dog", "chat", ""),
)


@pytest.mark.parametrize(("delimiter", "bom"), [(",", ""), (";", "\ufeff")])
def test_folders(delimiter: str, bom: str, capsys: pytest.CaptureFixture[str]):
    before = files("pets")
    Path("pets/train/été/caf\udce9.jpg").unlink()
    Path("pets/train/été/2024/a b.jpg").unlink()
    Path("pets/train/été/2024").rmdir()
    there = files("pets")
    decide(*EXAMPLE, delimiter=delimiter, bom=bom)
    prepare(*FOLDER)
    moves = {
        "pets/train/chat/1.jpg": "pets/train/dog/1-chat.jpg",
        "pets/train/chat/caf\udce9.jpg": "pets/train/été/caf\udce9.jpg",
        "pets/train/dog/2024/a b.jpg": "pets/train/été/2024/a b.jpg",
    }
    after = {moves.get(path, path): text for path, text in there.items()}
    assert files("pets") == after and len(after) == len(before) - 2
    printed = capsys.readouterr().out
    assert "3 labels changed: chat to dog 1, chat to été 1, dog to été 1; 1 label kept." in printed
    line = printed.partition("trains on these images: `")[2].partition("`")[0]
    assert shlex.split(line)[3:] == ["prepare=check", "experiment=own_photos", *FOLDER[:2], "out=checked"]
    assert "1 file got the old folder in the name" in printed and "train/dog/1-chat.jpg" in printed

    prepare(*FOLDER)
    assert (
        files("pets") == after
        and "Nothing is left to do; 1 label kept; 3 decisions carried out before (" in capsys.readouterr().out
    )
    prepare(*FOLDER, "undo=true")
    assert files("pets") == there and "3 labels changed back" in capsys.readouterr().out
    assert not Path("pets/train/été/2024").exists() and not Path("list.undo.json").exists()


def other_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links between pets/ and what is outside of it are refused."""
    link = os.link

    def refuse(source: Path, target: Path, **options: bool) -> None:
        if ("pets" in source.parts) != ("pets" in target.parts) and not target.exists():
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        link(source, target, **options)

    monkeypatch.setattr(os, "link", refuse)


@pytest.mark.parametrize("is_other_disk", [False, True])
def test_removed_images_are_moved_beside_the_list(
    is_other_disk: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Out of the folder of the images, with class and name, over no other file, and back."""
    if is_other_disk:
        other_disk(monkeypatch)
    there = files("pets")
    for path in ("train/chat/1.jpg", "val/été/2024/a b.jpg"):
        Path("removed", path).parent.mkdir(parents=True, exist_ok=True)
        Path("removed", path).write_text("of an earlier list", encoding="utf-8")
    decide(
        ("pets/train/chat/1.jpg", "chat", "dog", "remove"),
        ("pets/train/chat/caf\udce9.jpg", "", "", "Remove"),
        ("pets/val/été/2024/a b.jpg", "été", "", "remove"),
        ("pets/val/dog/1.jpg", "dog", "chat", "move"),
    )
    moves = {
        "pets/train/chat/1.jpg": "removed/train/chat/1-chat.jpg",
        "pets/train/chat/caf\udce9.jpg": "removed/train/chat/caf\udce9.jpg",
        "pets/val/été/2024/a b.jpg": "removed/val/été/2024/a b-été.jpg",
        "pets/val/dog/1.jpg": "pets/val/chat/1-dog.jpg",
    }
    for _ in range(2):
        prepare(*FOLDER)
        after = files("pets") | {path: text for path, text in files("removed").items() if text != "of an earlier list"}
        assert after == {moves.get(path, path): text for path, text in there.items()}
    printed = capsys.readouterr().out
    assert "3 images moved to removed; 1 label changed: dog to chat 1." in printed
    assert "Nothing is left to do; 4 decisions carried out before (" in printed
    prepare(*FOLDER, "undo=true")
    assert "3 images moved back; 1 label changed back." in capsys.readouterr().out
    assert files("pets") == there and {*files("removed").values()} == {"of an earlier list"}


def test_a_removal_between_two_disks_goes_on(monkeypatch: pytest.MonkeyPatch):
    """After the copy was made, and before the file was removed."""
    there, unlink, lstat = files("pets"), Path.unlink, Path.lstat
    decide(("pets/train/chat/1.jpg", "chat", "", "remove"), ("pets/train/dog/1.jpg", "dog", "", "remove"))
    other_disk(monkeypatch)

    def device(path: Path) -> os.stat_result:
        return os.stat_result([*lstat(path)[:2], "pets" in path.parts, *lstat(path)[3:]])

    def stop(path: Path, **options: bool) -> None:
        if "pets" in path.parts:
            raise KeyboardInterrupt
        unlink(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare(*FOLDER)
    assert Path("removed/train/chat/1.jpg").exists() and files("pets") == there
    monkeypatch.setattr(Path, "lstat", device)
    prepare(*FOLDER)
    assert len(files("pets")) == len(there) - 2
    prepare(*FOLDER, "undo=true")
    assert files("pets") == there and not Path("removed").exists()


@pytest.mark.parametrize("is_full", [False, True])
def test_a_copy_to_another_disk_writes_no_other_file(is_full: bool, monkeypatch: pytest.MonkeyPatch):
    """A link may wait under the name that an earlier version wrote first, the name may have as many bytes as a disk
    takes, and what a full disk has left of the copy is removed."""
    name = f"{'x' * 251}.jpg"
    Path("pets/train/chat", name).write_text("x", encoding="utf-8")
    Path("removed/train/chat").mkdir(parents=True)
    Path("removed/train/chat/.1.jpg.part").symlink_to(Path("outside.jpg").absolute())
    decide(*((f"pets/train/chat/{each}", "chat", "", "remove") for each in ("1.jpg", name)))
    other_disk(monkeypatch)

    def full(source: Path, target: Path, **_: bool) -> None:
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    if is_full:
        monkeypatch.setattr(folder_labels, "copy2", full)
        with pytest.raises(RunError):
            prepare(*FOLDER)
    else:
        prepare(*FOLDER)
    assert Path("outside.jpg").read_text(encoding="utf-8") == "not of the pets"
    assert {*map(str, Path("removed/train/chat").iterdir())} == {
        f"removed/train/chat/{each}" for each in (".1.jpg.part", *(("1.jpg", name) if not is_full else ()))
    }


def test_what_another_list_of_the_folder_has_moved_is_skipped(capsys: pytest.CaptureFixture[str]):
    """The lists of a check overlap. No other image gets the place of a moved one, for which a list would take it."""
    there = files("pets")
    first = ("pets/train/chat/1.jpg", "chat", "", "remove"), ("pets/train/chat/2.jpg", "chat", "dog", "move")
    other = (
        first[0],
        ("pets/train/chat/2.jpg", "chat", "dog", "keep"),
        ("pets/train/dog/1.jpg", "dog", "chat", "move"),
        ("pets/train/été/1.jpg", "été", "chat", "keep"),
    )
    decide(*first)
    Path("list.csv").rename("copies.csv")
    prepare(*FOLDER, "decisions=copies.csv")
    decide(*other)
    refused(*FOLDER, "undo=true")
    for word in ("1 label changed: dog to chat 1", "Nothing is left to do; 1 label kept; 1 decision carried out"):
        capsys.readouterr()
        prepare(*FOLDER)
        printed = capsys.readouterr().out
        assert word in printed and "1 decision carried out before with copies.csv (" in printed
        assert "1 row is about an image that copies.csv has moved: nothing is done for it" in printed
        assert files("pets/train/chat")["pets/train/chat/1-dog.jpg"] == "'pets/train/dog/1.jpg'"
        assert "pets/train/chat/1.jpg" not in files("pets")
    Path("broken.undo.json").write_text("{", encoding="utf-8")
    Path("table.undo.json").write_text('{"kind": "a table", "changes": [], "folders": []}', encoding="utf-8")
    for name in ("copies.csv", "list.csv"):  # in whatever order
        prepare(*FOLDER, "undo=true", f"decisions={name}")
    assert files("pets") == there


@pytest.mark.parametrize("copy", ["home/Downloads/list.csv", "home/Downloads/decisions (1).csv", "checked/list.csv"])
@pytest.mark.parametrize("original", ["list.csv", "runs/mine/likely.csv", "home/Downloads/list (2).csv"])
def test_a_list_that_was_carried_out_is_known_by_its_content(
    original: str, copy: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Wherever the list and its copy are. Another decision about the same image is none that was carried out."""
    monkeypatch.setenv("HOME", str(Path("home").absolute()))
    for at in (original, copy):
        Path(at).parent.mkdir(parents=True, exist_ok=True)
    there = files("pets")
    decide(*EXAMPLE[:4], ("pets/train/dog/2.jpg", "dog", "chat", "remove"))
    Path("list.csv").rename(original)
    options = *FOLDER, f"decisions={quoted_path(original)}"
    prepare(*options)
    after = files()
    Path(copy).write_bytes(Path(original).read_bytes())
    capsys.readouterr()
    prepare(*FOLDER, f"decisions={quoted_path(copy)}")
    printed = capsys.readouterr().out
    assert f"Nothing is left to do; 1 label kept; 4 decisions carried out before with {original} (20" in printed
    assert files() == {**after, copy: after[original]}
    line = shlex.split(printed.partition(f"Undo what {original} has changed with: `")[2].partition("`")[0])
    prepare(*line[4:])
    assert files("pets") == there
    prepare(*options)
    Path(copy).write_text(Path(copy).read_text("utf-8").replace("remove", "keep"), "utf-8")
    capsys.readouterr()
    prepare(*FOLDER, f"decisions={quoted_path(copy)}")
    printed = capsys.readouterr().out
    assert "3 decisions carried out before" in printed and f"that {Path(original).name} has removed" in printed


def quoted_path(path: str) -> str:
    return f'"{path}"' if " " in path else path


def test_another_data_set_has_no_part_in_what_is_known(pets: Path, monkeypatch: pytest.MonkeyPatch):
    """Although its images have the same names."""
    decide(("train/chat/1.jpg", "chat", "dog", "move"))
    shutil.copytree("pets", "others")
    prepare(*FOLDER)
    Path("alone").mkdir()
    Path("alone/list.csv").write_bytes(Path("list.csv").read_bytes())
    prepare("data=imagefolder", "data.root=others", "decisions=alone/list.csv")
    assert "others/train/dog/1-chat.jpg" in files("others")


def test_the_last_image_of_a_group_is_not_removed_by_a_slip():
    def groups(first: str, second: str) -> None:
        ours = f"{first},train/chat/1.jpg,keep", f"{second},train/chat/2.jpg,Remove", f"{second},train/dog/2.jpg,remove"
        rows = *ours, "3,train/dog/1.jpg,remove", "3,train/été/1.jpg,", "4,train/été/2.jpg,remove"
        Path("list.csv").write_text("\n".join(("group,path,decision", *rows)), encoding="utf-8")

    Path("copies.csv").write_text("path,decision\ntrain/chat/1.jpg,remove\n", encoding="utf-8")
    groups("1", "2")
    [message] = refused(*FOLDER)
    assert "must stay, but all are removed in 2 rows: row 3 (train/chat/2.jpg), row 4" in message
    assert "to remove all" in message
    groups("1", "")
    prepare(*FOLDER)
    assert not {"pets/train/chat/2.jpg", "pets/train/dog/2.jpg"} & {*files("pets")}
    prepare(*FOLDER, "undo=true")
    prepare(*FOLDER, "decisions=copies.csv")  # the one to be kept
    groups("1", "1")
    [message] = refused(*FOLDER)
    assert "all are removed in 3 rows: row 2" in message
    prepare(*FOLDER, "undo=true", "decisions=copies.csv")
    prepare(*FOLDER)


def test_a_disk_that_has_one_place_for_both_forms_of_a_name():
    for folder, name in (("chat", "caf\u00e9.jpg"), ("dog", "cafe\u0301.jpg")):
        Path("pets/train", folder, name).write_text(folder, encoding="utf-8")
    decide(
        ("pets/train/chat/caf\u00e9.jpg", "chat", "été", "move"),
        ("pets/train/dog/cafe\u0301.jpg", "dog", "été", "move"),
    )
    prepare(*FOLDER)
    assert files("pets/train/été")["pets/train/été/cafe\u0301-dog.jpg"] == "dog"


def test_no_image_is_removed_into_a_class_folder():
    decide(("pets/train/chat/1.jpg", "chat", "", "remove"))
    Path("list.csv").rename("pets/list.csv")
    [message] = refused(*FOLDER, "decisions=pets/list.csv")
    assert "decisions must be a file outside data.root (pets) for remove" in message


def test_a_list_is_applied_in_parts(capsys: pytest.CaptureFixture[str]):
    there = files("pets")
    decide(("pets/train/chat/1.jpg", "chat", "dog", "move"))
    prepare(*FOLDER)
    # the name that the first leaves is reserved for the way back
    decide(("pets/train/chat/1.jpg", "chat", "dog", "move"), ("pets/train/dog/1.jpg", "dog", "chat", "move"))
    capsys.readouterr()
    prepare(*FOLDER)
    assert "Undo it, and 1 earlier change with this list, with: " in capsys.readouterr().out
    assert files("pets") == {
        {"pets/train/chat/1.jpg": "pets/train/dog/1-chat.jpg",
         "pets/train/dog/1.jpg": "pets/train/chat/1-dog.jpg"}.get(path, path): text
        for path, text in there.items()
    }  # fmt: skip
    decide(("pets/train/chat/1.jpg", "chat", "dog", "keep"))
    [message] = refused(*FOLDER)
    assert "a decision that was carried out must stay" in message and "row 2 (pets/train/chat/1.jpg" in message
    prepare(*FOLDER, "undo=true")
    assert files("pets") == there


@pytest.mark.parametrize("then", [(), ("undo=true",)])
@pytest.mark.parametrize("undo", [(), ("undo=true",)])
@pytest.mark.parametrize("how", ["between two files", "between two names of a file"])
def test_an_interrupted_command_goes_on(
    how: str, undo: tuple[str, ...], then: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    """Its other images are moved by the same command, although class folders may be empty in between, or its images are
    moved back by the other one."""
    for path in Path("pets/train").rglob("*.jpg"):
        if path.name != "1.jpg":
            path.unlink()
    there = files("pets")
    ring = ["chat", "dog", "été", "chat"]
    decide(*((f"pets/train/{old}/1.jpg", old, new, "move") for old, new in itertools.pairwise(ring)))
    moves = {f"pets/train/{old}/1.jpg": f"pets/train/{new}/1-{old}.jpg" for old, new in itertools.pairwise(ring)}
    after = {moves.get(path, path): text for path, text in there.items()}
    if undo:
        prepare(*FOLDER)
    link, unlink, left = os.link, Path.unlink, [1]

    def stops(call: Callable[..., None]) -> Callable[..., None]:
        def made(*args: object, **options: object) -> None:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            call(*args, **options)

        return made

    with monkeypatch.context() as patched:
        if how == "between two files":
            patched.setattr(os, "link", stops(link))
        else:
            patched.setattr(Path, "unlink", stops(unlink))
        with pytest.raises(KeyboardInterrupt):
            prepare(*FOLDER, *undo)
    assert files("pets") not in (there, after)
    prepare(*FOLDER, *then)
    assert files("pets") == (there if then else after)
    if not then:
        prepare(*FOLDER, "undo=true")
    assert files("pets") == there


def test_a_disk_without_hard_links(monkeypatch: pytest.MonkeyPatch):
    there = files("pets")

    def refuse(*args: object, **options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    decide(*EXAMPLE)
    prepare(*FOLDER)
    assert files("pets") != there and len(files("pets")) == len(there)
    prepare(*FOLDER, "undo=true")
    assert files("pets") == there


def test_a_file_that_appears_is_not_overwritten(monkeypatch: pytest.MonkeyPatch):
    decide(("pets/train/chat/1.jpg", "chat", "dog", "move"))
    made = folder_labels.FolderLabels.apply

    def late(self: folder_labels.FolderLabels, changes: list[label_changes.Change]) -> None:
        Path("pets/train/dog/1-chat.jpg").write_text("another", encoding="utf-8")
        made(self, changes)

    monkeypatch.setattr(folder_labels.FolderLabels, "apply", late)
    with pytest.raises(RunError, match="exists"):
        prepare(*FOLDER)
    assert Path("pets/train/dog/1-chat.jpg").read_text(encoding="utf-8") == "another"
    assert Path("pets/train/chat/1.jpg").read_text(encoding="utf-8") == "'pets/train/chat/1.jpg'"
    [message] = refused(*FOLDER)
    assert "nothing is overwritten, but 1 is there already: train/dog/1-chat.jpg" in message


def test_every_mistake_at_once():
    Path("pets/train/dog/2-chat.jpg").write_text("taken", encoding="utf-8")
    Path("pets/train/chat/loose.jpg").symlink_to("1.jpg")
    decide(
        ("pets/train/chat/gone.jpg", "chat", "dog", "move"),
        ("pets/train/chat/1.jpg", "chat", "dog", "dgo"),
        ("pets/train/chat/2.jpg", "chat", "dog", "move"),
        ("pets/train/chat/2024/a b.jpg", "chat", "dog", "move"),
        ("pets/train/chat/../chat/2024/a b.jpg", "chat", "dog", "keep"),
        ("pets/train/dog/2.jpg", "chat", "dog", "été"),
        ("pets/train/dog/1.jpg", "dog", "wolf", "move"),
        ("pets/train/chat/loose.jpg", "chat", "dog", "move"),
        ("pets/val/chat/1.jpg", "chat", "dog", "Delete"),
    )
    text = "\n".join(refused(*FOLDER))
    for part in (
        "path must name an image of the data, but does not in 1 row: row 2 (pets/train/chat/gone.jpg)",
        "but is not in 3 rows: row 3 (dgo, close to dog), row 8 (move, but wolf is no class), row 10 "
        "(Delete, close to remove). Hint: the classes are chat, dog, été",
        "an image must have one decision, but has two in 1 row: row 6 (pets/train/chat/../chat/2024/a b.jpg, as row 5)",
        "label must be that of the image, but is not in 1 row: row 7 (pets/train/dog/2.jpg has dog)",
        "nothing is overwritten, but 1 is there already: train/dog/2-chat.jpg",
        "a link to an image must lead to it after the move, too, but 1 does not: train/chat/loose.jpg",
    ):
        assert part in text


@pytest.mark.parametrize(
    "path", ["../outside.jpg", "outside.jpg", "/etc/passwd", "pets/train/../../outside.jpg", "pets/train", "", "a\0b",
             "pets/train/chat/.hidden.jpg", "pets/linked/1.jpg"],
)  # fmt: skip
def test_a_list_of_a_stranger_moves_only_images_of_the_data(path: str):
    Path("pets/train/chat/.hidden.jpg").write_text("x", encoding="utf-8")
    Path("pets/linked").symlink_to("train/chat")
    decide((path, "chat", "dog", "move"))
    [message] = refused(*FOLDER)
    assert "path must name an image of the data" in message or "cannot be read as one" in message


def test_no_link_leads_out_of_the_folder(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    Path("elsewhere/x.jpg").write_text("x", encoding="utf-8")
    Path("pets/train/linked").symlink_to(tmp_path / "elsewhere")
    decide(("pets/train/linked/x.jpg", "linked", "dog", "move"), ("pets/train/chat/1.jpg", "chat", "linked", "move"))
    [message] = refused(*FOLDER)
    assert "must lie in data.root (pets), also after following links, but 2 do not: train/linked/x.jpg" in message


@pytest.mark.parametrize(
    "change",
    ["pets/train/chat/1.jpg", "../outside.jpg", "train/../../outside.jpg", "{here}/outside.jpg", "out/outside.jpg",
     "train/chat/notes.txt", "a\\u0000.jpg"],
)  # fmt: skip
def test_a_record_of_a_stranger_moves_only_images_inside(change: str, tmp_path: Path):
    Path("pets/out").symlink_to(tmp_path)
    Path("pets/train/chat/notes.txt").write_text("x", encoding="utf-8")
    change = change.replace("{here}", str(tmp_path))
    Path("list.undo.json").write_text(
        f'{{"kind": "class folders", "changes": [["x", "train/new.jpg", "{change}", "x"]], "folders": ["../pets"]}}',
        encoding="utf-8",
    )
    decide(*EXAMPLE)
    if change.startswith("pets"):  # inside, but not there: it counts as gone
        prepare(*FOLDER, "undo=true")
    else:
        for undo in ((), ("undo=true",)):
            [message] = refused(*FOLDER, *undo)
            assert "the changes of labels must be of images in pets, but 1 is not" in message


@pytest.mark.parametrize("place", ["chat", "linked"])
def test_a_record_of_a_stranger_removes_no_image(place: str):
    """Its two names are paths to one place."""
    Path("pets/train/linked").symlink_to("chat")
    change = ["x", "train/chat/1.jpg", f"train/{place}/1.jpg", "x"]
    Path("list.undo.json").write_text(
        json.dumps({"kind": "class folders", "changes": [change], "folders": []}), encoding="utf-8"
    )
    decide(*EXAMPLE)
    for undo in ((), ("undo=true",)):
        [message] = refused(*FOLDER, *undo)
        assert "nothing is overwritten, but 1 is there already" in message


@pytest.mark.parametrize(
    "text",
    ["[]", "{", '{"kind": "a table", "changes": [], "folders": []}', '{"changes": 3}',
     '{"kind": "class folders", "changes": [], "folders": [], "num_made": Infinity}',
     '{"kind": "class folders", "changes": [["x", "a.jpg", "\\ud800/b.jpg", "x"]], "folders": []}'],
)  # fmt: skip
def test_another_file_is_no_record(text: str):
    Path("list.undo.json").write_text(text, encoding="utf-8")
    decide(*EXAMPLE)
    [message] = refused(*FOLDER)
    assert "list.undo.json must be what prepare=relabel wrote about class folders, but" in message


INBOX = (*FOLDER, "unlabelled=inbox")


@pytest.fixture
def inbox() -> dict[str, str]:
    """Images without labels; their paths, and those of the pets, with what they contain."""
    for name in (*NAMES, "a.jpg", "b.jpg", "dog/3.jpg"):
        path = Path("inbox", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(ascii(str(path)), encoding="utf-8")
    return files("pets") | files("inbox")


@pytest.mark.parametrize("root", ["pets", "animals"])
@pytest.mark.parametrize("typed", ["inbox", "./pets/../inbox", "{here}/inbox"])
def test_unlabelled_images_get_a_class(
    root: str, typed: str, inbox: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """They are moved into the class folders of the training images, over no other file, and back."""
    train = "pets/train"
    if root == "animals":  # contains the class folders itself
        train = str(Path(train).rename(root))
        inbox = files(root) | files("inbox")
    folder = typed.replace("{here}", str(tmp_path))
    options = ("data=imagefolder", f"data.root={root}", f"unlabelled={folder}")
    decide(
        (f"{folder}/1.jpg", "", "dog", "move"),  # dog has one of this name
        (f"{folder}/2024/a b.jpg", "", "chat", "e\u0301te\u0301"),
        (f"{folder}/a.jpg", "", "dog", "Move"),
        (f"{folder}/caf\udce9.jpg", "", "dog", "dog"),
        ("b.jpg", "", "dog", "remove"),
        (f"{folder}/2.jpg", "", "chat", ""),
        (f"{folder}/dog/3.jpg", "", "chat", "dog"),  # not moved to dog/dog
        (f"{train}/chat/1.jpg", "chat", "dog", "été"),
    )
    moves = {
        "inbox/1.jpg": f"{train}/dog/1-inbox.jpg",
        "inbox/2024/a b.jpg": f"{train}/été/2024/a b-inbox.jpg",
        "inbox/a.jpg": f"{train}/dog/a.jpg",
        "inbox/caf\udce9.jpg": f"{train}/dog/caf\udce9-inbox.jpg",
        "inbox/b.jpg": "removed/b.jpg",
        "inbox/dog/3.jpg": f"{train}/dog/3.jpg",
        f"{train}/chat/1.jpg": f"{train}/été/1-chat.jpg",
    }
    for _ in range(2):
        prepare(*options)
        after = files(root) | files("inbox") | files("removed")
        assert after == {moves.get(path, path): text for path, text in inbox.items()}
    printed = capsys.readouterr().out
    assert (
        "5 images moved into the class folders: dog 4, été 1; 1 image moved to removed; 1 label changed: chat to été 1."
        in printed
    )
    assert "Nothing is left to do; 7 decisions carried out before (" in printed
    prepare(*options, "undo=true")
    assert "6 images moved back; 1 label changed back." in capsys.readouterr().out
    assert files(root) | files("inbox") == inbox and not Path("removed").exists()


def test_a_newer_list_beside_is_named_with_the_line_to_type(capsys: pytest.CaptureFixture[str]):
    """A browser calls the list of the second time "decisions (1).csv"."""
    decide(("pets/train/chat/1.jpg", "chat", "dog", "keep"))
    prepare(*FOLDER)
    assert "was not read" not in capsys.readouterr().out
    shutil.copyfile("list.csv", "decisions (1).csv")
    os.utime("list.csv", (1, 1))
    prepare(*FOLDER)
    said = capsys.readouterr().out
    assert "decisions (1).csv is newer, and was not read." in said
    (line,) = re.findall(r"To do what it says: `python -m imagenet_ddp.prepare (.*)`", said)
    plan = prepare_options.read(shlex.split(line), {})
    assert str(plan.config.decisions) == "decisions (1).csv"
    relabel.run(plan)
    assert "was not read" not in capsys.readouterr().out.replace("decisions (1).csv is", "")


def test_a_place_that_has_no_list_has_no_decisions(tmp_path: Path):
    """It may be that of a stranger's check: a pipe would be awaited."""
    os.mkfifo(tmp_path / "duplicates.csv")
    for name in ("duplicates.csv", f"{'a' * 5000}/duplicates.csv", "a\0b/duplicates.csv"):
        assert earlier_decisions(tmp_path / name, tmp_path / "decisions.csv") == {}


def test_the_downloads_of_a_user_without_a_home_are_none(monkeypatch: pytest.MonkeyPatch):
    """As in a container that is started with any number of a user."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])
    assert not downloads().exists()


def test_the_newer_decision_counts_and_a_photograph_is_kept_in_one_list(tmp_path: Path):
    """A blurred photograph that may stay can still be in the wrong class."""
    page, copies, labels = (tmp_path / name for name in ("decisions.csv", "duplicates.csv", "wrong_labels.csv"))
    page.write_text(
        "path,label,group,list,decision\na.jpg,cat,,quality.csv,keep\nb.jpg,cat,,duplicates.csv,keep\n"
        "c.jpg,cat,,quality.csv,remove\n"
    )
    copies.write_text("path,label,group,decision\nb.jpg,cat,,remove\n")
    labels.write_text("path,label,suggested,decision\nc.jpg,cat,dog,move\n")
    for seconds, file in enumerate((labels, page, copies)):
        os.utime(file, (seconds, seconds))
    assert earlier_decisions(copies, page) == {("b.jpg", "cat", ""): "remove", ("c.jpg", "cat", ""): "remove"}
    assert earlier_decisions(labels, page) == {("c.jpg", "cat", ""): "remove"}
    assert earlier_decisions(tmp_path / "quality.csv", page)[("a.jpg", "cat", "")] == "keep"


def test_the_name_of_a_class_may_be_written_in_other_letters():
    of = Decision(2, "a.jpg", "cat", "", "", "", "DOG")
    assert of.meaning("cat", ["cat", "dog"]) == "dog"
    assert replace(of, text="KEEP").meaning("cat", ["cat", "Keep"]) == "cat"
    assert of.meaning("cat", ["Dog", "cat", "dog"]) is None and of.meaning("cat", ["DOG", "cat", "dog"]) == "DOG"


def test_a_further_class_needs_its_folder(inbox: dict[str, str], capsys: pytest.CaptureFixture[str]):
    """A class that is misspelt is none; train would refuse its folder while it is empty."""
    decide(("inbox/a.jpg", "", "dog", "wolf"))
    [message] = refused(*INBOX)
    assert "row 2 (wolf)" in message and "make the folder of a further class beside theirs first" in message
    for name in ("wolf", "bear"):
        Path("pets/train", name).mkdir()
    prepare(*INBOX)
    assert Path("pets/train/wolf/a.jpg").is_file()
    assert "note: there is no training image of bear; add some, or remove the class" in capsys.readouterr().out
    prepare(*INBOX, "undo=true")
    assert files("pets") | files("inbox") == inbox
    assert "note: all changes ever made with this list are taken back\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "path", ["../outside.jpg", "outside.jpg", "/etc/passwd", "inbox/../outside.jpg", "inbox", "", "inbox/.hidden.jpg",
             "inbox/linked/outside.jpg", "inbox/notes.txt"],
)  # fmt: skip
def test_a_list_of_a_stranger_moves_only_images_of_the_folder(path: str, inbox: dict[str, str], tmp_path: Path):
    for name in (".hidden.jpg", "notes.txt"):
        Path("inbox", name).write_text("x", encoding="utf-8")
    Path("inbox/linked").symlink_to(tmp_path)
    decide((path, "", "dog", "move"))
    [message] = refused(*INBOX)
    assert "path must name an image of the data or of unlabelled, but does not in 1 row" in message


def test_without_unlabelled_no_other_image_is_moved(inbox: dict[str, str]):
    decide(("inbox/a.jpg", "", "dog", "move"))
    [message] = refused(*FOLDER)
    assert "path must name an image of the data, but" in message
    assert "if this is the list of predict's page, set unlabelled=FOLDER to the folder" in message
    prepare(*INBOX)
    [message] = refused(*FOLDER, "undo=true")
    assert "must be of images in pets, but 1 is not" in message and "set unlabelled=FOLDER" in message


@pytest.mark.parametrize("change", ["{here}/outside.jpg", "{here}/inbox/../outside.jpg", "{here}/inbox/linked/x.jpg"])
def test_a_record_of_a_stranger_moves_only_images_of_the_folder(change: str, inbox: dict[str, str], tmp_path: Path):
    Path("inbox/linked").symlink_to(tmp_path)
    change = change.replace("{here}", str(tmp_path))
    Path("list.undo.json").write_text(
        f'{{"kind": "class folders", "changes": [["x", "{change}", "train/dog/1.jpg", "x"]], "folders": []}}',
        encoding="utf-8",
    )
    decide(*EXAMPLE)
    for undo in ((), ("undo=true",)):
        [message] = refused(*INBOX, *undo)
        assert "the changes of labels must be of images in pets, but 1 is not" in message


@pytest.mark.parametrize("path", ["inbox/a.jpg", "pets/train/chat/1.jpg"])
def test_another_image_of_a_moved_one_s_name(path: str, inbox: dict[str, str]):
    """It must not be taken for the moved one, whose way back it blocks."""
    decide((path, "", "dog", "move"))
    prepare(*INBOX)
    Path(path).write_text("another", encoding="utf-8")
    [message] = refused(*INBOX)
    assert "path must not be that of an earlier image" in message and f"row 2 ({path})" in message
    [message] = refused(*INBOX, "undo=true")
    assert "nothing is overwritten, but 1 is there already" in message


def test_no_image_is_removed_into_the_unlabelled_ones(inbox: dict[str, str]):
    decide(("inbox/a.jpg", "", "", "remove"))
    Path("list.csv").rename("inbox/list.csv")
    [message] = refused(*INBOX, "decisions=inbox/list.csv")
    assert "decisions must be a file outside unlabelled (inbox) for remove" in message


def test_an_image_without_a_label_cannot_keep_it(inbox: dict[str, str]):
    decide(("inbox/a.jpg", "", "dog", "keep"), ("inbox/b.jpg", "", "dog", "yes"))
    [message] = refused(*INBOX)
    assert "decision must be move (to the suggested class), remove or the name of one class" in message
    assert "in 2 rows: row 2 (keep, but it has no label), row 3 (yes, close to move)" in message
    decide(("inbox/a.jpg", "", "dog", ""))
    [message] = refused(*INBOX)
    assert message.endswith("Hint: write move (to the suggested class), remove or the name of another class.")


def test_a_class_that_is_called_move():
    """The word must not be taken for the other meaning."""
    Path("pets/train/dog").rename("pets/train/move")
    Path("pets/val/dog").rename("pets/val/move")
    decide(("pets/train/chat/1.jpg", "chat", "été", "move"))
    [message] = refused(*FOLDER)
    assert "row 2 (move" in message
    decide(("pets/train/chat/1.jpg", "chat", "move", "move"))
    prepare(*FOLDER)
    assert Path("pets/train/move/1-chat.jpg").is_file()


def test_a_class_without_images_is_said(capsys: pytest.CaptureFixture[str]):
    decide(*((f"pets/train/chat/{name}", "chat", "dog", "move") for name in NAMES))
    prepare(*FOLDER)
    assert "note: there is no training image of chat;" in capsys.readouterr().out
    prepare(*FOLDER, "undo=true")  # although train would refuse the data now
    assert len([*Path("pets/train/chat").rglob("*.jpg")]) == len(NAMES)


TABLES = {  # image pets/train/dog/1.jpg is moved; {} is the cell of its label
    "comma": ("dog", "chat", "path,label\npets/train/chat/1.jpg,chat\npets/train/dog/1.jpg,{}\n"
                             "pets/train/dog/2.jpg,dog\n"),
    "excel": ('"dog"', '"chat"', '\ufefflabel;"path";note\r\n"chat";"pets/train/chat/1.jpg";"a ""b"";\nc"\r\n'
                                 '{};"pets/train/dog/1.jpg";\r\n\r\ndog;pets/train/dog/2.jpg;x'),
    "blanks": ("dog ", "chat", "path, label ,split\npets/train/chat/1.jpg,  chat,train\npets/train/dog/1.jpg,{},val\n"
                               "x.jpg,dog,test\npets/train/dog/2.jpg,dog,train"),
    "numbers": ("2.0", "1", "label\tpath\n1.0\tpets/train/chat/1.jpg\n{}\tpets/train/dog/1.jpg\n"
                            "2.0\tpets/train/dog/2.jpg\n"),
}  # fmt: skip


@pytest.mark.parametrize("kind", TABLES)
def test_a_table(kind: str):
    """Only the cell of the label changes, and undo gives back every byte."""
    old, new, text = TABLES[kind]
    Path("pets.csv").write_text(text.format(old), encoding="utf-8", newline="")
    Path("pets.csv").chmod(0o640)
    options = TABLE[:2] if "split" in text else TABLE
    classes = ("2", "1") if kind == "numbers" else ("dog", "chat")
    decide(("pets/train/dog/1.jpg", *classes, "move"), ("pets/train/chat/1.jpg", "", classes[0], "keep"))
    for undo, cell in (((), new), ((), new), (("undo=true",), old)):
        prepare(*options, *undo)
        assert Path("pets.csv").read_bytes().decode() == text.format(cell)
        assert Path("pets.csv").stat().st_mode & 0o777 == 0o640


def test_a_table_with_columns_of_other_names(capsys: pytest.CaptureFixture[str]):
    """The line that checks again names them, too."""
    old, new, text = TABLES["comma"]
    Path("pets.csv").write_text(text.format(old).replace("path", "Probe").replace("label", "Klasse"), encoding="utf-8")
    decide(("pets/train/dog/1.jpg", old, new, "move"))
    [message] = refused(*TABLE)
    assert "must have the columns path and label, but has no path and no label" in message
    named = ("+data.args.path=Probe", "+data.args.label=Klasse")
    prepare(*TABLE, *named)
    assert " ".join(named) in capsys.readouterr().out
    assert new in Path("pets.csv").read_text(encoding="utf-8")


def test_no_image_of_a_table_is_removed():
    Path("pets.csv").write_text(TABLES["comma"][2].format("dog"), encoding="utf-8")
    decide(("pets/train/dog/1.jpg", "dog", "", "remove"))
    [message] = refused(*TABLE)
    assert "no image of a table can have the decision remove, but 1 does: pets/train/dog/1.jpg" in message


def test_a_label_that_was_edited_since_is_not_undone():
    old, new, text = TABLES["comma"]
    Path("pets.csv").write_text(text.format(old), encoding="utf-8")
    decide(("pets/train/dog/1.jpg", old, new, "move"))
    prepare(*TABLE)
    Path("pets.csv").write_text(text.format("wolf"), encoding="utf-8")
    [message] = refused(*TABLE, "undo=true")
    assert "must be those of this list, but 1 has others: pets/train/dog/1.jpg" in message


OPTIONS = {
    ("data=imagefolder", "data.root=pets", "out=x"): "out has no effect with prepare=relabel",
    ("data=imagefolder", "data.root=gone"): "data.root must be the folder of the images, got gone",
    ("data=imagefolder",): "data.root must be the folder of the images, got None",
    ("data=table", "data.root=t.parquet"): "data.root must be the table of the images, a CSV file, got t.parquet",
    ("data=shapes",): "needs class folders or a table, with one label per image, got data=shapes",
    ("data=table", "data.root=pets.csv", "data.labels=several", "loss.name=bce"): "with data.labels=several",
    (*FOLDER, "decisions=gone.csv"): "decisions must be the list with your decisions, a CSV file, but gone.csv",
    (*FOLDER, "decisions=."): "Hint: did you mean decisions=list.csv?",
    (*FOLDER, "decisions=lst.csv"): "Hint: did you mean decisions=list.csv?",
    (*FOLDER, "undo=true"): "undo=true needs list.undo.json",
    (*FOLDER, "unlabelled=gone"): "unlabelled must be a folder, got gone",
    (*TABLE, "unlabelled=pets"): "unlabelled must be null for data=table, whose images have one row each. Hint: leave",
    FOLDER: "list.csv must have a decision in at least one row",
}


@pytest.mark.parametrize(("text", "has"), [("", "is empty"), ("path,label,decision\n", "has only a header")])
def test_a_list_without_rows_is_to_be_saved_again(text: str, has: str):
    Path("list.csv").write_text(text, encoding="utf-8")
    [message] = refused(*FOLDER)
    assert f"at least one row, but {has}. Hint: choose something on the page that made it, and save" in message


@pytest.mark.parametrize("typed", ["checked", "decisions.csv", "checked/decision.csv"])
def test_the_list_that_the_page_made_is_meant(typed: str):
    Path("checked").mkdir()
    for name in ("decisions.csv", "wrong_labels.csv", "near_copies.csv"):
        Path("checked", name).write_text("path,decision\n", encoding="utf-8")
    assert "did you mean decisions=checked/decisions.csv?" in refused(*FOLDER, f"decisions={typed}")[0]


@pytest.mark.parametrize("typed", ["checked/decisions.csv", "checked/check.html", "decisions.csv", "decisions (1).csv"])
def test_the_list_that_the_page_makes_is_found_where_browsers_save_it(typed: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(Path("home").absolute()))
    Path("home/Downloads").mkdir(parents=True)
    Path("checked").mkdir()
    Path("checked/quality.csv").write_text("path,decision\n", encoding="utf-8")
    Path("checked/check.html").touch()

    def answer() -> str:
        planned.cache_clear()
        return refused(*FOLDER, f'decisions="{typed}"')[0].partition(" Hint: ")[2]

    where = "the button below the pictures of checked/check.html makes it, and browsers save it in Downloads: move it"
    assert answer().startswith(where)
    Path("home/Downloads/decisions (1).csv").touch()
    move = f"run `mv '{Path('home').absolute()}/Downloads/decisions (1).csv' checked/decisions.csv`"
    assert (
        answer() == f"{move}."
        if typed == "checked/decisions.csv"
        else f"{move}, and set decisions=checked/decisions.csv."
    )
    planned.cache_clear()
    [message] = refused(*FOLDER, "decisions=cheked/decisions.csv")
    assert "mv " not in message, "there is no such folder"
    Path("checked/decisions (2).csv").write_text("path,decision\n", encoding="utf-8")
    assert answer() == """did you mean 'decisions="checked/decisions (2).csv"'?"""
    for each in (*Path().glob("*.csv"), *Path("checked").iterdir(), *Path("home/Downloads").iterdir()):
        each.unlink()
    if not typed.startswith("checked"):
        assert answer().endswith("a page's button saves it in Downloads: move it into the folder of check.html.")


def test_an_undo_of_the_wrong_list_names_those_that_were_carried_out():
    decide(("pets/train/chat/1.jpg", "chat", "dog", "move"))
    Path("list.csv").rename("other.csv")
    prepare(*FOLDER, "decisions=other.csv")
    decide(("pets/train/chat/2.jpg", "chat", "dog", "move"))
    [message] = refused(*FOLDER, "undo=true")
    assert message.endswith("there is no such file. Hint: set decisions=other.csv.")
    [message] = refused(*FOLDER, "undo=true", "decisions=.")
    assert message.endswith("Hint: did you mean decisions=other.csv?")
    prepare(*FOLDER, "decisions=list.csv")
    planned.cache_clear()
    [message] = refused(*FOLDER, "undo=true", "decisions=.")
    assert "The lists in . are list.csv, other.csv" in message


@pytest.mark.parametrize(("options", "said"), OPTIONS.items())
def test_refusals(options: tuple[str, ...], said: str):
    Path("t.parquet").touch()
    decide(("pets/train/chat/1.jpg", "chat", "dog", ""))
    assert any(said in message for message in refused(*options))


def test_a_refusal_does_not_offer_the_word_that_it_refuses():
    """A list without suggestions, such as quality.csv, has no class to move an image to."""
    Path("list.csv").write_text("path,decision\npets/train/chat/1.jpg,move\n", "utf-8")
    [message] = refused(*FOLDER)
    words = "decision must be keep, remove or the name of one class, but is not"
    assert f"{words} in 1 row: row 2 (move, but no class is suggested)" in message
    decide(("pets/train/chat/1.jpg", "chat", "", "move"), ("pets/train/dog/1.jpg", "dog", "chat", "mvoe"))
    [message] = refused(*FOLDER)  # where one row may have what another may not
    assert "keep, move (to the suggested class), remove or" in message
    assert "in 2 rows: row 2 (move, but no class is suggested), row 3 (mvoe, close to move)" in message
    rows = [f"pets/train/{name}/{number}.jpg,{name}" for name in ("chat", "dog") for number in (1, 2)]
    Path("pets.csv").write_text("\n".join(["path,label", *rows]), encoding="utf-8")
    Path("list.csv").write_text("path,decision\npets/train/chat/1.jpg,\n", "utf-8")
    [message] = refused(*TABLE)  # of which no image can be removed
    assert message.endswith("Hint: write keep or the name of another class.")
    Path("list.csv").write_text("path,decision\npets/train/chat/1.jpg,rm\n", "utf-8")
    [message] = refused(*TABLE)
    assert "decision must be keep or the name of one class, but is not in 1 row: row 2 (rm)" in message


@pytest.mark.parametrize(
    ("text", "said"),
    [("path,label\na,b\n", ", or add the column decision, with what shall"),
     ("path,decision\na,b,c\n", "the number of cells must be that of the header (2), but is not in 1 row"),
     ("path,decision\ncaf\xe9,move\n", "save the table as CSV in UTF-8 with all quotes closed, and set decisions="),
     ("path,decision\na,\n", "Hint: write keep, remove or the name of another class."),
     ("path,suggested,decision\na,b,\n", "Hint: write keep, move (to the suggested class), remove or the name of"),
     ("path,decision,Decision\na,b,c\n", "must have one column of each name, but has 2 columns decision")],
)  # fmt: skip
def test_another_file_is_no_list(text: str, said: str):
    Path("list.csv").write_bytes(text.encode("latin-1"))
    [message] = refused(*FOLDER)
    assert said in message and "data." not in message
