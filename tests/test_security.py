"""What .github/SECURITY.md says of files of strangers.

The other lines are tested beside the code: a stored config in tests/launch/test_stored_config.py, parts of checkpoints
in tests/runs/test_checkpoint_parts.py, of results in tests/report/test_strange_folders.py, secrets in
tests/test_secrets.py, a study of tune in tests/tune/test_study.py, visitors of demo in tests/test_demo.py, the network
in tests/distributed/test_strangers.py, the copy of a checkpoint on another node in test_commands.py there,
archives in tests/prepare/test_imagenet.py and tests/data/sources/test_stl10.py, states of optimizers in
tests/models/test_optimizers.py.
"""

import io
import json
import os
import re
import struct
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pyarrow
import pyarrow.parquet
import pytest
import torch
from conftest import ROOT
from PIL import Image

from imagenet_ddp import demo
from imagenet_ddp.cli import parse
from imagenet_ddp.config.schema.data import MOST_PIXELS
from imagenet_ddp.curation import unknown
from imagenet_ddp.curation.features import read_features
from imagenet_ddp.data.decoding.decode import decode
from imagenet_ddp.data.decoding.errors import UnreadableImage
from imagenet_ddp.data.decoding.pixel_conversion import MAX_PIXELS
from imagenet_ddp.data.sources.arrays import open_arrays
from imagenet_ddp.data.sources.cells import read_cells
from imagenet_ddp.data.sources.pack_format import File
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.exported.formats.base import KEY
from imagenet_ddp.models import compiled
from imagenet_ddp.models.weights.pretrained import find_weights
from imagenet_ddp.report.run_folders import find_runs
from imagenet_ddp.runs import folder
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.runs.log import Log
from imagenet_ddp.system.bounded_wait import lock_or_wait
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.files import read_mapping
from imagenet_ddp.system.table_files import as_text_cell, of_text_cell, table_bytes
from imagenet_ddp.use.exported_predictor import open_exported

PAGE = (ROOT / ".github/SECURITY.md").read_text(encoding="utf-8")


def test_the_page_has_the_limits_of_the_code():
    assert all(f"{limit:,}" in PAGE for limit in (MAX_PIXELS, demo.MAX_PIXELS, MOST_PIXELS))


def test_a_pt2_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("model.pt2").touch()
    Image.new("RGB", (8, 8)).save("a.png")
    for verb, more in (("predict", ["images=a.png"]), ("demo", [])):
        with pytest.raises(ConfigError, match="runs no code when it is read"):
            parse.command_line(verb, ["checkpoint=model.pt2", *more], {})


# ---- files that are no ordinary files -------------------------------------------------------------------------------

LEVELS = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (LEVELS, "not valid"), ("a: &a [*a]", "not valid"), (None, "not a regular file"), ("x", "not a mapping"),
        ("a: !!python/object/apply:os.system [true]", "not valid"), ("[" * 100_000, "not valid"),
    ],
)  # fmt: skip
@pytest.mark.timeout(60)
def test_a_bomb_is_left_out_with_a_reason(content: str | None, reason: str, tmp_path: Path):
    path = tmp_path / "config.yaml"
    path.write_text(content, encoding="utf-8") if content else path.symlink_to("/dev/zero")
    problems: list[str] = []
    assert read_mapping(path, problems) == {} and reason in problems[0]


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path):
    with (tmp_path / "summary.json").open("w") as file:
        file.truncate(2**40)
    problems: list[str] = []
    assert read_mapping(tmp_path / "summary.json", problems) == {} and "larger than 64 MiB" in problems[0]


def test_a_pipe_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "config.yaml")
    assert read_mapping(tmp_path / "config.yaml") == {}


def test_a_run_folder_with_a_bomb_is_no_run(tmp_path: Path):
    (tmp_path / "config.yaml").write_text(LEVELS, encoding="utf-8")
    assert find_runs(tmp_path) == []


# ---- names and links ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../x", "/x", "a/b", "..", ".", "", ".bashrc", "a\\b", "a\n", "a\0"])
def test_a_packed_folder_names_files_beside_it(name: str):
    with pytest.raises(ValueError, match="plain file name"):
        File(name, 1, "")
    assert File("train-0001.bin", 1, "").file == "train-0001.bin"


