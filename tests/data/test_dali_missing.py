"""loader=dali where NVIDIA DALI is not installed."""

import sys
from dataclasses import asdict
from typing import Any

import pytest

from imagenet_ddp.data import check, dali
from imagenet_ddp.schema import ConfigError, DataConfig, LoaderConfig


@pytest.fixture(autouse=True)
def _without(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python sees a module that is not there."""
    for name in ("nvidia.dali", "nvidia.dali.fn"):
        monkeypatch.setitem(sys.modules, name, None)


def config(**loader: Any) -> dict[str, Any]:
    data = {**asdict(DataConfig()), "name": "shapes"}
    return {"data": data, "loader": {**asdict(LoaderConfig()), **loader}, "trainer": {"accelerator": "cpu"}}


def test_the_command_line_is_refused_with_what_to_install():
    assert check.mistakes(config(), {}) == []
    (text,) = check.mistakes(config(name="dali"), {})
    assert "NVIDIA DALI, but it is not installed. HINT: " in text
    assert "pip install 'imagenet_ddp[dali]', or loader=default." in text
    assert check.mistakes(config(name="dali"), {}, verb="evaluate") == []  # of a checkpoint trained elsewhere


def test_wrong_values_are_all_said():
    found = check.mistakes(config(name="dall", device="cuda", num_threads=0), {})
    assert [text.split(" ", 1)[0] for text in found] == ["loader.name", "loader.device", "loader.num_threads"]
    (_, text) = check.mistakes(config(name="dali", device="gpu"), {})
    assert "trainer.accelerator is cpu. HINT: loader.device=auto" in text


def test_a_loader_without_it_says_the_same():
    with pytest.raises(ConfigError, match=r"pip install 'imagenet_ddp\[dali\]'"):
        dali.load()
