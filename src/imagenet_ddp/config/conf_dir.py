"""Find the folder of YAML files."""

from pathlib import Path


def conf_dir() -> Path:
    """Return the folder of YAML files: beside the modules in an installed wheel, else at the top of a checkout."""
    here = Path(__file__).resolve().parents[1]
    for candidate in (here / "conf", here.parent.parent / "conf"):
        if (candidate / "train.yaml").is_file():
            return candidate
    raise FileNotFoundError(
        f"conf/train.yaml must be in {here} or {here.parent.parent}, but is in neither. Hint: reinstall imagenet_ddp."
    )
