"""What the page of format=html says of itself."""

import pytest

from imagenet_ddp.exported.formats.html import _TEMPLATE, Runtime, question
from imagenet_ddp.pages.render import render


@pytest.mark.parametrize(("difference", "said"), [(1.1e-3, "0.11"), (1.11e-3, "0.12"), (3e-7, "0.01"), (0.0, "0.01")])
def test_the_difference_from_the_checkpoint_is_in_words_of_people(difference: float, said: str) -> None:
    """It is never said to be smaller than it is."""
    metadata = {
        "title": "a net", "labels": ["cat", "dog"], "model": {"name": "resnet18"}, "epochs": 1, "top1": 1.0,
        "num_val_images": 30,
        "familiarity_threshold": None, "license": None, "version": "1",
        "comparison": {"num_images": 30, "images": "validation images", "max_difference": difference},
    }  # fmt: skip
    context = {
        "key": "k",
        "question": "",
        "metadata": metadata,
        "labels": "cat, dog",
        "model": "",
        "runtime": Runtime("1", {}),
        "parts": {},
        "sure": 0.5,
        "expected": "84 to 95 %",
    }
    text = render(_TEMPLATE, context).decode()
    assert " of 30 validation images: of new ones like these, expect 84 to 95 % (95 % interval)." in text
    assert f"by at most {said} percentage points. A browser" in text


def test_the_title_says_what_the_page_is_for() -> None:
    assert question(["dog"]) == "Which is it: dog?"
    assert question(["dog", "cat"]) == "Which is it: cat or dog?"
    assert question(["d", "c", "b", "a"]) == "Which is it: a, b, c or d?"
    assert question([*"edcba"]) == "Which is it: a, b, c or one of 2 others?"
