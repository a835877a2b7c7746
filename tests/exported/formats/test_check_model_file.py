"""What predict and export read and write, before torch is imported."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from imagenet_ddp.config.schema.keys import declared
from imagenet_ddp.exported.formats.check_model_file import export_path, validate
from imagenet_ddp.exported.formats.registry import FORMATS
from imagenet_ddp.system import table_files

OPTIONS: dict[str, Any] = {
    "checkpoint": "r/checkpoints/best.ckpt", "format": "onnx", "out": None, "preprocessing": None, "batch_size": None,
    "card": True, "push": None, "overwrite": False,
}  # fmt: skip


def test_the_description_of_the_key_names_each_format():
    assert set(FORMATS) <= set(re.findall(r"\w+", declared("export")["format"].meaning))


def test_the_file_is_in_the_run_folder():
    assert export_path(OPTIONS) == Path("r/export/model.onnx")
    assert export_path(OPTIONS | {"checkpoint": "a/b.ckpt", "format": "torch_export"}) == Path("a/export/model.pt2")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"format": "safetensors", "batch_size": 8}, "batch_size needs a format with a graph"),
        ({"out": "model.pt2"}, "out must end in .onnx, got model.pt2. Hint: set out=model.onnx."),
        ({"out": "there.onnx/model.onnx"}, "can be written, but .*there.onnx is a file"),
        ({"out": "."}, r"can be written, but \. \(.*\) is a folder. Hint: set out=model.onnx."),
        ({"out": "/"}, "can be written, but / is a folder. Hint: set out=/model.onnx."),
        ({"out": "there.onnx"}, "there.onnx .* exists. Hint: set out=FILE, or overwrite=true"),
    ],
)
def test_one_mistake(typed: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("there.onnx").touch()
    (text,) = map(str, validate(OPTIONS | typed, "export"))
    assert re.search(said, text), text
    assert validate(OPTIONS | {"out": "there.onnx", "overwrite": True}, "export") == []


@pytest.mark.parametrize(
    ("typed", "token", "said"),
    [
        ({}, "hf_x", ""),
        (
            {},
            None,
            "push needs a token that may write to the hub, but neither HF_TOKEN nor `hf auth login` has set one",
        ),
        ({"format": "onnx"}, "hf_x", "push needs format=safetensors.*got onnx. Hint: set format=safetensors."),
        ({"out": "."}, "hf_x", "is a folder. Hint: set out=model.safetensors."),
        ({"out": "new/net.safetensors"}, "hf_x", "named model.safetensors .*set out=new/model.safetensors"),
        ({"out": "there/model.safetensors"}, "hf_x", "there/config.json .* exists. Hint: set out=FILE, or overwrite"),
    ],
)
def test_what_cannot_be_pushed(
    typed: dict[str, Any], token: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    Path("there/config.json").touch()
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    found = validate(OPTIONS | {"format": None, "push": "hf://me/net"} | typed, "export")
    assert re.search(said, str(found[0])) if said else not found
    assert len(found) <= 1 and export_path(OPTIONS | {"format": None, "push": "hf://me/net"}) == Path(
        "r/export/hub/model.safetensors"
    )


@pytest.mark.parametrize(
    ("push", "is_right"),
    [
        ("hf://me/net", True), ("hf://A-1/b_c.d-2", True), ("me/net", False), ("hf://net", False),
        ("hf://me/a/b", False), ("hf://me/a--b", False), ("hf://me/..", False), ("hf://me/net.git", False),
        ("hf://-me/net", False),
        ("hf://me/" + "a" * 97, False), ("hf://me/a b", False), ("hf://me/né", False),
    ],
)  # fmt: skip
def test_the_name_of_a_repository(push: str, is_right: bool):
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    allowed = declared("export")["push"].allowed
    assert allowed is not None and allowed.accepts(push) == is_right
    if is_right:
        validate_repo_id(push.removeprefix("hf://"))
    elif push.isascii() and push.startswith("hf://") and push.count("/") == 3:
        with pytest.raises(HFValidationError):
            validate_repo_id(push.removeprefix("hf://"))


@pytest.mark.parametrize(
    ("out", "said"),
    [
        (None, ""),
        ("/dev/stdout", ""),
        ("new folder/table.csv", ""),
        ("new.ckpt", "got new.ckpt, a model or an image. Hint: set out=predictions.jsonl."),
        ("cat.JPG", "got cat.JPG, a model or an image"),
        ("weights", "got weights, a model or an image"),
        (".", "is a folder. Hint: set out=predictions.jsonl."),
        ("new.html", ""),
        ("earlier.html", ""),
        ("model.html", "got model.html, another page. Hint: set out=predictions.html."),
    ],
)
def test_what_predict_may_write(out: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name in ("weights", "model.html"):
        Path(name).touch()
    Path("earlier.html").write_text("<!-- imagenet_ddp.predict -->", encoding="utf-8")
    kind = "html" if out and out.endswith(".html") else "jsonl"
    options = {"checkpoint": "weights", "format": kind, "out": out, "label_next": None}
    found = validate(options, "predict")
    assert validate(options | {"label_next": 5}, "predict") == found
    assert out != "." or table_files.validate("xlsx", out) == [], "the folder is the mistake"
    assert said in str(found[0]) if said else not found


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch):
    found = {"onnxruntime", "safetensors"}
    monkeypatch.setattr("imagenet_ddp.system.packages.is_installed", lambda name: name not in found)
    assert "format=onnx needs the package onnxruntime, which is not installed. Hint:" in str(
        validate(OPTIONS, "export")[0]
    )
    assert "'onnxscript" in str(validate(OPTIONS, "export")[0])  # all that the extra onnx has
    assert validate(OPTIONS | {"format": "torch_export"}, "export") == []
    assert "'onnxscript" in str(validate({"checkpoint": "m.onnx", "out": None}, "predict")[0])


def test_html_needs_the_runtime_and_preprocessing_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "my cache"))
    wrong = OPTIONS | {"format": "html", "preprocessing": "outside", "batch_size": 2}
    (missing, preprocessing, batch_size) = validate(wrong, "export")
    prefix = f"'{tmp_path}/my cache/imagenet_ddp'"
    assert [each.run.rpartition("npm ")[2] for each in missing.fixes] == [f"install --prefix {prefix} onnxruntime-web"]
    assert "inside for format=html, got outside" in str(preprocessing) and "1 for format=html, got 2" in str(batch_size)
    (tmp_path / "a/deeper").mkdir(parents=True)
    monkeypatch.chdir("a/deeper")
    for place in (tmp_path / "my cache/imagenet_ddp", tmp_path / "a"):
        assert validate(OPTIONS | {"format": "html"}, "export")
        package = place / "node_modules/onnxruntime-web"
        (package / "dist").mkdir(parents=True)
        for name in ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"):
            (package / "dist" / name).touch()
        (package / "package.json").write_text('{"version": "1.2.3"}')
        assert validate(OPTIONS | {"format": "html"}, "export") == []
        shutil.rmtree(package)
