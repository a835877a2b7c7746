"""What is said at the start of a run on one's own images."""

from pathlib import Path

import pytest
from helpers.plans import plan_of

from imagenet_ddp.engine.run_summary import from_scratch_lines, mirrored_class_lines


@pytest.fixture
def folder(tree: Path) -> list[str]:
    return ["data=imagefolder", f"data.root={tree}", "model.name=mobilenet_v3_small"]


@pytest.mark.parametrize(
    ("typed", "num_images", "is_said"),
    [
        ((), 3000, True),
        (("data=imagefolder",), 20_000, False),
        (("model.weights=DEFAULT",), 3000, False),
        (("+model.args.width_mult=0.5",), 3000, False),
    ],
)
def test_few_photographs_without_weights_are_told_of_finetuning(
    typed: tuple[str, ...], num_images: int, is_said: bool, folder: list[str]
) -> None:
    lines = from_scratch_lines(plan_of(*folder, *typed).config, num_images)
    assert [line.endswith("Hint: set experiment=finetune.") for line in lines] == [True] * is_said


@pytest.mark.parametrize(
    ("classes", "typed", "is_said"),
    [
        (["Arrow-Left", "arrow-right", "stop"], (), True),
        ([str(number) for number in range(10)], (), True),
        (["left lung", "cat"], (), False),
        (["left", "right"], ("data.flip=0",), False),
        (["left", "right"], ("data.augment=none",), False),
    ],
)
def test_classes_that_a_mirror_swaps_are_named(
    classes: list[str], typed: tuple[str, ...], is_said: bool, folder: list[str]
) -> None:
    lines = mirrored_class_lines(plan_of(*folder, *typed).config.data, classes)
    assert [line.endswith("Hint: set data.flip=0.") for line in lines] == [True] * is_said
