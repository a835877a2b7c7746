"""The files of a run folder. What cannot be read, or not whole, is left out and said in `problems`."""

import csv
import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from imagenet_ddp.runs.curves import read_metrics as read_table

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where libyaml is there


def read_config(folder: Path, problems: list[str]) -> dict[str, Any]:
    try:
        content = yaml.load((folder / "config.yaml").read_text(encoding="utf-8"), _LOADER)
    except FileNotFoundError:
        problems.append("config.yaml is missing")
    except OSError as error:
        problems.append(f"config.yaml cannot be read ({error.strerror})")
    except (yaml.YAMLError, ValueError, RecursionError):
        problems.append("config.yaml is no valid YAML")
    else:
        if isinstance(content, dict):
            return content
        problems.append("config.yaml holds no options")
    return {}


def read_summary(folder: Path, problems: list[str]) -> dict[str, Any]:
    try:
        content = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        problems.append(f"summary.json cannot be read ({error.strerror})")
    except (ValueError, RecursionError):
        problems.append("summary.json is no valid JSON")
    else:
        if isinstance(content, dict):
            for name in [name for name in content if name.endswith(("/top1", "/top5"))]:
                value = content[name]
                if value is not None and not (isinstance(value, int | float) and 0 <= value <= 1):
                    problems.append(f"summary.json has {name} {str(value)[:20]}, which is no fraction")
                    del content[name]
            return content
        problems.append("summary.json holds no results")
    return {}


def read_metrics(folder: Path, problems: list[str]) -> dict[str, np.ndarray]:
    path, whole = folder / "metrics.csv", True
    try:
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "it is no plain file")
        table = read_table(path)
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(size - 1, 0))
            whole = not size or file.read() == b"\n"
    except FileNotFoundError:
        problems.append("metrics.csv is missing")
        return {"epoch": np.empty(0)}
    except OSError as error:
        problems.append(f"metrics.csv cannot be read ({error.strerror})")
        return {"epoch": np.empty(0)}
    except (ValueError, csv.Error):
        problems.append("metrics.csv is no valid CSV")
        return {"epoch": np.empty(0)}
    if not whole:
        problems.append("metrics.csv ends within a row, which is left out")
        table = {name: values[:-1] for name, values in table.items()}
    for name, values in table.items():
        if name.endswith(("/top1", "/top5")):
            values[(values < 0) | (values > 1)] = np.nan
    there = (table["epoch"] >= 0) & (table["epoch"] < 1e6)
    return {name: values[there] for name, values in table.items()}
