"""Names and text are UTF-8, whatever the locale."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

CODE = """
import os, sys
from pathlib import Path

from imagenet_ddp.system.process import use_utf8

use_utf8()
print(sorted(os.listdir(sys.argv[1])), sys.argv[2:], os.getpid())
Path("written").write_text("Möwe")
"""


@pytest.mark.parametrize("options", [[], ["-I"]])
def test_a_locale_without_utf8(options: list[str], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in (b"M\xc3\xb6we", b"M\xf6we"):  # the second is not UTF-8, and keeps its bytes
        (tmp_path / "folder" / os.fsdecode(name)).touch()
    (tmp_path / "code.py").write_text(CODE, encoding="utf-8")
    environ = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-X", "utf8=0", *options, "code.py", "folder", "Möwe", "a b"]
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE) as process:
        output = process.communicate(timeout=60)[0]
    assert output.decode("utf-8", "surrogateescape") == (
        f"['Möwe', 'M\\udcf6we'] ['Möwe', 'a b'] {process.pid}\n"  # in the same process, which a launcher watches
    )
    assert (tmp_path / "written").read_bytes() == "Möwe".encode()


def test_every_command_starts_in_utf8() -> None:
    """By command.run_command, or itself."""
    source = ROOT / "src/imagenet_ddp"
    mains = [path for path in source.rglob("*.py") if re.search(r"^def main\(", path.read_text("utf-8"), re.MULTILINE)]
    lacking = [
        path
        for path in mains
        if path != source / "__main__.py" and not re.search(r"run_command\(|use_utf8\(\)", path.read_text("utf-8"))
    ]
    assert len(mains) > 9 and not lacking
