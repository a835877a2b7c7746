"""Renew the table of faults in docs/reliability.md: python scripts/reliability.py

The command trains. Some faults need root, namespaces and SLURM. Run nothing else on the machine. On two cores, it takes
about ten minutes.
"""

import datetime
import os
import platform
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/reliability.md"
# Faults that are tested with the module that handles them: "fault: required outcome" -> test.
ELSEWHERE = {
    "SIGKILL of a rank of two nodes: both commands end within 10 s and name its rank":
        "tests/distributed/test_several_hosts.py::test_a_rank_that_dies_ends_all",
    "SIGKILL of one node's command: the other node saves a checkpoint and ends, or its message names the lost rank":
        "tests/distributed/test_several_hosts.py::test_a_command_that_is_killed_ends_all",
    "SIGKILL of a loader process: the run ends with a one-sentence error":
        "tests/data/test_loader_failures.py::test_training_ends_with_one_sentence",
    "SIGKILL of `prepare=pack` at random moments: the next command makes the pack with the same bytes":
        "tests/prepare/test_pack.py::test_killed_at_random_moments_the_bytes_are_the_same",
    "SIGKILL of `tune`: its runs end, saved, and the same command completes the study":
        "tests/tune/test_main.py::test_real_trials_killed_resumed_and_pruned",
    "last.ckpt is damaged, empty or gone when SLURM restarts a job, or with resume=: the previous checkpoint is used":
        "tests/runs/test_checkpoints.py::test_the_one_before_is_taken",
    "A file of a pack is truncated while it is read: the error names the file":
        "tests/data/sources/test_packed.py::test_a_shard_cut_off_under_way_is_named",
    "A byte of a pack is altered: `prepare=check` and `data.verify=true` name the image":
        "tests/data/sources/test_packed.py::test_an_altered_image_is_found",
    "A logger's server hangs (accepts messages, never answers): the run continues and finally says so":
        "tests/callbacks/test_loggers.py::test_a_server_that_hangs_holds_nothing_up",
    "A logger's server does not answer at startup: the run is refused within 30 s":
        "tests/callbacks/test_loggers.py::test_a_service_that_does_not_begin_is_refused",
    "A logger's server dies during a run: the logger is switched off, and the run continues":
        "tests/callbacks/test_loggers.py::test_a_failure_is_reported_once_and_ends_it",
}  # fmt: skip


def table() -> int:
    """Run the tests, and write a row for each fault to the page. Return pytest's exit code."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "slow or not slow",
            "-o",
            "junit_family=xunit1",
            f"--junitxml={report}",
        ]
        code = subprocess.run([*command, "tests/faults", *ELSEWHERE.values()], cwd=ROOT).returncode
        cases = ElementTree.parse(report).getroot().iter("testcase")
        rows = _rows(list(cases))
    head = ["| fault | what happens | exit code | seconds to the message |", "|---|---|---|---|"]
    lines = [f"{_where()}, by `python scripts/reliability.py`:", "", *head, *rows]
    _replace(lines)
    return code


def _rows(cases: list[ElementTree.Element]) -> list[str]:
    """Return one row of the table for each test, which covers all of the test's parameters."""
    tests: dict[str, list[ElementTree.Element]] = {}
    for case in cases:
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name', '').partition('[')[0]}"
        tests.setdefault(name, []).append(case)
    named = {test: fault for fault, test in ELSEWHERE.items()}
    rows = []
    for name, runs in tests.items():
        told: dict[str, str] = {}
        for each in runs[0].iter("property"):
            told.setdefault(each.get("name", ""), each.get("value", ""))
        done, _, must = named.get(name, told.get("fault", "")).partition(": ")
        if not must:
            continue
        held = sum(run.find("failure") is None and run.find("error") is None for run in runs)
        skipped = sum(run.find("skipped") is not None for run in runs)
        outcome = "not run here: " if skipped == len(runs) else "" if held == len(runs) else "FAILED: "
        cells = (done, outcome + must.rstrip("."), told.get("code", ""), told.get("seconds", ""))
        rows.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return rows


def _where() -> str:
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    date = datetime.date.today().isoformat()
    return f"{date}, {os.cpu_count()} CPU cores, {memory_gib:.0f} GiB, Python {platform.python_version()}"


def _replace(lines: list[str]) -> None:
    """Replace the table of the page."""
    text, begin, end = PAGE.read_text(encoding="utf-8"), "<!-- begin: table -->", "<!-- end: table -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    PAGE.write_text("\n".join([before + begin, "", *lines, "", end + after]), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(table())
