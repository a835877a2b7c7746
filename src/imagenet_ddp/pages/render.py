"""Make an HTML page from a Jinja template."""

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagenet_ddp.system.text import as_typed, count_noun, format_loss, percent

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_PAGES = Path(__file__).parent  # what all pages share
_CODE = re.compile(r"`([^`]+)`")


def render(template: Path, context: Mapping[str, Any]) -> bytes:
    """Return the page as HTML in UTF-8. Every value is escaped; messages pass through the filter `message`. template:
    may extend or include the files of its own folder and of this one, and "sections/NAME.html". What extends
    layout.html needs the values marker, title, name and folder. Imports jinja2."""
    html = _environment(template.parent).get_template(template.name).render(context)
    return html.encode(errors="backslashreplace")  # file names may contain bytes that are not valid text


def way_from(page: Path | None, start: Path | str = "") -> str:
    """Return `folder` of layout.html: the way from the folder of a page to that in which the paths on it start. page:
    None: it is printed."""
    return os.path.relpath(start or ".", page.parent if page else ".")


@cache
def _environment(folder: Path) -> "Environment":
    """Return the environment of the templates in a folder, which compiles each of them once."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([folder, _PAGES, _PAGES.parent]), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"percent": percent, "count_noun": count_noun, "format_loss": format_loss}
    environment.filters |= {"message": message, "as_typed": as_typed}
    return environment


def message(text: str) -> "Markup":
    """Return a message as HTML: what stands between backticks is code, and command lines begin as on the terminal."""
    from markupsafe import Markup, escape

    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(as_typed(text)))))
