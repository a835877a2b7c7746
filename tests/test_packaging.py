"""The dependencies are frozen, the wheel is whole and runs by itself, and nothing in git belongs to one machine."""

import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT, SMALL, Run

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

# Hosts of package registries (a mirror may be all that a machine reaches) and folders of one machine. The brackets keep
# these lines from being found by themselves.
FOREIGN = re.compile(
    r"[p]ypi\.org|[p]ythonhosted\.org|[d]ownload\.pytorch\.org|[a]naconda\.org|[n]pmjs\.org"
    r"|(?<![\w.~/-])/[w]ork/|(?<![\w.~/-])/[r]oot/|(?<![\w.~/-])/[U]sers/"
)


def test_uv_run_installs_the_tools_only_when_asked():
    """uv adds the group dev to every `uv run` unless told otherwise; who wants to train needs no pyright."""
    assert any(name.startswith("pytest>") for name in PYPROJECT["dependency-groups"]["dev"])
    assert PYPROJECT["tool"]["uv"]["default-groups"] == []
    tools = r"uv run (?P<options>(?:--\S+ \w+ )*)(?:pytest|ruff|pyright)\b"
    for name in ("README.md", "scripts/check.sh"):
        found = list(re.finditer(tools, (ROOT / name).read_text()))
        assert found, name
        assert all("--group dev " in line["options"] for line in found), name


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(next(folder.iterdir())) as archive:
        yield archive


def test_the_wheel_holds_every_file(wheel: zipfile.ZipFile):
    source, conf = ROOT / "src", ROOT / "conf"
    files = [path for path in (source / "imagenet_ddp").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    expected = {path.relative_to(source).as_posix() for path in files}
    expected |= {f"imagenet_ddp/conf/{path.relative_to(conf).as_posix()}" for path in conf.rglob("*.yaml")}
    expected |= {f"imagenet_ddp/scripts/{path.name}" for path in (ROOT / "scripts").glob("*.sbatch")}
    assert "imagenet_ddp/data/imagenet_classes.tsv" in expected
    assert "imagenet_ddp/scripts/train.sbatch" in expected
    assert "imagenet_ddp/conf/train.yaml" in expected

    info = f"imagenet_ddp-{PYPROJECT['project']['version']}.dist-info/"
    contents = wheel.namelist()
    assert {name for name in contents if not name.startswith(info)} == expected
    assert f"{info}licenses/LICENSE" in contents


@pytest.mark.slow(3)
def test_a_program_sees_the_types_of_the_installed_wheel(wheel: zipfile.ZipFile, tmp_path: Path):
    """Without py.typed, pyright asks for stubs of the package, and other type checkers take all of it for Any."""
    venv.create(tmp_path / "env", symlinks=True)
    python = tmp_path / "env/bin/python"
    (site,) = (tmp_path / "env/lib").glob("python*/site-packages")
    wheel.extractall(site)
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))  # torch and the rest
    program = tmp_path / "program.py"
    program.write_text(
        "# pyright: strict\n"
        "from imagenet_ddp import load\n"
        'for image in load("run").predict("*.jpg"):\n'
        "    reveal_type(image.label)\n"
    )
    command = [sys.executable, "-m", "pyright", "--pythonpath", str(python), str(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert 'Type of "image.label" is "str' in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_installed_wheel_runs_from_another_folder(wheel: zipfile.ZipFile, tree: Path, run: Run, tmp_path: Path):
    site = tmp_path / "site"
    wheel.extractall(site)  # all that installing is, for a wheel of plain files without scripts

    shown = run("train", "--cfg", "job", PYTHONPATH=str(site))
    assert shown.returncode == 0, shown.stderr
    assert "name: shapes" in shown.stdout
    searched = run("train", "--info", "searchpath", PYTHONPATH=str(site))
    assert str(site / "imagenet_ddp" / "conf") in searched.stdout, searched.stdout + searched.stderr
    assert str(ROOT) not in searched.stdout
    submitted = run("submit", PYTHONPATH=str(site))
    assert " site/imagenet_ddp/scripts/train.sbatch" in submitted.stdout, submitted.stdout + submitted.stderr

    run_dir = tmp_path / "trained"
    options = [*SMALL, f"data.root={tree}", "trainer.max_epochs=1", "trainer.limit_train_batches=3"]
    run("train", *options, f"hydra.run.dir={run_dir}", code=0, PYTHONPATH=str(site))
    assert (run_dir / "checkpoints" / "best.ckpt").is_file()


def test_no_tracked_file_belongs_to_one_machine():
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]  # CI may have cloned as another user
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    if listed.returncode != 0 or not listed.stdout:
        pytest.skip("not a git checkout")
    found = []
    for path in (ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()):
        for number, line in enumerate(path.read_bytes().decode(errors="replace").splitlines(), 1):
            if FOREIGN.search(line) or str(ROOT) in line:
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert found == []
