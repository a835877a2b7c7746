"""Repositories of the hub: huggingface_hub itself, against a server of the hub's protocol on this machine."""

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import timm
import torch
from conftest import Run
from helpers import hub_server
from huggingface_hub import constants
from safetensors.torch import save

from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.models.weights import hub as hub_module
from imagenet_ddp.models.weights.pretrained import Weights, find_weights

NAME = "mobilenetv3_small_050"


@pytest.fixture(scope="module")
def hub() -> Iterator[type[hub_server.Hub]]:
    """A hub with me/ten: a net of ten classes with its own names and statistics."""
    torch.manual_seed(0)
    net = timm.create_model(NAME, num_classes=10)
    own = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.2, 0.2], "input_size": [3, 64, 64], "crop_pct": 1.0}
    config = {"architecture": NAME, "num_classes": 10, "label_names": [*"abcdefghij"], "pretrained_cfg": own}
    odd = {
        "list": [],
        "size": {**config, "pretrained_cfg": {**own, "input_size": "big"}},
        "crop": {**config, "pretrained_cfg": {**own, "crop_pct": float("nan")}},
        "names": {**config, "label_names": ["a", {}]},
    }
    repositories = {
        **{
            f"me/{kind}": {"config.json": json.dumps(each).encode(), "model.safetensors": save(net.state_dict())}
            for kind, each in odd.items()
        },
        "me/ten": {"config.json": json.dumps(config).encode(), "model.safetensors": save(net.state_dict())},
        "me/empty": {"README.md": b"# Nothing yet"},
    }
    with hub_server.serving(repositories) as server:
        yield server


@pytest.fixture
def cache(hub: type[hub_server.Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let huggingface_hub ask the hub of the tests, and keep its files in a folder of its own, which is returned."""
    hub_server.use(hub.address, tmp_path / "hf/hub", monkeypatch)
    return tmp_path / "hf"


def find() -> Weights:
    return find_weights("model.weights", "hf://me/ten", "timm", NAME)


def test_a_repository_of_the_hub_is_downloaded_once(
    hub: type[hub_server.Hub], cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    tensors, said = find().tensors, capsys.readouterr().err
    assert re.search(rf"Downloading {hub.address}/me/ten/resolve/main/model\.safetensors \(\d+\.\d MB\)\.", said)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    again = find()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in again.tensors.items())
    assert capsys.readouterr().err == "" and again.facts.classes == [*"abcdefghij"]


def test_a_configuration_of_no_use_is_none(cache: Path):
    assert find_weights("model.weights", "hf://me/list", "timm", NAME).facts.classes == []


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
    ("me/gone", False, r"not be downloaded from http.*/me/gone .*Hint: .*such as its model\.safetensors"),
    *((f"me/{kind}", False, r"config\.json of .* must be one of timm's") for kind in ("size", "crop", "names")),
    ("me/ten", True, r"not be downloaded from http.*/me/ten .*Hint: set model\.weights=FILE to read"),
])  # fmt: skip
def test_what_a_hub_does_not_give_is_explained(
    cache: Path, monkeypatch: pytest.MonkeyPatch, repository: str, offline: bool, words: str
):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    with pytest.raises(ConfigError, match=words):
        find_weights("model.weights", f"hf://{repository}", "timm", NAME)


@pytest.mark.parametrize(("token", "words"), [
    ("hf_another_token", r"401 Unauthorized.*Invalid username or password"),
    ("hf_secret\x0bof mine", "Illegal header value b'Bearer TOKEN"),
])  # fmt: skip
def test_a_refused_push_is_explained_without_the_token(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str, words: str
):
    monkeypatch.setenv("HF_TOKEN", token)
    (tmp_path / "README.md").write_text("# Mine")
    with pytest.raises(RunError, match=words) as caught:
        hub_module.push(tmp_path, ["README.md"], "me/new")
    assert "secret" not in str(caught.value) and token not in str(caught.value)


def test_a_hub_that_does_not_answer_is_not_waited_for_without_end(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "README.md").write_text("# Mine")
    is_over = threading.Event()

    def create_repo(*words: Any, **options: Any) -> None:
        is_over.wait(60)
        raise OSError("the test is over")

    monkeypatch.setattr(huggingface_hub, "create_repo", create_repo)
    monkeypatch.setattr(hub_module, "PUSH_S", 0.0)
    try:
        with pytest.raises(RunError, match=r"hf://me/new must be pushed to .*, but was not \(no answer for 0 s\)"):
            hub_module.push(tmp_path, ["README.md"], "me/new")
    finally:
        is_over.set()
