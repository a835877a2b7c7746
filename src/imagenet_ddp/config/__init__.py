"""Declare every option once (schema/), check typed values against the declarations, and find the files of conf/."""

from pathlib import Path


def conf_dir() -> Path:
    """Return the folder of YAML files: beside the modules in an installed wheel, else at the top of a checkout."""
    package = Path(__file__).resolve().parents[1]
    return next(folder for folder in (package / "conf", package.parents[1] / "conf") if folder.is_dir())
