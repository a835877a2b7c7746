"""Bytecode is kept where Python would not keep it, read at the second start, and left to Python everywhere else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import clean_environ

from imagenet_ddp.system.process import SPIN_COUNT, limit_spinning

# "torch" is a module without bytecode; what is imported within the block is written to the cache, or not
SCRIPT = """
import sys
from imagenet_ddp.system.process import import_torch
with import_torch():
    import torch
print(torch.__cached__, sys.dont_write_bytecode)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with an uncompiled module of the name torch."""
    folder = tmp_path / "site"
    (folder / "torch").mkdir(parents=True)
    (folder / "torch/__init__.py").write_text("name = 'a stand-in'\n")
    return folder


def start(site: Path, *arguments: str, script: str = SCRIPT, **environ: str) -> list[str]:
    environ = {"PYTHONPATH": str(site), "XDG_CACHE_HOME": str(site.parent / "cache"), **environ}
    command = [sys.executable, *arguments, "-c", script]
    return subprocess.run(
        command, env=clean_environ(**environ), check=True, capture_output=True, text=True
    ).stdout.split()


@pytest.fixture
def cache(site: Path) -> Path:
    return site.parent / "cache/imagenet_ddp/bytecode"


@pytest.mark.parametrize("how", ["variable", "option", "read-only"])
def test_bytecode_is_kept_in_the_cache(how: str, site: Path, cache: Path) -> None:
    if how == "read-only":
        if os.geteuid() == 0:
            pytest.skip("root may write everywhere")
        (site / "torch").chmod(0o500)
    environ = {"PYTHONDONTWRITEBYTECODE": "1"} if how == "variable" else {}
    options = ["-B"] if how == "option" else []
    written, forbidden = start(site, *options, **environ)
    assert Path(written).is_relative_to(cache) and Path(written).is_file() and forbidden == "False"
    assert not (site / "torch/__pycache__").exists()
    before = Path(written).stat().st_mtime_ns
    assert start(site, *options, **environ)[0] == written
    assert Path(written).stat().st_mtime_ns == before, "read, not written again"


def test_python_keeps_it_where_it_can(site: Path, cache: Path) -> None:
    assert start(site)[0].startswith(str(site / "torch/__pycache__"))
    assert start(site, PYTHONDONTWRITEBYTECODE="1") == [start(site)[0], "True"], "compiled: nothing is to be kept"
    assert not cache.exists()


@pytest.mark.parametrize("typed", [{}, {"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "7"}])
def test_threads_spin_briefly_unless_the_user_set_how_they_wait(typed: dict[str, str]) -> None:
    environ = {"HOME": "/", **typed}
    limit_spinning(environ)
    assert environ == {"HOME": "/", **(typed or {"GOMP_SPINCOUNT": SPIN_COUNT})}
