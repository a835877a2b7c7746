"""Every folder of a tree of class folders, asked for the names in it."""

import os
import queue
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from imagenet_ddp.data.folders import LATE_S, TRIED, Content, Links, Threads, Within, content

SAY_EVERY_S = 10.0

Say = Callable[[str], None]
Stamp = tuple[int, int, int]

NOWHERE: Stamp = (0, 0, 0)


def stamp_of(path: str) -> Stamp:
    """What changes with the names in a folder. The change time too: rsync and tar set the other one back."""
    try:
        stat = os.stat(path)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return NOWHERE
    return stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns


@dataclass
class Found:
    """One folder. position: of its class; -1: the folder of class folders."""

    position: int
    prefix: str  # "cat/deep/"; "" at the top
    stamp: Stamp
    content: Content


@dataclass
class Walk:
    """One folder after the other while the disk answers at once, for threads would only contend for the interpreter;
    many at a time once it is late, as a network disk is. It can be stopped and gone on with."""

    folder: Path
    classes: list[str]
    say: Say
    found: list[Found] = field(default_factory=list)
    begin_s: float = field(default_factory=time.time)  # of the clock that files are dated by
    seconds: float = 0.0  # so far

    def __post_init__(self) -> None:
        self._todo = deque((position, f"{name}/") for position, name in enumerate(self.classes))
        if "." not in self.classes:  # else the images lie in the folder itself
            self._todo.appendleft((-1, ""))
        self._num_open = Counter(position for position, _ in self._todo)  # class -> folders still to be walked
        self._links: defaultdict[int, Links] = defaultdict(Links)
        self._within = Within(self.folder, self.classes)
        self._waits: deque[float] = deque(maxlen=TRIED)  # seconds, of the last folders
        self._threads: Threads[tuple[int, str], Found] | None = None
        self._num_asked = 0  # of the threads, not answered

    def go_on(self, budget_s: float | None = None) -> bool:
        """Whether all is walked, after at most budget_s seconds and one answer; None: as long as it takes."""
        begin = said = now = time.monotonic()
        while (self._todo or self._num_asked) and (budget_s is None or now - begin < budget_s):
            answer = self._next(SAY_EVERY_S if budget_s is None else budget_s - (now - begin))
            if answer is not None:
                self.found.append(answer)
                self._note(answer)
            now = time.monotonic()
            if budget_s is None and now - said >= SAY_EVERY_S:
                said = now
                number = sum(len(found.content.images) for found in self.found)
                left = len(self._todo) + self._num_asked
                self.say(f"Walking {self.folder}: {number:,} images so far, {left:,} folders to go at least.")
        self.seconds += time.monotonic() - begin
        return not self._todo and not self._num_asked

    def _note(self, answer: Found) -> None:
        """The folders to go on with; links to other places last, class by class."""
        position, content = answer.position, answer.content
        if position < 0:
            return
        more = [f"{answer.prefix}{name}/" for name in content.folders]
        for name, real in content.links.items():
            self._links[position].add(f"{answer.prefix}{name}/", real)
        self._num_open[position] += len(more) - 1
        if not self._num_open[position] and position in self._links:
            more += self._links[position].follow()
            self._num_open[position] += len(more)
        self._todo += [(position, prefix) for prefix in more]

    def _next(self, timeout_s: float) -> Found | None:
        """None: no answer within the time."""
        if self._threads is None and len(self._waits) == TRIED and sum(self._waits) >= TRIED * LATE_S:
            self._threads = Threads(self._look, "walk")
        if self._threads is None:
            begin, begin_cpu = time.monotonic(), time.thread_time()
            answer = self._look(self._todo.popleft())
            self._waits.append(time.monotonic() - begin - (time.thread_time() - begin_cpu))
            return answer
        while self._todo:
            self._num_asked += 1
            self._threads.put(self._todo.popleft())
        try:
            _, answer = self._threads.answer(timeout_s)
        except queue.Empty:
            return None
        self._num_asked -= 1
        return answer

    def _look(self, folder: tuple[int, str]) -> Found:
        position, prefix = folder
        try:
            path = str(self.folder / prefix)
            stamp = stamp_of(path)  # before the names: what changes in between then shows the next time
            return Found(position, prefix, stamp, content(path, self._within))
        except (FileNotFoundError, NotADirectoryError):
            if prefix.count("/") <= 1:
                return Found(position, prefix, NOWHERE, Content())
            raise

    def end(self) -> None:
        if self._threads is not None:
            self._threads.end()

    def arrays(self) -> tuple[dict[str, np.ndarray], Counter[str]]:
        """text, ends and targets of index.Index, and what was left out."""
        left_out: Counter[str] = Counter()
        by_class: list[list[Found]] = [[] for _ in self.classes]
        for found in self.found:
            left_out.update(found.content.left_out)
            if found.position >= 0:
                by_class[found.position].append(found)
            elif found.content.images:
                left_out["beside"] += len(found.content.images)
        texts, counts, lengths = [], [], []
        for folders in by_class:
            paths = sorted(f"{found.prefix}{name}" for found in folders for name in found.content.images)
            encoded = [os.fsencode(path) for path in paths]
            texts.append(b"".join(encoded))
            lengths.append(np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded)))
            counts.append(len(encoded))
        return {
            "text": np.frombuffer(b"".join(texts), dtype=np.uint8),
            "ends": np.cumsum(np.concatenate([np.zeros(0, dtype=np.int64), *lengths])),
            "targets": np.repeat(np.arange(len(counts), dtype=np.int64), counts),
        }, left_out
