"""Add the pages that are no Markdown of docs/, with links as from there, name the version, and mark lines of code."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = {
    "index.md": "README.md",
    "contributing.md": ".github/CONTRIBUTING.md",
    "security.md": ".github/SECURITY.md",
}  # page of the site -> file
NOTEBOOK = "own_photos"
BLOCK = re.compile(r"(?<=<pre><span></span><code>).+?(?=</code></pre>)", re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name the version: a built site is that of one release."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.site_name = f"{project['name']} {project['version']}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page, file in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / file).read_text(encoding="utf-8")))
    notebook = json.loads((ROOT / f"docs/{NOTEBOOK}.ipynb").read_text(encoding="utf-8"))
    cells = "\n\n".join(text for cell in notebook["cells"] for text in _as_markdown(cell))
    end = f"\n\n[The notebook as a file]({NOTEBOOK}.ipynb)\n"
    files.append(File.generated(config, f"{NOTEBOOK}.md", content=cells + end))
    return files


def _as_markdown(cell: dict[str, Any]) -> list[str]:
    """Return a cell of a notebook, and what it has printed and shown."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    found = [f"```python\n{source}\n```"]
    for output in cell["outputs"]:
        if "text" in output:
            found.append("".join(f"    {line}" for line in output["text"]))
        if image := output.get("data", {}).get("image/png"):
            found.append(f'<img alt="The page" src="data:image/png;base64,{"".join(image).strip()}">')
    return found


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write links between docs/ and the other files, and those to pictures, as links within the site."""
    for target, file in OUTSIDE.items():
        markdown = markdown.replace(f"](../{file}", f"]({target}").replace(f"]({file}", f"]({target}")
    if page.file.src_uri in OUTSIDE:
        markdown = re.sub(r'(\]\(|(?:src|srcset)=")(?:\.\./)?docs/', r"\1", markdown)
    return markdown if page.file.name == NOTEBOOK else markdown.replace(f"]({NOTEBOOK}.ipynb", f"]({NOTEBOOK}.md")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make an element of each line of a block of commands, for commands.css; blocks with a language have elements."""
    return BLOCK.sub(lambda block: re.sub("(?m)^[^<\n]+$", r'<span class="line">\g<0></span>', block[0]), html)
