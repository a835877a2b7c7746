"""Add the pages that are not in docs/, with links as they are from there, and show the version in the header."""

import tomllib
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = {
    "index.md": "README.md",
    "contributing.md": ".github/CONTRIBUTING.md",
    "security.md": ".github/SECURITY.md",
}  # page of the site -> file


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name the version: a built site is that of one release."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.site_name = f"{project['name']} {project['version']}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page, file in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / file).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write links between docs/ and the other files as links between pages."""
    for target, file in OUTSIDE.items():
        markdown = markdown.replace(f"](../{file}", f"]({target}").replace(f"]({file}", f"]({target}")
    return markdown.replace("](docs/", "](").replace("](../docs/", "](") if page.file.src_uri in OUTSIDE else markdown
