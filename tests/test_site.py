"""The documentation as a site: it names its version, and is read on any screen."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from helpers.browser import CHROMIUM, Browser

from imagenet_ddp import __version__

browsed = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site. A link to nowhere fails here and in check.sh; with --quiet, mkdocs counts no warnings."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", "docs/site/mkdocs.yml", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_names_its_version(site: Path):
    """The built pages show the version, and those of .github/ link to the others."""
    assert "mkdocs build -f docs/site/mkdocs.yml" in (ROOT / "scripts/check.sh").read_text()
    header = re.search(r"<header.*?</header>", (site / "index.html").read_text(), re.DOTALL)
    assert header and f"imagenet_ddp {__version__}" in header[0]
    assert 'href="architecture.html"' in (site / "contributing.html").read_text()
    assert 'href="security.html"' in (site / "changelog.html").read_text()


WRONG = """Array.from(document.querySelectorAll("pre > code")).filter(
    (code) => code.scrollWidth > code.clientWidth || code.innerText !== code.textContent
).map((code) => code.textContent).concat(
    Array.from(document.images).filter((image) => !image.naturalWidth).map((image) => image.src),
    document.documentElement.scrollWidth > innerWidth ? ["wider than the screen"] : [])"""


@browsed
def test_each_command_is_read_whole_and_copied_as_written_and_each_picture_is_there(site: Path, tmp_path: Path):
    """The button copies innerText. Pictures for dark are other files."""
    pages = sorted(site.glob("*.html"))
    with Browser(tmp_path / "profile") as browser:
        for width, scheme in ((1280, "light"), (390, "dark")):
            browser.resize(width, scheme=scheme)
            for page in pages:
                browser.open(page.as_uri())
                assert browser.evaluate(WRONG) == [], (width, page.name)
    assert len(pages) > 25


@browsed
def test_the_scheme_of_the_system_is_followed_after_the_first_visit(site: Path, tmp_path: Path):
    with Browser(tmp_path / "profile") as browser:
        for scheme, name in (("light", "default"), ("dark", "slate"), ("light", "default")):
            browser.resize(1280, scheme=scheme)
            browser.open((site / "index.html").as_uri())
            drawn = "new Promise((done) => setTimeout(() => done(document.body.dataset.mdColorScheme), 500))"
            assert browser.evaluate(drawn) == name
            assert browser.evaluate("__md_get('__palette') !== null")  # the page has kept it
