from dataclasses import replace

import pytest
from torch import Tensor, nn

from imagenet_ddp.config.schema.data import IMAGENET_MEAN, IMAGENET_STD, DataConfig
from imagenet_ddp.config.schema.learning import TeacherConfig
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models import teacher
from imagenet_ddp.models.pretrained import Weights


class FixedSize(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        assert images.shape[2:] == (32, 32), "Input height doesn't match model"
        return images.mean((1, 2, 3))


@pytest.mark.parametrize("key", ["train_size", "progressive_start"])
def test_a_teacher_must_accept_all_sizes_of_the_training_images(monkeypatch: pytest.MonkeyPatch, key: str):
    """Otherwise, the run would fail in the epoch in which the size changes."""
    monkeypatch.setattr(teacher, "find_weights", lambda *_: Weights("x.ckpt", dict))
    monkeypatch.setattr(teacher, "create_model", lambda *_: FixedSize())
    data = replace(DataConfig(image_size=32), **{key: 64})
    expected = rf"^teacher\.name=vit_b_16 must accept images of data\.{key}=64 pixels, but does not"
    with pytest.raises(ConfigError, match=expected):
        teacher.make_teacher(
            TeacherConfig(weights="x.ckpt"), "vit_b_16", data, ["cat", "dog"], IMAGENET_MEAN, IMAGENET_STD
        )