def test_no_log_or_lock_is_written_through_a_link(tmp_path: Path):
    own = tmp_path / "own"
    own.write_text("mine", encoding="utf-8")
    run = tmp_path / "run"
    (run / "logs").mkdir(parents=True)
    (run / ".lock").symlink_to(own)
    (run / "logs/rank0.log").symlink_to(own)
    with pytest.raises(ConfigError, match="must be a writable folder"):
        folder.lock(run)
    with pytest.raises(OSError, match="symbolic links"):
        Log(run / "logs", 0)
    with pytest.raises(OSError, match="symbolic links"), lock_or_wait(run / ".lock"):
        pass
    assert own.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("name", ["csv", "csv/metrics.csv", "logs", "checkpoints/mine", "mlflow.db"])
def test_a_run_folder_with_a_link_out_of_it_is_not_written_to(name: str, tmp_path: Path):
    run, link = tmp_path / "run", tmp_path / "run" / name
    link.parent.mkdir(parents=True)
    (run / "latest").symlink_to("csv")  # one that stays inside
    folder.refuse_links(run)
    link.symlink_to(tmp_path / "own")
    with pytest.raises(ConfigError, match="links that lead out of it"):
        folder.refuse_links(run)


def test_checkpoints_are_written_through_a_link_to_where_the_option_leads(tmp_path: Path):
    (tmp_path / "run").mkdir()
    store, disk = CheckpointStore.of_run(tmp_path / "run"), tmp_path / "a disk"
    store.place(disk)  # as a new run does
    store.require_place(disk)
    folder.refuse_links(tmp_path / "run")
    with pytest.raises(ConfigError, match="got a link") as error:
        store.require_place(store.folder)  # without the option
    assert f"set '++callbacks.checkpoint.dirpath=\"{disk}\"'" in str(error.value)
    with pytest.raises(ConfigError, match="for the checkpoints of this run alone"):
        store.require_place(tmp_path / "other")


def test_a_lock_empties_nothing(tmp_path: Path):
    (tmp_path / ".lock").write_text("mine", encoding="utf-8")
    folder.lock(tmp_path).close()
    assert (tmp_path / ".lock").read_text(encoding="utf-8") == "mine"


def _huge() -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": (10**12, 4, 4)})
    return stream.getvalue()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # numpy does not close a damaged file
@pytest.mark.parametrize("content", ["pickled", "pickled labels", "no archive", "huge", "cut off"])
def test_an_npz_runs_no_code_and_is_refused_in_a_sentence(content: str, tmp_path: Path):
    class Touch:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "touched",)

    pixels, labels, path = np.zeros((2, 4, 4, 3), np.uint8), np.arange(2), tmp_path / "a.npz"
    arrays = {"train_images": pixels, "train_labels": labels, "val_images": pixels, "val_labels": labels}
    if content.startswith("pickled"):
        arrays["train_labels" if "labels" in content else "train_images"] = np.array([Touch(), Touch()], dtype=object)
    if content == "huge":
        with zipfile.ZipFile(path, "w") as archive:
            for name in arrays:
                archive.writestr(f"{name}.npy", _huge())
    elif content == "no archive":
        with path.open("wb") as file:
            np.save(file, pixels)
    else:
        np.savez(path, **arrays)
    if content == "cut off":
        path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(ConfigError, match="failed"):
        open_arrays(str(path))
    assert not (tmp_path / "touched").exists()


def _as_zip(header: bytes, body: bytes = b"", **options: Any) -> Callable[[Path], object]:
    def write_it(path: Path) -> None:
        with zipfile.ZipFile(path, "w", **options) as file:
            for name in ("vectors", "weight"):
                file.writestr(f"{name}.npy", header + body)

    return write_it


def _with_bytes(write_it: Callable[[Path], object], **changes: int) -> Callable[[Path], object]:
    """Write a zip file, then set bytes of the entry of its first part in the directory at the end: flags, or method."""

    def changed(path: Path) -> None:
        write_it(path)
        content = bytearray(path.read_bytes())
        for name, value in changes.items():
            content[content.find(b"PK\1\2") + {"flags": 8, "method": 10}[name]] = value
        path.write_bytes(content)

    return changed


@pytest.mark.parametrize(
    "write_it",
    [
        _as_zip(_huge()), _as_zip(_huge(), bytes(10**6), compression=zipfile.ZIP_DEFLATED),
        _as_zip(_huge(), compression=zipfile.ZIP_LZMA), _with_bytes(_as_zip(_huge()), flags=1),
        _with_bytes(_as_zip(_huge()), method=99), os.mkfifo, Path.mkdir, lambda path: path.write_bytes(_huge()),
    ],
    ids=["huge", "deflated", "lzma", "encrypted", "another method", "pipe", "folder", "no archive"],
)  # fmt: skip
@pytest.mark.parametrize("read", [read_features, unknown.read])
def test_a_strange_file_of_features_is_refused_in_a_sentence(
    read: Callable[[Path], object], write_it: Callable[[Path], object], tmp_path: Path
):
    write_it(path := tmp_path / "f.npz")
    with pytest.raises(ConfigError, match=r"but is not \(.*\)\."):
        read(path)


