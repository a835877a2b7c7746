"""loader=dali where NVIDIA DALI is not installed."""

import sys
from dataclasses import asdict
from typing import Any

import pytest

from imagenet_ddp.config.schema import DataConfig, LoaderConfig
from imagenet_ddp.data import validate
from imagenet_ddp.data.loading import dali_pipeline
from imagenet_ddp.errors import ConfigError


@pytest.fixture(autouse=True)
def _without(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python sees a module that is not there."""
    for name in ("nvidia.dali", "nvidia.dali.fn"):
        monkeypatch.setitem(sys.modules, name, None)


def config(**loader: Any) -> dict[str, Any]:
    data = {**asdict(DataConfig()), "name": "shapes"}
    return {"data": data, "loader": {**asdict(LoaderConfig()), **loader}, "trainer": {"accelerator": "cpu"}}


def test_the_command_line_is_refused_with_what_to_install():
    assert validate.validate(config(), {}) == []
    (text,) = validate.validate(config(name="dali"), {})
    assert "NVIDIA DALI, which is not installed. Hint: " in text
    assert "pip install 'imagenet_ddp[dali]', or loader=default." in text
    assert validate.validate(config(name="dali"), {}, verb="evaluate") == []  # of a checkpoint trained elsewhere


def test_wrong_values_are_all_said():
    found = validate.validate(config(name="dall", device="cuda", num_threads=0), {})
    assert [text.split(" ", 1)[0] for text in found] == ["loader.name", "loader.device", "loader.num_threads"]
    (_, text) = validate.validate(config(name="dali", device="gpu"), {})
    assert "trainer.accelerator=cpu. Hint: loader.device=auto" in text


def test_a_loader_without_it_says_the_same():
    with pytest.raises(ConfigError, match=r"pip install 'imagenet_ddp\[dali\]'"):
        dali_pipeline.load()
