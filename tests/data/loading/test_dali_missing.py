"""loader=dali where NVIDIA DALI is not installed."""

import sys
from dataclasses import asdict
from typing import Any

import pytest

from imagenet_ddp.config.schema.data import DataConfig, LoaderConfig
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
    assert "pip install 'imagenet_ddp[dali]'`, or set loader=default." in text
    assert validate.validate(config(name="dali"), {}, verb="evaluate") == []  # of a checkpoint trained elsewhere


def test_wrong_values_are_all_said():
    found = validate.validate(config(name="dall", device="cuda", num_threads=0), {})
    assert [text.split(" ", 1)[0] for text in found] == ["loader.name", "loader.device", "loader.num_threads"]
    (_, text) = validate.validate(config(name="dali", device="gpu"), {})
    assert "trainer.accelerator=cpu. Hint: set loader.device=auto" in text


@pytest.mark.parametrize(
    ("key", "value"),
    [("policy", "augmix"), ("color_jitter", 0.3), ("grayscale", 0.1), ("blur", 0.1), ("erasing", 0.25), ("cutout", 16),
     ("interpolation", "bicubic"), ("augment", "pad_crop")],
)  # fmt: skip
def test_what_dali_does_not_do_is_refused(key: str, value: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(validate, "has_dali", lambda: True)
    with_key = config(name="dali")
    assert validate.validate(with_key, {}) == []
    with_key["data"][key] = value
    (text,) = validate.validate(with_key, {})
    assert text.startswith(
        f"loader=dali does not support data.{key}={value}. Hint: set loader=default, or set data.{key}="
    )
    assert validate.validate({**with_key, "loader": asdict(LoaderConfig())}, {}) == []


def test_what_is_done_on_the_device_goes_with_dali(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(validate, "has_dali", lambda: True)
    mixed = config(name="dali")
    mixed["data"] |= {"mixup_alpha": 0.2, "cutmix_alpha": 1.0, "repeats": 3, "val_mirror": True}
    assert validate.validate(mixed, {}) == []


def test_a_loader_without_it_says_the_same():
    with pytest.raises(ConfigError, match=r"pip install 'imagenet_ddp\[dali\]'"):
        dali_pipeline.load()