@pytest.mark.parametrize(
    "content",
    [
        {"path": ["../../etc/passwd", "../../etc/passwd"], "label": ["a", "\x1b[2J"]},
        {"path": [b"\x89PNG"] * 2, "label": [1.5, 2]},
        {"path": [["a"]] * 2, "label": [{"x": 1}] * 2}, b"PAR1" + b"\xff" * 200 + b"PAR1",
    ],
)  # fmt: skip
def test_a_parquet_table_is_refused_in_a_sentence(content: Any, tmp_path: Path):
    path = tmp_path / "t.parquet"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        pyarrow.parquet.write_table(pyarrow.table(content), path)
    with pytest.raises(ConfigError, match=r"t\.parquet") as refused:
        parse.command_line("train", ["data=table", f"data.root={path}"], {})
    assert "\x1b" not in str(refused.value)


def test_a_small_parquet_table_does_not_fill_the_memory(tmp_path: Path):
    paths = pyarrow.DictionaryArray.from_arrays(np.zeros(300, np.int32), ["x" * 10**5])
    pyarrow.parquet.write_table(
        pyarrow.table({"path": paths.cast("string"), "label": ["a"] * 300}), tmp_path / "t.parquet"
    )
    with pytest.raises(ConfigError, match="its rows have more than 16,384 bytes"):
        parse.command_line("train", ["data=table", f"data.root={tmp_path / 't.parquet'}"], {})


@pytest.mark.parametrize(
    "make",
    [lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to(path.name), os.mkfifo,
     lambda path: (path.touch(), os.truncate(path, 2**36))],
)  # fmt: skip
@pytest.mark.timeout(60)
def test_files_of_stl10_have_the_size_of_their_labels(make: Callable[[Path], object], tmp_path: Path):
    (tmp_path / "stl10_binary").mkdir()
    for name in ("class_names.txt", "fold_indices.txt", "train_y.bin", "test_y.bin"):
        (tmp_path / "stl10_binary" / name).write_bytes(b"\1\2")
    for part in ("train", "test"):
        make(tmp_path / f"stl10_binary/{part}_X.bin")
    with pytest.raises(ConfigError, match="have the wrong size"):
        parse.command_line("train", ["data=stl10", f"data.root={tmp_path}"], {})


def test_an_hdf5_file_runs_no_code(tmp_path: Path):
    """Its objects are bytes, and the sizes that it declares are not allocated."""
    h5py = pytest.importorskip("h5py")
    pixels, labels = np.zeros((4, 8, 8, 3), np.uint8), np.arange(4) % 2
    script = b"cposix\nsystem\n(S'touch touched'\ntR."
    wrong: dict[str, Any] = {
        "pickled": {"data": [script] * 4}, "huge": {"shape": (10**12,), "dtype": np.int64, "chunks": (1000,)},
    }  # fmt: skip
    for name, content in wrong.items():
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["train_images"] = file["val_images"] = pixels
            file["val_labels"] = labels
            file.create_dataset("train_labels", **content)
        with pytest.raises(ConfigError, match="train_labels"):
            open_arrays(str(tmp_path / f"{name}.h5"))
    with h5py.File(tmp_path / "loop.h5", "w") as file:
        for name in ("train_images", "train_labels", "val_images", "val_labels"):
            file[name] = h5py.SoftLink(f"/{name}")
    with pytest.raises(ConfigError, match="must contain its arrays itself"):
        open_arrays(str(tmp_path / "loop.h5"))


@pytest.mark.parametrize("kind", ["external", "virtual", "link", "link to a group", "pipe"])
@pytest.mark.timeout(60)
def test_an_hdf5_file_reads_no_file_but_itself(kind: str, tmp_path: Path):
    """What is in another file would be in the names of the classes and in predictions.csv."""
    h5py = pytest.importorskip("h5py")
    (tmp_path / "secret").write_bytes(b"secret")
    os.mkfifo(tmp_path / "pipe")
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["labels"] = np.arange(6)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["train_images"] = file["val_images"] = np.zeros((6, 8, 8, 3), np.uint8)
        file["val_labels"] = np.arange(6)
        if kind == "external":
            file.create_dataset("train_labels", (6,), "uint8", external=[(str(tmp_path / "secret"), 0, 6)])
        elif kind == "virtual":
            layout = h5py.VirtualLayout((6,), "int64")
            layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "labels", (6,))
            file.create_virtual_dataset("train_labels", layout)
        elif kind == "link to a group":
            file["group"] = h5py.ExternalLink("other.h5", "/")
            file["train_labels"] = h5py.SoftLink("/group/labels")
        else:
            file["train_labels"] = h5py.ExternalLink("pipe" if kind == "pipe" else "other.h5", "labels")
    with pytest.raises(ConfigError, match="must contain its arrays itself, but train_labels may be in another file"):
        open_arrays(str(tmp_path / "a.h5"))


