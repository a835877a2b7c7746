import threading
import time

import pytest

from imagenet_ddp.data.sources.listing import map_concurrently


def test_every_item_is_answered_in_its_place():
    for num in (0, 1, 8, 9, 100):
        assert list(map_concurrently(lambda number: number * number, range(num))) == [n * n for n in range(num)]


def test_an_error_ends_the_questions():
    asked: list[int] = []

    def ask(number: int) -> None:
        asked.append(number)
        time.sleep(0.01)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(map_concurrently(ask, range(10_000)))
    assert len(asked) < 10_000


def test_a_late_disk_is_asked_by_several_threads():
    together = threading.Barrier(8)
    assert len(list(map_concurrently(lambda number: together.wait(60), range(16)))) == 16
