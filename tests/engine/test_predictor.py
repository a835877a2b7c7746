from imagenet_ddp.engine.predictor import eval_transform


def test_typed_options_change_the_transform_of_the_checkpoint():
    """evaluate does the same, so the two agree."""
    stored = {"image_size": 32, "val_resize": 37, "mean": [0.5] * 3, "std": [0.2] * 3, "interpolation": "bicubic",
              "val_mirror": True}  # fmt: skip
    contents = {"eval_transform": stored}
    assert eval_transform({"data": dict(stored)}, contents).as_dict() == stored
    typed = {**stored, "val_mirror": False, "val_resize": 40, "mean": None}
    assert eval_transform({"data": typed}, contents).as_dict() == {**typed, "mean": [0.5] * 3}
