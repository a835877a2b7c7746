"""Read a YAML or JSON file that should contain a mapping."""

import json
from pathlib import Path
from typing import Any

import yaml

_YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, if it is installed, is ten times as fast


def read_mapping(path: Path, problems: list[str] | None = None) -> dict[str, Any]:
    """Return the file's content, {} if it cannot be read or is not a mapping. problems: a list to which the reason is
    added."""
    problem = ""
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else yaml.load(text, _YAML_LOADER)
        if isinstance(content, dict):
            return content
        problem = "is not a mapping"
    except FileNotFoundError:
        problem = "is missing"
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    except (yaml.YAMLError, ValueError, RecursionError):
        problem = f"is not valid {path.suffix.removeprefix('.').upper()}"
    if problems is not None:
        problems.append(f"{path.name} {problem}")
    return {}
