import pytest
from torch import Tensor, nn

from imagenet_ddp.config.schema.data import IMAGENET_MEAN, IMAGENET_STD
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
    monkeypatch.setattr(teacher, "read_weights", lambda *_: Weights({}, "x.ckpt"))
    monkeypatch.setattr(teacher, "create_model", lambda *_: FixedSize())
    config = {
        "teacher": {"weights": "x.ckpt", "name": None, "library": "torchvision", "share": 0.5, "temperature": 1.0},
        "model": {"name": "vit_b_16"},
        "data": {"image_size": 32, "train_size": None, "progressive_start": None, key: 64},
    }
    expected = rf"^teacher\.name=vit_b_16 must accept images of data\.{key}=64 pixels, but does not"
    with pytest.raises(ConfigError, match=expected):
        teacher.make_teacher(config, ["cat", "dog"], IMAGENET_MEAN, IMAGENET_STD)
