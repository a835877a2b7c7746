import pytest

from imagenet_ddp.system.text import count_noun, duration, first_line, percent, shorten_list


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([count_noun(number, "image") for number in (0, 1, 1200)], ["0 images", "1 image", "1,200 images"]),
        ([count_noun(number, "loader process") for number in (1, 2)], ["1 loader process", "2 loader processes"]),
        ([percent(0.71234), percent(0.71234, 0), percent(1, 1)], ["71.23 %", "71 %", "100.0 %"]),
        (
            [duration(seconds) for seconds in (0, 42.4, 725, 11400, 187200)],
            ["0:00", "0:42", "12:05", "3:10:00", "2d 04:00:00"],
        ),
        (
            [shorten_list(list("abcde")), shorten_list(list("abcdefg")), shorten_list([], 2)],
            ["a, b, c, d, e", "a, b, c, d, e and 2 more", ""],
        ),
        (
            [first_line(each) for each in (OSError("a\nb"), ValueError(" "), KeyError())],
            ["a", "ValueError", "KeyError"],
        ),
    ],
    ids=["counted", "counted s", "percent", "duration", "some", "first line"],
)
def test_words(found: list[str], expected: list[str]):
    assert found == expected
