import io
import os
import threading
import time
from pathlib import Path

import pytest
from helpers.fake_runs import COLUMNS, make_run, write_metrics

from imagenet_ddp.report import watch
from imagenet_ddp.runs.log import Log


def test_each_epoch_is_printed_once_until_the_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "run"
    stream = io.StringIO()
    follower = threading.Thread(
        target=watch.watch, args=(folder,), kwargs={"poll_s": 0.01, "log": Log(None, 0, stream)}
    )
    folder.parent.mkdir(exist_ok=True)
    make_run(tmp_path / "part", epochs=2, finished=False)
    make_run(tmp_path / "whole", epochs=5)
    (tmp_path / "part").rename(folder)
    follower.start()
    deadline = time.monotonic() + 60
    while "2/5" not in stream.getvalue():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for name in ("metrics.csv", "summary.json"):
        (tmp_path / "whole" / name).replace(folder / name)
    follower.join(60)
    assert not follower.is_alive()
    lines = stream.getvalue().splitlines()
    assert lines[0].split()[0] == "epoch"
    assert [line.split()[0] for line in lines[1:-1]] == [f"{epoch}/5" for epoch in range(1, 6)]
    assert lines[-1] == "The run is finished. Best top-1: 80.00 % (epoch 5)."


def test_top5_is_left_out_while_it_is_always_100_percent(tmp_path: Path):
    """As with at most five classes. A value below 100 % after the titles waits for the next titles."""
    folder = make_run(tmp_path / "run", {"trainer.max_epochs": 22}, epochs=22)
    place = COLUMNS.index("val/top5")
    for low, titles in ((None, [False, False]), (0, [True, True]), (5, [False, True])):
        rows = [[epoch + 1, *[1] * (len(COLUMNS) - 1)] for epoch in range(22)]
        if low is not None:
            rows[low][place] = 0.5  # type: ignore[call-overload]
        write_metrics(folder, rows)
        stream = io.StringIO()
        watch.watch(folder, poll_s=0.01, log=Log(None, 0, stream))
        lines = stream.getvalue().splitlines()[:-1]
        assert ["top-5" in line for line in lines if "epoch" in line] == titles
        assert {len(line) for line in lines[:21]} == {len(lines[0])}


def test_a_run_that_writes_nothing_any_more_is_over(tmp_path: Path):
    folder = make_run(tmp_path / "run", epochs=2, finished=False)
    os.utime(folder / "logs" / "rank0.log", (0, 0))
    stream = io.StringIO()
    watch.watch(folder, poll_s=0.01, log=Log(None, 0, stream))
    assert "The run is interrupted" in stream.getvalue().splitlines()[-1]
