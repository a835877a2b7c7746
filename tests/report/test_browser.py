"""The page on a phone: tables are sorted, galleries are short until asked, and nothing is wider than the screen."""

import base64
import io
import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from helpers.fake_predictions import random_probabilities, write_evaluation
from PIL import Image

import imagenet_ddp.prepare
from imagenet_ddp.pages.render import render
from imagenet_ddp.report import pictures
from imagenet_ddp.report.page import build
from imagenet_ddp.report.pictures import Pictures
from imagenet_ddp.report.predictions import read
from imagenet_ddp.sections.section import Section

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
const box = table.closest(".tall");
const matrix = document.querySelector(".matrix").closest(".scroll");
found.width = [root.clientWidth, matrix.scrollWidth <= matrix.clientWidth];
found.heights = [box.scrollHeight <= box.clientHeight, table.rows.length > 12];
document.body.innerHTML = '<pre id="result"></pre>';
document.getElementById("result").textContent = JSON.stringify(found);
</script>"""


def dom_of(address: str, profile: Path) -> str:
    """Return the HTML of the page after its scripts have run. profile: an empty folder for the browser's profile."""
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
        "--window-size=390,800", "--virtual-time-budget=30000", "--dump-dom", address,
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
    width, is_whole = seen["width"]
    assert width <= 560 and is_whole, "the matrix of a dozen classes is seen whole"
    assert seen["lowest"] != seen["highest"]
    assert seen["byName"].startswith("class 0 <b>of a long name"), "text, and numbers in it in their order"
    assert seen["sorts"] == ["ascending", "none", "none", "none"]
    num_wrong = int((~found.is_right).sum())
    num_doubtful = int((found.top_probability[:, 1] >= 0.5 * found.confidence).sum())
    assert seen["short"] == min(24, num_doubtful) + min(24, num_wrong)
    assert seen["whole"] == min(60, num_doubtful) + min(60, num_wrong)
    assert f"For {num_doubtful} images, predicted right or wrong, the second class is at least half as probable" in html
    assert seen["heights"] == [True, True], "a table of some rows is shown whole"


# The sheet of pictures arrives only when the script says so.
LATE = """<script>
const Native = Image;
window.Image = function () {
  const image = new Native();
  Object.defineProperty(image, "src", { set: (value) => { window.arrive = () => image.setAttribute("src", value); } });
  window.sheet = image;
  return image;
};
</script>"""
POINT = """<script>
const map = document.querySelector(".map"), plane = map.querySelector(".plane"), frame = map.querySelector(".frame");
const box = plane.getBoundingClientRect(), seen = [];
const color = () => Array.from(frame.getContext("2d").getImageData(40, 40, 1, 1).data);
function point(type, x, y) {
  const place = { clientX: box.left + x * box.width, clientY: box.top + y * box.height };
  plane.dispatchEvent(new PointerEvent(type, place));
  seen.push([map.querySelector(".caption").textContent, color()]);
}
point("pointermove", 0.4, 0.6);
sheet.addEventListener("load", () => {
  seen.push(["arrived", color()]);
  point("pointerdown", 0.9, 0.1);
  document.body.innerHTML = '<pre id="result"></pre>';
  document.getElementById("result").textContent = JSON.stringify(seen);
});
arrive();
</script>"""


def test_the_map_shows_the_picture_of_the_nearest_dot(tmp_path: Path):
    stream, sheet = io.BytesIO(), Image.new("RGB", (160, 80), "#ff0000")
    sheet.paste("#0000ff", (80, 0, 160, 80))
    sheet.save(stream, "PNG")
    context = {
        "points": json.dumps([[0, 0, 0, "a.jpg"], [1000, 1000, 1, "b.jpg"]]), "labels": [(0, "cat"), (1, "dog")],
        "columns": 2, "tile": 80, "pictures": 2, "num_points": 2, "total": 2,
        "sheet": f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}",
    }  # fmt: skip
    page = {"marker": "m", "name": "n", "title": "t", "folder": ".", "figures": [], "good": [], "notes": [],
            "faults": ("", [], ""), "missing": [], "decides": "", "train": ""}  # fmt: skip
    template = Path(imagenet_ddp.prepare.__file__).with_name("check.html")
    html = render(template, page | {"sections": [Section("image_map", "Map", context)]}).decode()
    html = html.replace("<body>", f"<body>{LATE}").replace("</body>", f"{POINT}</body>")
    (tmp_path / "page.html").write_text(html)
    match = re.search(r'<pre id="result">(.*?)</pre>', dom_of((tmp_path / "page.html").as_uri(), tmp_path / "profile"))
    assert match, "the script came to its end"
    red, blue = [255, 0, 0, 255], [0, 0, 255, 255]
    assert json.loads(unescape(match[1])) == [
        ["cat: a.jpg", [0, 0, 0, 0]], ["arrived", red], ["dog: b.jpg", blue],
    ]  # fmt: skip
