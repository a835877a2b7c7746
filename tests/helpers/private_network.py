"""Run a few lines of Python in their own network, with the cards, addresses and routes that a test needs (Linux,
root)."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).resolve().parent.parent.parent / "src"

TWO_CARDS = """
    for card in 3 4; do ip link add ens$card type veth peer name far$card; done
    ip addr add 10.1.1.20/24 dev ens3
    ip addr add 10.1.7.20/24 dev ens3
    ip addr add 10.1.1.21/24 dev ens3 label ens3:1
    ip addr add 10.2.2.20/24 dev ens4
    ip -6 addr add fd00:2::20/64 dev ens4 nodad
    for card in ens3 far3 ens4 far4; do ip link set $card up; done
    ip link add loose0 type veth peer name off0
    ip addr add 10.4.4.20/24 dev loose0
    ip addr add 10.3.3.20/24 dev off0
    ip link set loose0 up
"""


def in_own_network(lines: str, script: str) -> dict[str, Any]:
    """Run a Python script in a new network namespace, and return the dictionary `out` that the script fills.

    lines: shell commands that set up the network. The host name resolves to 127.0.1.1, as on Debian. The namespace ends
    with the process, so there is nothing to clean up.
    """
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("ip"):
        pytest.skip("needs root, unshare and ip")
    shell = f"""
        set -e
        hosts=$(mktemp); printf '127.0.0.1 localhost\\n127.0.1.1 node-z\\n' > $hosts
        mount --make-rprivate / && mount --bind $hosts /etc/hosts && rm -f $hosts
        hostname node-z
        ip link set lo up
        {lines}
        exec "$0" -c "$1"
    """
    head = "import json, sys, time\nfrom imagenet_ddp.distributed import nccl\n"
    head += "from imagenet_ddp.system import interfaces as i\nout = {}\n"
    python = [sys.executable, f"{head}{script}\njson.dump(out, sys.stdout)"]
    done = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "sh", "-c", shell, *python],
        env=dict(os.environ, PYTHONPATH=str(SOURCE)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode and ("Operation not permitted" in done.stderr or "not supported" in done.stderr):
        pytest.skip(f"network namespaces cannot be created here: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
