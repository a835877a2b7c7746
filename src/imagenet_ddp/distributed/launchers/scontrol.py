"""Run SLURM's scontrol, for example to look up the address of a node. Does not import torch."""

import re
import subprocess

TIMEOUT_S = 20.0  # a controller that is busy with thousands of jobs takes seconds to answer


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run scontrol for up to TIMEOUT_S seconds. If it is missing or does not answer, stderr has the reason."""
    command = ["scontrol", *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except FileNotFoundError:
        return subprocess.CompletedProcess(command, 127, "", "there is no scontrol on this node")
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"scontrol does not answer within {TIMEOUT_S:.0f} s")


def node_address(name: str) -> str | None:
    """Return the address (NodeAddr) that SLURM has for a node whose name does not resolve; None if there is none."""
    done = run("show", "node", name)
    found = re.search(r"\bNodeAddr=(\S+)", done.stdout)
    return found[1] if done.returncode == 0 and found and found[1] != name else None
