from typing import Any

from imagenet_ddp.benchmark import results
from imagenet_ddp.benchmark.results import row


def content() -> dict[str, Any]:
    rows = [
        row("Step", "bare loop", "ms per step", [2.0, 2.2, 1.9], 1.0),
        row("Step", "ours | *all*", "ms per step", [3.0, 3.3, 2.85], 1.5),
        row("Time", "aten::mm", "ms per step", [1234.5], None, share=0.25),
    ]
    return {
        "mode": "step", "rows": rows, "notes": ["A note."], "conclusion": "The bottleneck is the host.", "repeats": 3,
        "machine": {"cpu": "Some CPU", "num_cores": 2}, "versions": {"torch": "2.15.0", "lightning": "2.6.6"},
        "finished_at": "2026-11-23T01:00:00+0000", "command": "python -m imagenet_ddp.benchmark benchmark=step",
    }  # fmt: skip


def test_each_group_is_a_table():
    lines = results.text(content()).splitlines()
    assert lines[0].split() == ["Step", "ms", "per", "step", "range", "ratio"]
    assert lines[2].split() == ["bare", "loop", "2", "1.9", "to", "2.2", "1.00"]
    assert lines[5].split() == ["Time", "ms", "per", "step", "share"]
    assert lines[7].split() == ["aten::mm", "1,234", "25.0", "%"]
    assert lines[-1] == "The bottleneck is the host."
