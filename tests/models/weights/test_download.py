"""Weights from a hub and from a URL: against a server of the hub's protocol on this machine."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import timm
import torch
from conftest import Run
from huggingface_hub import constants, hf_api
from safetensors.torch import save

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.weights import download
from imagenet_ddp.models.weights.pretrained import Weights, find_weights

NAME = "mobilenetv3_small_050"
COMMIT = "0" * 39 + "1"


class Hub(BaseHTTPRequestHandler):
    """Answer what huggingface_hub asks: a repository's list of files, the facts of a file, and its content."""

    repositories: ClassVar[dict[str, dict[str, bytes]]] = {}
    gone: ClassVar[threading.Event] = threading.Event()  # ends a stalled answer

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, *, with_body: bool) -> None:
        body: bytes | None = None
        if self.path.startswith(("/cut/", "/stalled/")):
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"begin")
            if self.path.startswith("/stalled/"):
                self.gone.wait(60)
            return
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/.*)?", self.path.partition("?")[0]):
            if (files := self.repositories.get(found[1])) is not None:
                listed = [{"rfilename": name} for name in files]
                body = json.dumps({"id": found[1], "sha": COMMIT, "siblings": listed}).encode()
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", self.path):
            body = self.repositories.get(found[1], {}).get(found[2])
        self.send_response(200 if body is not None else 404)
        if body is None:
            self.send_header(
                "X-Error-Code", "EntryNotFound" if found and found[1] in self.repositories else "RepoNotFound"
            )
            body = b""
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    """Return the address of a hub with me/ten: a net of ten classes with its own names and statistics."""
    torch.manual_seed(0)
    net = timm.create_model(NAME, num_classes=10)
    own = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.2, 0.2], "input_size": [3, 64, 64], "crop_pct": 1.0}
    config = {"architecture": NAME, "num_classes": 10, "label_names": [*"abcdefghij"], "pretrained_cfg": own}
    Hub.repositories = {
        "me/ten": {"config.json": json.dumps(config).encode(), "model.safetensors": save(net.state_dict())},
        "me/empty": {"README.md": b"# Nothing yet"},
    }
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    Hub.gone.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def cache(hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let huggingface_hub ask the hub of the tests, and keep its files in a folder of its own, which is returned."""
    for name, value in {
        "ENDPOINT": hub, "HUGGINGFACE_CO_URL_TEMPLATE": f"{hub}/{{repo_id}}/resolve/{{revision}}/{{filename}}",
        "HF_HUB_CACHE": str(tmp_path / "hf/hub"), "HF_HUB_OFFLINE": False,
    }.items():  # fmt: skip
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setattr(hf_api.api, "endpoint", hub)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    return tmp_path / "hf"


def find() -> Weights:
    return find_weights("model.weights", "hf://me/ten", "timm", NAME)


def test_a_repository_of_the_hub_is_downloaded_once(
    hub: str, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    tensors, said = find().tensors, capsys.readouterr().err
    assert re.search(rf"Downloading {hub}/me/ten/resolve/main/model\.safetensors \(\d+\.\d MB\)\.", said)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    again = find()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in again.tensors.items())
    assert capsys.readouterr().err == "" and again.facts.classes == [*"abcdefghij"]


@pytest.mark.slow
def test_predict_uses_what_the_cache_of_the_hub_has(cache: Path, tree: Path, run: Run):
    find()
    options = [f"model.name={NAME}", "model.library=timm", "model.weights=hf://me/ten", "trainer.accelerator=cpu"]
    environ = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(cache), "HF_HUB_OFFLINE": "1"}
    done = run("predict", *options, f"images={tree / 'val'}", "top_k=1", code=0, **environ)
    assert "Images as for hf://me/ten: 64 pixels from a short side of 64, bicubic, mean [0.4,0.5,0.6]" in done.stderr
    assert {row.split(",")[1] for row in done.stdout.splitlines()[1:]} <= set("abcdefghij")


@pytest.mark.parametrize(("repository", "offline", "words"), [
    ("me/empty", False, r"must be a repository with a file of weights .*, but .*/me/empty has README\.md"),
    ("me/gone", False, r"model\.weights=hf://me/gone could not be downloaded from http.*/me/gone"),
    ("me/ten", True, r"not be downloaded from http.*/me/ten .*Hint: set model\.weights=FILE to read"),
])  # fmt: skip
def test_what_a_hub_does_not_give_is_explained(
    cache: Path, monkeypatch: pytest.MonkeyPatch, repository: str, offline: bool, words: str
):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    with pytest.raises(ConfigError, match=words):
        find_weights("model.weights", f"hf://{repository}", "timm", NAME)


def test_a_url_is_downloaded_once_below_torch_home(hub: str, tree: Path, tmp_path: Path, run: Run):
    options = [f"model.name={NAME}", "model.library=timm", "trainer.accelerator=cpu", f"images={tree / 'val'}"]
    options.append(f"model.weights={hub}/me/ten/resolve/main/model.safetensors")
    for is_first in (True, False):
        result = run("predict", *options, TORCH_HOME=str(tmp_path / "th"))
        assert result.returncode == 0, result.stderr
        assert ("Downloading http" in result.stderr) == is_first
    assert len([*(tmp_path / "th/hub/checkpoints").glob("model-*.safetensors")]) == 1


@pytest.mark.parametrize(("what", "reason"), [
    ("cut", "the connection ended after 5 of 100 bytes"), ("stalled", "timed out"),
    ("me/ten/resolve/main", "its SHA-256 must begin with 0123"),
])  # fmt: skip
def test_a_download_that_breaks_off_or_stalls_leaves_no_file(
    hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, reason: str
):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "_hub_dir", None)
    monkeypatch.setattr(download, "ANSWER_S", 0.3 if what == "stalled" else 60)  # a busy machine answers late
    with pytest.raises(ConfigError, match=rf"could not be downloaded from .* \({reason}.*copy it to "):
        download.from_url("model.weights=URL", f"{hub}/{what}/model.safetensors", sha256="0123")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [".imagenet_ddp.lock"]