@pytest.mark.parametrize("size", [8 * 2**30, 2**64 - 1])
def test_a_safetensors_header_takes_no_memory(size: int, tmp_path: Path):
    pytest.importorskip("safetensors")
    with (tmp_path / "a.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", size) + b"{")
        file.truncate(8 * 2**30 + 8)  # takes no room on the disk
    with pytest.raises(ConfigError, match="cannot be read"):
        find_weights("model.weights", str(tmp_path / "a.safetensors"), "torchvision", "resnet18")


SEEN = '{"image_size": 8, "val_resize": 8, "interpolation": "bilinear", "mean": [0, 0, 0], "std": [1, 1, 1]}'


@pytest.mark.parametrize(
    ("location", "metadata", "reason"),
    [
        ("../secret", "{}", "escapes"), ("ABSOLUTE", "{}", "cannot be read"), ("link", "{}", "escapes"),
        ("", "[" * 100_000, "RecursionError"), ("", "3", "AttributeError"), ("", "{}", "classes is a list of text"),
        ("", '{"classes": [1], "labels": [[]], "eval_transform": {}}', "classes is a list of text"),
        ("", f'{{"classes": ["a"], "labels": ["a"], "eval_transform": {SEEN}, "batch_size": 0}}', "integer > 0"),
        ("", f'{{"classes": ["a"], "labels": ["a"], "eval_transform": {SEEN.replace("8", "80000")}}}', "of data.image"),
    ],
)  # fmt: skip
def test_an_onnx_reads_no_file_but_itself(location: str, metadata: str, reason: str, tmp_path: Path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    (tmp_path / "secret").write_bytes(bytes(16))
    (tmp_path / "model").mkdir()
    (tmp_path / "model/link").symlink_to(tmp_path / "secret")
    images, logits = (onnx.helper.make_tensor_value_info(name, 1, [4]) for name in ("images", "logits"))
    weights = onnx.TensorProto(name="w", data_type=1, dims=[4])
    if location:
        weights.data_location = onnx.TensorProto.EXTERNAL
        where = str(tmp_path / "secret") if location == "ABSOLUTE" else location
        weights.external_data.add(key="location", value=where)
    else:
        weights.raw_data = bytes(16)
    nodes = [onnx.helper.make_node("Add", ["images", "w"], ["logits"])]
    graph = onnx.helper.make_graph(nodes, "g", [images], [logits], [weights])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    onnx.helper.set_model_props(model, {KEY: metadata})
    (tmp_path / "model/a.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ConfigError, match=reason):
        open_exported(tmp_path / "model/a.onnx", "auto")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [({}, ""), ({"classes": ["a"], "labels": ["a"]}, r"must compute 1 number of .*\(1, 3\)"),
     ({"familiarity_threshold": 0.5}, "must compute 4 numbers"), ({"batch_size": 10**9}, "at most 4,096"),
     ({"classes": [], "labels": []}, "classes must be names"), ({"preprocessing": "outside"}, "must compute")],
)  # fmt: skip
def test_what_a_graph_computes_is_what_its_file_says(changed: dict[str, Any], reason: str, tmp_path: Path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    images = onnx.helper.make_tensor_value_info("images", onnx.TensorProto.UINT8, ["batch", 3, 8, 8])
    output = onnx.helper.make_tensor_value_info("probabilities", onnx.TensorProto.FLOAT, ["batch", 3])
    nodes = [
        onnx.helper.make_node("Cast", ["images"], ["floats"], to=1),
        onnx.helper.make_node("ReduceMean", ["floats"], ["probabilities"], axes=[2, 3], keepdims=0),
    ]
    graph = onnx.helper.make_graph(nodes, "g", [images], [output])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    said = {"classes": [*"abc"], "labels": [*"abc"], "eval_transform": json.loads(SEEN), "batch_size": None}
    said |= {"preprocessing": "normalise", "exif_orientation": False, **changed}
    onnx.helper.set_model_props(model, {KEY: json.dumps(said)})
    (tmp_path / "a.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ConfigError, match=reason) if reason else nullcontext():
        open_exported(tmp_path / "a.onnx", "auto").compute([torch.zeros(3, 8, 8, dtype=torch.uint8)])


# ---- images ---------------------------------------------------------------------------------------------------------


def test_an_image_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gs = tmp_path / "gs"
    gs.write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\n", encoding="utf-8")
    gs.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n%%EOF\n"
    with pytest.raises(UnreadableImage):
        decode(eps, "photo.jpg")
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "PPM", "TIFF", "WEBP", "JPEG2000"])
def test_the_formats_of_photographs_are_read(kind: str):
    stream = io.BytesIO()
    Image.fromarray(np.full((16, 16, 3), 128, np.uint8)).save(stream, kind)
    assert decode(stream.getvalue(), "a").shape == (3, 16, 16)


def test_the_demo_refuses_a_picture_that_declares_many_pixels(tmp_path: Path):
    with warnings.catch_warnings(action="ignore"):
        Image.new("1", (7000, 7000)).save(tmp_path / "a.png")
    assert "7,000 × 7,000 pixels" in demo.too_large(str(tmp_path / "a.png"))
    Image.new("1", (700, 700)).save(tmp_path / "b.png")
    assert demo.too_large(str(tmp_path / "b.png")) == "" == demo.too_large(str(tmp_path / "gone.png"))


def test_the_demo_refuses_a_heic_picture_that_declares_many_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(demo, "MAX_PIXELS", 4000)
    picture = Image.new("RGB", (64, 64))
    pillow_heif.from_pillow(picture).save(tmp_path / "a.heic")
    assert "64 × 64 pixels" in demo.too_large(str(tmp_path / "a.heic"))


# ---- what is shown --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["=HYPERLINK(1)", "+a", "-a", "@a", "'=a", "''=a", "a", "'a", " a", "  ", "' a", "-1", "+1e5", "-.5", "", "1"],
)
def test_a_cell_is_text_to_a_spreadsheet_and_the_same_to_this_program(text: str, tmp_path: Path):
    cell = as_text_cell(text)
    assert not re.match(r"[=+\-@]", cell) or re.fullmatch(r"[+-][\d.e]+", cell)
    (tmp_path / "t.csv").write_bytes(table_bytes(("a", "b"), [("x", text)]))
    [read] = read_cells(tmp_path / "t.csv", {"b": "b"}).columns["b"]
    assert of_text_cell(read) == text
    assert as_text_cell(-1.5) == -1.5


