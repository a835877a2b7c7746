"""What counts as installed."""

import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from conftest import ROOT, Run
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from imagenet_ddp.cli.parse import command_line
from imagenet_ddp.config import own_code
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.packages import extra_with, install, is_installed, missing_package, requirements
from imagenet_ddp.system.text import UV

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_a_folder_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Python would import an empty folder, or one of checkpoints."""
    (tmp_path / "somebodys_timm").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert not is_installed("somebodys_timm")
    (mistake,) = missing_package("model=timm", "somebodys_timm")
    assert mistake.what == "model=timm needs the package somebodys_timm, which is not installed"
    assert mistake.keys == ("model",) and mistake.fixes[0].run == install("somebodys_timm")
    (tmp_path / "somebodys_timm" / "__init__.py").touch()
    assert is_installed("somebodys_timm")
    assert is_installed("pytest")
    assert is_installed("this")  # a single file


@pytest.mark.parametrize(
    ("package", "verb", "options"),
    [
        ("timm", "train", ["model=timm", "model.name=resnet18"]),
        ("tensorboard", "train", ["logger=tensorboard"]),
        ("optuna", "tune", ["tune.num_trials=1"]),
        ("s3fs", "train", ["data=streamed", "data.root=s3://bucket/pack"]),
    ],
)
def test_a_folder_of_that_name_is_not_taken_for_the_package(
    run: Run, tmp_path: Path, package: str, verb: str, options: list[str]
):
    (tmp_path / package).mkdir()
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "sitecustomize.py").write_text(  # the package is found in the current folder only
        "import importlib.util as u, os\nfrom importlib.machinery import PathFinder\nfind = u.find_spec\n"
        "u.find_spec = lambda name, package=None: (\n"
        f"    PathFinder.find_spec(name, [os.getcwd()]) if name == {package!r} else find(name, package))\n"
    )
    result = run(verb, *options, code=2, PYTHONPATH=str(tmp_path / "hide"))
    assert f"needs the package {package}, which is not installed. Hint: run `" in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_an_extra_is_installed_by_its_packages(monkeypatch: pytest.MonkeyPatch):
    """The name imagenet_ddp[...] would be looked for on an index, which does not have this project."""

    def same(requirement: str) -> tuple[str, SpecifierSet]:
        return canonicalize_name(Requirement(requirement).name), Requirement(requirement).specifier

    for extra, packages in EXTRAS.items():
        found = requirements(f"imagenet_ddp[{extra}]")
        assert set(map(same, found)) == set(map(same, packages)), extra
    (mistake,) = missing_package("tune", "nowhere", requirement="imagenet_ddp[tune]")
    assert mistake.fixes[0].run == install("optuna<6,>=5.0")
    assert install("imagenet_ddp[timm]").endswith(" 'safetensors>=0.5' 'timm>=1.0.27'")

    def not_installed(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("imagenet_ddp.system.packages.requires", not_installed)  # a build on PYTHONPATH
    (mistake,) = missing_package("tune", "nowhere", requirement="imagenet_ddp[tune]")
    assert mistake.fixes[0].run == install("nowhere")


def test_under_uv_run_the_project_is_synchronised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """As the pages say it, and so that the package is that of the lock file."""
    monkeypatch.setenv(UV, "1")
    monkeypatch.setattr("sys.prefix", str(ROOT / ".venv"))
    monkeypatch.chdir(ROOT)
    for requirement, extra in (("timm", "timm"), ("imagenet_ddp[parquet]", "parquet")):
        assert install(requirement) == f"uv sync --inexact --extra {extra}"
    assert install("safetensors").startswith("uv pip install -p .venv ")  # one of several in two extras
    monkeypatch.chdir(tmp_path)  # where there is nothing to synchronise
    assert install("timm").startswith("uv pip install -p ")


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_class_of_an_extra_is_answered_with_what_installs_it(monkeypatch: pytest.MonkeyPatch, extra: str):
    for package in {canonicalize_name(Requirement(each).name).replace("-", "_") for each in EXTRAS[extra]}:
        if not (found := extra_with(package)):
            continue  # in several
        monkeypatch.setattr("imagenet_ddp.system.packages.is_installed", lambda name, of=package: name != of)
        monkeypatch.setattr("imagenet_ddp.config.own_code.PathFinder.find_spec", lambda *_: None)
        (of_class,) = own_code.validate("optim._target_", f"{package}.optim.Lamb")
        assert of_class.fixes[0].run == install(found)


def test_a_launcher_of_an_extra_is_answered_with_what_installs_it(monkeypatch: pytest.MonkeyPatch):
    """Another launcher would run the whole sweep here."""
    monkeypatch.setattr("imagenet_ddp.system.packages.is_installed", lambda name: name != "submitit")
    with pytest.raises(ConfigError) as caught:
        command_line("train", ["-m", "seed=1,2", "hydra/launcher=submitit_gone"], {})
    (mistake,) = caught.value.mistakes
    assert mistake.fixes[0].run == install("imagenet_ddp[slurm]")
