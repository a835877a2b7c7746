import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, clean_environ


@pytest.mark.slow
def test_both_ways_are_measured(trained: Path, tree: Path):
    command = [sys.executable, str(ROOT / "scripts/predict_speed.py"), str(trained), str(tree / "val")]
    done = subprocess.run(command, env=clean_environ(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^\| (\S.*?) \| (\d+) \| (\d+\.\d\d) \|$", done.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == ["plain torchvision loop", "predict, best.ckpt"]
    assert rows[0][2] == "1.00"
    assert done.stdout.startswith("11 images, ")
