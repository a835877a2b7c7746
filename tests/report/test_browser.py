"""The page in a browser: tables are sorted, galleries are short until asked, and it is as wide as the screen."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from helpers.fake_predictions import random_probabilities, write_evaluation

from imagenet_ddp.report import pictures
from imagenet_ddp.report.page import build
from imagenet_ddp.report.pictures import Pictures
from imagenet_ddp.report.predictions import read

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")

LOOK = """
<script>
const table = document.querySelector("#classes table"), root = document.documentElement;
const first = () => table.tBodies[0].rows[0].cells[0].textContent;
const sort = (number) => { table.tHead.rows[0].cells[number].querySelector("button").click(); return first(); };
const sorts = () => Array.from(table.tHead.rows[0].cells, (cell) => cell.getAttribute("aria-sort"));
const items = Array.from(document.querySelectorAll("#mistakes li"));
const shown = () => items.filter((item) => item.checkVisibility()).length;
const found = { excess: root.scrollWidth - root.clientWidth, lowest: first(), highest: sort(2), short: shown() };
found.byName = sort(0); found.sorts = sorts();
for (const more of document.querySelectorAll("#mistakes summary")) more.click();
found.whole = shown();
document.body.innerHTML = '<pre id="result"></pre>';
document.getElementById("result").textContent = JSON.stringify(found);
</script>"""


def dom_of(address: str, profile: Path) -> str:
    """Return the HTML of the page after its scripts have run. profile: an empty folder for the browser's profile."""
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
        "--virtual-time-budget=30000", "--dump-dom", address,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    classes = [f"class {number} <b>of a long name, which has no end</b>" for number in range(12)]
    target = np.arange(300) % 12
    monkeypatch.setattr(pictures, "read_pictures", lambda *_: Pictures())
    found = read(write_evaluation(tmp_path / "e", random_probabilities(target, 12), target, classes))
    html = build("long/" * 100, None, found).files["report.html"].decode()
    (tmp_path / "page.html").write_text(html.replace("</body>", f"{LOOK}</body>"))
    match = re.search(r'<pre id="result">(.*?)</pre>', dom_of((tmp_path / "page.html").as_uri(), tmp_path / "profile"))
    assert match, "the script came to its end"
    seen = json.loads(unescape(match[1]))
    assert seen["excess"] == 0
    assert seen["lowest"] != seen["highest"]
    assert seen["byName"].startswith("class 0 <b>of a long name"), "text, and numbers in it in their order"
    assert seen["sorts"] == ["ascending", "none", "none", "none"]
    num_wrong = int((~found.is_right).sum())
    assert seen["short"] == 24 + min(24, num_wrong)
    assert seen["whole"] == 60 + min(60, num_wrong)
