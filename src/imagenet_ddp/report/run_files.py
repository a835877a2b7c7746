"""Read the files of a run folder. Whatever cannot be read is left out and listed in `problems`."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from imagenet_ddp.runs.curves_figure import read_metrics as read_columns

_YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where libyaml is installed


def read_config(folder: Path, problems: list[str]) -> dict[str, Any]:
    path = folder / "config.yaml"
    if not path.exists():
        problems.append("config.yaml is missing")
        return {}
    return _read_mapping(path, "YAML", lambda text: yaml.load(text, _YAML_LOADER), problems)


def read_summary(folder: Path, problems: list[str]) -> dict[str, Any]:
    path = folder / "summary.json"
    return _read_mapping(path, "JSON", json.loads, problems) if path.exists() else {}


def _read_mapping(path: Path, language: str, parse: Callable[[str], Any], problems: list[str]) -> dict[str, Any]:
    try:
        content = parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(f"{path.name} cannot be read ({error.strerror})")
    except (yaml.YAMLError, ValueError, RecursionError):
        problems.append(f"{path.name} is not valid {language}")
    else:
        if isinstance(content, dict):
            return content
        problems.append(f"{path.name} is not a mapping")
    return {}


def read_metrics(folder: Path, problems: list[str]) -> dict[str, np.ndarray]:
    """Return column -> float64 (number of epochs,), NaN for a cell without a number; "epoch" is always present."""
    path = folder / "metrics.csv"
    try:
        columns = read_columns(path)
    except OSError as error:
        reason = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        problems.append(f"metrics.csv {reason}")
        return {"epoch": np.empty(0)}
    except (ValueError, csv.Error):
        problems.append("metrics.csv is not valid CSV")
        return {"epoch": np.empty(0)}
    for name, values in columns.items():
        if name.endswith(("/top1", "/top5")):
            values[(values < 0) | (values > 1)] = np.nan
    is_valid = (columns["epoch"] >= 0) & (columns["epoch"] < 1e6)
    return {name: values[is_valid] for name, values in columns.items()}
