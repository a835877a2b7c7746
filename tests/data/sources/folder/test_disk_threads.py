import time
from collections import deque

import pytest

from imagenet_ddp.data.sources.folder import disk_threads
from imagenet_ddp.data.sources.folder.disk_threads import imap_unordered, map_concurrently


@pytest.mark.parametrize("late_s", [disk_threads.LATE_S, 0.0], ids=["one after the other", "threads"])
def test_every_question_is_answered_in_its_place(late_s: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(disk_threads, "LATE_S", late_s)
    for num in (0, 1, 8, 9, 100):
        assert map_concurrently(lambda number: number * number, range(num)) == [n * n for n in range(num)]
    with pytest.raises(ZeroDivisionError):
        map_concurrently(lambda number: 1 // (50 - number), range(100))


def test_a_disk_that_turns_late_is_asked_by_threads_and_what_is_added_is_asked_too():
    def ask(number: int) -> int:
        time.sleep(0.02 if number >= 100 else 0)
        return number

    items, found = deque(range(100)), []
    begin = time.monotonic()
    for answer in imap_unordered(ask, items):
        assert answer is not None
        found.append(answer[1])
        if answer[0] < 100:
            items.append(answer[0] + 100)
    assert sorted(found) == list(range(200))
    assert time.monotonic() - begin < 0.5 * 100 * 0.02
