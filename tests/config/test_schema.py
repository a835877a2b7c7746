"""The ground floor."""

from imagenet_ddp.config.keys import leaves


def test_leaves():
    assert leaves({"a": 1, "b": {"c": [1, 2], "d": {"e": None}}, "f": {}}) == {
        "a": 1,
        "b.c": [1, 2],
        "b.d.e": None,
        "f": {},
    }
