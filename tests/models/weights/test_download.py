"""Weights from a URL: against a server on this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import timm
import torch
from conftest import Run
from helpers import hub_server
from safetensors.torch import save

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.weights import download

NAME = "mobilenetv3_small_050"


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    """Return the address of a server with the weights of a net of ten classes."""
    net = timm.create_model(NAME, num_classes=10)
    with hub_server.serving({"me/ten": {"model.safetensors": save(net.state_dict())}}) as server:
        yield server.address


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
    with pytest.raises(ConfigError, match=rf"could not be downloaded from .* \({reason}.*copied to this "):
        download.from_url("model.weights=URL", f"{hub}/{what}/model.safetensors", sha256="0123")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [".imagenet_ddp.lock"]


def test_a_training_whose_weights_cannot_be_downloaded_may_start_without_them(tree: Path, run: Run):
    options = ["data=imagefolder", f"data.root={tree}", "model.weights=http://127.0.0.1:9/weights.pth"]
    message = " ".join(run("train", *options, code=2).stderr.split())
    assert "copied to this one, or set model.weights=null to train from scratch, which on few images is" in message