def test_names_do_not_control_a_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    log = Log(tmp_path, 0)
    log.say("a\x1b[2Jb")
    log.close()
    print_message("c\x9b2Jd\ne")
    out, err = capsys.readouterr()
    assert "a\\x1b[2Jb" in out and "c\\x9b2Jd\ne" in err
    assert "\x1b" not in (tmp_path / "rank0.log").read_text(encoding="utf-8")


def test_minimum_versions_carry_the_known_advisories():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for package, least in {"torch": "2.11", "lightning": "2.6.6", "hydra-core": "1.3.8", "pillow": "12.3"}.items():
        assert re.search(rf'"{package}>={re.escape(least)}', text), package
    assert '"gradio>=6.16"' in text and '"onnx>=1.21"' in text


# ---- what others left in /tmp ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", ["by somebody else", "open to others", "a link", "a file", ""])
def test_a_folder_in_a_shared_tmp_is_this_users_alone(made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    shared = tmp_path / f"imagenet_ddp_compiled_{os.getuid()}"
    (tmp_path / "theirs").mkdir(mode=0o700)
    if made == "a link":
        shared.symlink_to("theirs")
    elif made == "a file":
        shared.touch()
    elif made:
        shared.mkdir(mode=0o700)
        shared.chmod(0o777 if made == "open to others" else 0o700)
    if made == "by somebody else":
        if os.getuid() != 0:
            pytest.skip("only root can give a folder to somebody else")
        os.chown(shared, 4321, 4321)
    compiled.compile_calls(torch.nn.Module(), "off", 1, 1)
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
    net = torch.nn.Module()
    net.net = torch.nn.Identity()
    compiled.compile_calls(net, "default", 1, 1)
    used = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert used == (tmp_path / "home/imagenet_ddp/compiled" if made else shared)
    assert used.stat().st_mode & 0o777 == 0o700 and used.stat().st_uid == os.getuid()
