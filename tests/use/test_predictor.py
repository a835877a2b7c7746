"""The transform of predict, export and the report: the checkpoint's values, changed by what was typed."""

import pytest
import torch

from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.config.section import to_config
from imagenet_ddp.data.transforms import IMAGENET_MEAN, EvalTransform
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.use.predictor import Outputs, Predictor, Result, eval_transform


def test_typed_keys_change_the_validation_transform() -> None:
    data = {"image_size": 32, "val_resize": 37, "mean": [0.5] * 3, "std": [0.2] * 3, "interpolation": "bicubic",
            "fit": "pad", "vflip": 0.5, "rot90": 0.0, "val_mirror": True}  # fmt: skip
    model = {"library": "torchvision", "name": "resnet18", "_target_": None}
    assert eval_transform(to_config({"data": data, "model": model}, CommonConfig)).as_dict() == data
    # null has the meaning that it has in train and evaluate: 256/224 of the image size, and ImageNet's statistics
    typed = {**data, "image_size": 64, "val_mirror": False, "val_resize": None, "mean": None}
    found = eval_transform(to_config({"data": typed, "model": model}, CommonConfig)).as_dict()
    assert found == {**typed, "val_resize": 73, "mean": list(IMAGENET_MEAN)}


@pytest.mark.parametrize(("size", "resize"), [(8192, 8192), (224, 10**6)])
def test_a_file_of_a_stranger_has_images_that_fit_into_memory(size: int, resize: int) -> None:
    data = {"image_size": size, "val_resize": resize}
    with pytest.raises(ConfigError, match=rf"at most 4096 .* got image_size={size} val_resize={resize}"):
        EvalTransform.of_stored(data)


def test_an_output_that_is_not_finite_is_no_class() -> None:
    outputs = torch.tensor([[0.1, 0.9], [float("nan")] * 2])
    predictor = Predictor(["a", "b"], ["a", "b"], None, lambda images: Outputs(outputs), torch.device("cpu"))  # type: ignore[arg-type]
    first, second = predictor.predict([torch.zeros(3, 8, 8)] * 2, 1)
    assert first.top == [(1, pytest.approx(0.9))] and not first.reason
    assert second == Result([], "the output of the net is NaN or inf")
