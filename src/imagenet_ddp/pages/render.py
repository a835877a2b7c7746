"""Make an HTML page from a Jinja template."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imagenet_ddp.system.text import count_noun, format_loss, percent

FOLDER = Path(__file__).parent  # of what all pages share


def render(template: Path, context: Mapping[str, Any]) -> bytes:
    """Return the page as HTML in UTF-8. Every value is escaped. template: may extend or include the files of its own
    folder and of this one. Imports jinja2."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([template.parent, FOLDER]), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"percent": percent, "count_noun": count_noun, "format_loss": format_loss}
    # file names may contain bytes that are not valid text
    return environment.get_template(template.name).render(context).encode(errors="backslashreplace")
