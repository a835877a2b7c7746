"""The Dockerfile: the user of its containers, what uv is asked to install, and the code that is installed from the
files that it copies. Whether the image builds from its base is for a machine with a builder: docs/container.md."""

import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from conftest import ROOT, clean_environ

from . import pods

UV, CACHE = "/opt/uv/bin/uv", "/var/cache/uv"  # in the image, while it is built


def last_stage() -> list[tuple[str, str]]:
    """Return the instructions that make the image: each with its text."""
    text = re.sub(r"^#.*\n", "", (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    found = [(name, rest) for name, _, rest in (line.partition(" ") for line in lines if line.strip())]
    return found[max(number for number, (name, _) in enumerate(found) if name == "FROM") :]


def texts(instruction: str) -> list[str]:
    return [text for name, text in last_stage() if name == instruction]


def installing(uv: Path, cache: Path) -> list[str]:
    """Return the shell commands that install packages, with another uv."""
    commands = [re.sub(r"^(\s*--mount=\S+)+", "", text) for text in texts("RUN") if UV in text]
    return [command.replace(UV, str(uv)).replace(CACHE, str(cache)) for command in commands]


def test_the_user_is_the_one_of_the_pods():
    (user,) = texts("USER")
    (pod, _) = pods.of_jobset()
    security = pod.spec["securityContext"]
    assert user == f"{security['runAsUser']}:{security['runAsGroup']}"
    mounted = {mount["mountPath"] for mount in pod.spec["containers"][0]["volumeMounts"]} - {"/dev/shm"}
    (made,) = (text for text in texts("RUN") if "useradd" in text)
    assert mounted <= set(made.split()), "folders that belong to the user"
    assert f"--uid {security['runAsUser']} " in made


@pytest.mark.parametrize(
    ("backend", "extras", "options"),
    [("", "", []), ("cpu", "timm onnx", ["--torch-backend=cpu", "--extra", "timm", "--extra", "onnx"])],
)
def test_arguments_of_the_build_reach_uv(backend: str, extras: str, options: list[str], tmp_path: Path):
    uv, asked = tmp_path / "uv", tmp_path / "asked"
    uv.write_text(f'#!/bin/sh\necho "$@" >>{shlex.quote(str(asked))}\n')
    uv.chmod(0o755)
    environ = {**os.environ, "TORCH_BACKEND": backend, "EXTRAS": extras}
    for command in installing(uv, tmp_path):
        subprocess.run(["sh", "-ec", command], env=environ, check=True, timeout=60)
    venv, dependencies, code = (line.split() for line in asked.read_text().splitlines())
    assert (venv[0], venv[-1]) == ("venv", "/opt/venv")
    assert dependencies[:2] == code[:2] == ["pip", "install"] and code[2:] == ["--no-deps", "."]
    assert sorted(dependencies[2:]) == sorted(["-r", "pyproject.toml", *options])
    assert (
        set(extras.split())
        <= tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    )


@pytest.mark.skipif(shutil.which("uv") is None, reason="the image is installed by uv")
def test_the_code_is_installed_from_the_copied_files(tmp_path: Path):
    for text in texts("COPY"):
        *sources, target = text.split()
        for name in sources:
            source = ROOT / name
            into = tmp_path / "copied" / (target if source.is_dir() else f"{target}/{name}")
            into.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copyfile)(source, into)
    uv, venv = Path(shutil.which("uv") or ""), tmp_path / "venv"
    cache = subprocess.run([uv, "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()
    subprocess.run([uv, "venv", "-q", "--no-project", venv], check=True, timeout=60)
    for command in installing(uv, Path(cache))[1:]:  # without the dependencies
        environ = clean_environ(VIRTUAL_ENV=str(venv))
        done = subprocess.run(
            ["sh", "-ec", command], cwd=tmp_path / "copied", env=environ, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
    (command,) = texts("CMD")
    assert (venv / "bin" / json.loads(command)[0]).is_file()
    (site,) = venv.glob("lib/python*/site-packages")
    installed = {path.relative_to(site / "imagenet_ddp") for path in (site / "imagenet_ddp").rglob("*.*")}
    source = ROOT / "src/imagenet_ddp"
    assert {path.relative_to(source) for path in source.rglob("*.py")} <= installed
    assert {Path("conf/train.yaml"), Path("scripts/train.sbatch")} <= installed
