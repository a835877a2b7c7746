"""deploy/skypilot.yaml: its command, as SkyPilot starts it on two machines, trains, and goes on when started again."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT
from helpers.hosts import Hosts, requirement
from helpers.restarted_nodes import Started, goes_on_after_its_end, small

TASK: dict[str, Any] = yaml.safe_load((ROOT / "deploy/skypilot.yaml").read_text(encoding="utf-8"))


def words(environ: dict[str, str], home: Path) -> list[str]:
    """Return the words of the task's command, as a shell passes them to Python."""
    python, written = home / "venv/bin/python", home / "words"
    if not python.exists():
        python.parent.mkdir(parents=True)
        python.write_text('#!/bin/sh\nprintf "%s\\n" "$@" >"$HOME/words"\n')
        python.chmod(0o755)
    environ = {**os.environ, **environ, "HOME": str(home)}
    subprocess.run(["bash", "-c", TASK["run"]], env=environ, check=True, timeout=60)
    return ["python", *written.read_text().splitlines()]


def test_a_machine_that_is_taken_back_is_replaced_and_its_bucket_kept():
    assert TASK["resources"]["use_spot"] is True
    assert TASK["resources"]["job_recovery"]["max_restarts_on_errors"] > 0
    assert TASK["file_mounts"]["/runs"]["mode"] == "MOUNT_CACHED"
    # the read-only copy that each machine has
    assert TASK["file_mounts"]["/data"]["mode"] == "COPY"


@pytest.mark.slow
@pytest.mark.skipif(requirement() is not None, reason=str(requirement()))
def test_two_machines_train_and_their_successors_go_on(tree: Path, tmp_path: Path):
    (tmp_path / "runs").mkdir()
    assert TASK["num_nodes"] == 2
    with Hosts(["head", "worker1"], tmp_path) as hosts:
        started = []
        for rank in range(2):
            # SkyPilot 0.14, sky/backends/task_codegen.py
            environ = {
                "SKYPILOT_NODE_IPS": "\n".join(host.address for host in hosts),
                "SKYPILOT_NUM_NODES": "2",
                "SKYPILOT_NUM_GPUS_PER_NODE": "1",
                "SKYPILOT_NODE_RANK": str(rank),
            }
            typed = words(environ, tmp_path)
            assert {"trainer.devices=1", "hydra.run.dir=/runs/imagenet"} <= set(typed)
            started.append(Started([word.replace("=/runs/", f"={tmp_path}/runs/") for word in typed], environ))
        said = goes_on_after_its_end(hosts, started, small(tree), tmp_path / "runs/imagenet")
    assert f"{hosts[0].address}:" in said and "rank 0 of 2, local rank 0 of 1, node 0 of 2." in said
