"""The transform of predict, export and the report: the checkpoint's values, changed by what was typed."""

from imagenet_ddp.data.transforms import IMAGENET_MEAN
from imagenet_ddp.engine.predictor import eval_transform


def test_typed_keys_change_the_validation_transform() -> None:
    data = {"image_size": 32, "val_resize": 37, "mean": [0.5] * 3, "std": [0.2] * 3, "interpolation": "bicubic",
            "val_mirror": True}  # fmt: skip
    model = {"library": "torchvision", "name": "resnet18", "_target_": None}
    assert eval_transform({"data": data, "model": model}).as_dict() == data
    # null has the meaning that it has in train and evaluate: 256/224 of the image size, and ImageNet's statistics
    typed = {**data, "image_size": 64, "val_mirror": False, "val_resize": None, "mean": None}
    found = eval_transform({"data": typed, "model": model}).as_dict()
    assert found == {**typed, "val_resize": 73, "mean": list(IMAGENET_MEAN)}
