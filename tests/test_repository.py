"""The files that a code host, an editor and an index read are what these expect, and say the same as each other."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT
from trove_classifiers import classifiers

from imagenet_ddp import __version__

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TEMPLATES = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml"))
HOOKS: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
CHECK = (ROOT / "scripts/check.sh").read_text()


def checked(tool: str, *arguments: object) -> None:
    """Run a command of the environment, which must accept the files."""
    command = [sys.executable, "-m", tool, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("citation-file-format", [ROOT / "CITATION.cff"]),
        ("github-workflows", sorted((ROOT / ".github/workflows").glob("*.yml"))),
        ("github-issue-forms", TEMPLATES),
        ("github-issue-config", [ROOT / ".github/ISSUE_TEMPLATE/config.yml"]),
    ],
)
def test_the_host_accepts_each_file(schema: str, files: list[Path]):
    assert files
    checked("check_jsonschema", "--builtin-schema", f"vendor.{schema}", *files)


def test_one_version_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    changelog = re.findall(r"^## (\S+) \(", (ROOT / "docs/changelog.md").read_text(), re.MULTILINE)
    assert [__version__, citation["version"], changelog[0]] == [PROJECT["version"]] * 3
    assert (citation["license"], citation["authors"]) == (PROJECT["license"], PROJECT["authors"])


def test_the_classifiers_are_those_of_the_index_and_name_the_versions_that_were_run():
    assert set(PROJECT["classifiers"]) <= classifiers
    named = {word.rpartition(" ")[2] for word in PROJECT["classifiers"] if "Python :: 3." in word}
    workflow = yaml.safe_load((ROOT / ".github/workflows/check.yml").read_text())
    assert set(workflow["jobs"]["check"]["strategy"]["matrix"]["python"]) == named
    for name in (".ci/run", "docs/two-machines.md"):
        assert named == set(re.findall(r"\b3\.1\d\b", (ROOT / name).read_text())), name
    assert f"; {' and '.join(sorted(named))} were tested" in (ROOT / "docs/getting-started.md").read_text()
    assert f">={min(named)}" == PROJECT["requires-python"]
    editor = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert editor["image"] == f"python:{max(named)}"


def test_the_workflow_runs_what_any_machine_runs():
    steps = yaml.safe_load((ROOT / ".github/workflows/check.yml").read_text())["jobs"]["check"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == ["bash .ci/run"]
    assert "exec bash scripts/check.sh" in (ROOT / ".ci/run").read_text()


def test_the_hooks_are_the_first_checks():
    """The hooks run as check.sh does, in its order, on every commit with a Python file."""
    checked("pre_commit", "validate-config", ROOT / ".pre-commit-config.yaml")
    steps = dict(re.findall(r'^step "(\w+)" (.+)$', CHECK, re.MULTILINE))
    assert {hook["id"]: hook["entry"] for hook in HOOKS} == dict(list(steps.items())[: len(HOOKS)])
    assert len(HOOKS) == 3 and not any(hook["pass_filenames"] for hook in HOOKS)


def test_contributors_and_editors_set_up_alike():
    editor = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    contributing = (ROOT / ".github/CONTRIBUTING.md").read_text()
    assert {"name", "image", "postCreateCommand"} <= set(editor)
    for command in editor["postCreateCommand"].split(" && "):
        assert command in contributing, command
    quick = 'uv run --group dev pytest -n 3 -m "not slow"'
    assert quick in contributing and quick in (ROOT / "README.md").read_text()


def test_nothing_implies_a_published_package():
    """An index may have another project of this name; extras are installed from the checkout, or by their packages."""
    published = re.compile(r"\b(?:install|add) (?:-\S+ )*['\"]?imagenet[_-]ddp(?![-\w./])")
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / ".github").glob("*.md")]
    assert [page.name for page in pages if published.search(page.read_text())] == []
    listed = re.search(r"names of the extras that you need \(([^)]+)\)", (ROOT / "docs/getting-started.md").read_text())
    assert listed and set(re.findall(r"`(\w+)`", listed[1])) == set(PROJECT["optional-dependencies"])
    assert published.search("pip install 'imagenet_ddp[onnx]'") and published.search("uv add imagenet_ddp")


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_each_page_opens_with_what_a_person_wants(page: Path):
    """First comes a sentence, then, before the second heading below the title, a line to type."""
    if page.stem in ("architecture", "changelog", "comparison"):  # nothing to type
        return
    title, opening, rest = page.read_text(encoding="utf-8").split("\n\n", 2)
    assert title.startswith("# ") and re.match(r"[A-Z]", opening), f"{page.name} opens with: {opening}"
    start = "\n\n".join([opening, *re.split(r"^#+ .*$", rest, maxsplit=2, flags=re.MULTILINE)[:2]])
    assert re.search(r"^(    |```|\| .*`)", start, re.MULTILINE), f"{page.name} has no line to type at its start"
