"""The page in a browser: what its buttons do, and how wide it is on a phone."""

import json
import re
from html import unescape
from typing import Any

import numpy as np
import pytest
from helpers.chromium import dom_of, needs_chromium
from helpers.fake_predictions import random_probabilities, write_evaluation
from helpers.fake_runs import make_run

from imagenet_ddp.report import page as page_module
from imagenet_ddp.report.evaluation import read
from imagenet_ddp.report.example_images import data_uri
from imagenet_ddp.report.page import Pictures, build
from imagenet_ddp.report.run import read_run

pytestmark = needs_chromium

WIDTHS = [360, 1280]  # pixels of a small phone and of a desktop
# Chromium's own window is never as narrow as a phone's, so the page is shown in frames.
HARNESS = r"""<!doctype html><meta charset="utf-8"><pre id="result"></pre><script>
const page = %s;
const result = {};
async function look(width) {
  const frame = document.createElement("iframe");
  Object.assign(frame.style, { width: width + "px", height: "800px", border: 0 });
  frame.srcdoc = page;
  await new Promise((done) => { frame.onload = done; document.body.append(frame); });
  const inner = frame.contentDocument, root = inner.documentElement;
  const found = { excess: root.scrollWidth - root.clientWidth };
  const table = inner.querySelector("#classes table");
  const first = () => table.tBodies[0].rows[0].cells[0].textContent;
  const button = (number) => table.tHead.rows[0].cells[number].querySelector("button");
  const sorts = () => Array.from(table.tHead.rows[0].cells, (cell) => cell.getAttribute("aria-sort"));
  found.lowest = first();
  button(2).click(); found.highest = first(); found.sorts = sorts();
  button(0).click(); found.byName = first(); found.sortsByName = sorts();
  button(1).focus(); found.focused = inner.activeElement === button(1);
  const gallery = inner.getElementById("doubtful-images"), more = gallery.nextElementSibling;
  const shown = (list) => Array.from(list.querySelectorAll("li")).filter((item) => item.checkVisibility()).length;
  found.short = shown(gallery) + shown(more);
  more.querySelector("summary").click(); found.whole = shown(gallery) + shown(more);
  result[width] = found;
}
(async () => {
  for (const width of %s) await look(width);
  document.getElementById("result").textContent = JSON.stringify(result);
})();
</script>"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script above found, by width."""
    folder = tmp_path_factory.mktemp("page")
    classes = [f"class {number} <b>of a long name, which has no end</b>" for number in range(12)]
    target = np.arange(300) % 12
    probabilities = random_probabilities(target, 12)
    found = read(write_evaluation(folder / "e", probabilities, target, classes))
    thumbnail = data_uri(np.zeros((64, 96, 3), np.uint8), 1.5)
    pictures = Pictures(dict.fromkeys(range(300), thumbnail))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_module, "read_pictures", lambda *_: pictures)
        run = read_run(make_run(folder / "run", command="python -m " + "long/" * 100))
        page = build(str(folder), run, found).files["report.html"].decode()
    text = json.dumps(page).replace("</", "<\\/")
    (folder / "harness.html").write_text(HARNESS % (text, json.dumps(WIDTHS)))
    match = re.search(r'<pre id="result">(.*?)</pre>', dom_of((folder / "harness.html").as_uri(), folder / "profile"))
    assert match and match[1], "the script came to its end"
    return json.loads(unescape(match[1]))


@pytest.mark.parametrize("width", WIDTHS)
def test_it_is_as_wide_as_the_screen(width: int, seen: dict[str, Any]):
    assert seen[str(width)]["excess"] == 0


def test_columns_are_sorted(seen: dict[str, Any]):
    found = seen["1280"]
    assert found["lowest"] != found["highest"]
    assert found["sorts"] == ["none", "none", "descending", "none"]
    assert found["byName"].startswith("class 0 <b>of a long name"), "text, and numbers in it in their order"
    assert found["sortsByName"] == ["ascending", "none", "none", "none"]
    assert found["focused"], "by the keyboard, too"


def test_galleries_are_short_until_asked(seen: dict[str, Any]):
    assert (seen["360"]["short"], seen["360"]["whole"]) == (24, 60)
