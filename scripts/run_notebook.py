"""Run docs/own_photos.ipynb on its drawings, and store what it prints and the first screen of each page.

    uv run --group dev python scripts/run_notebook.py WORK WEIGHTS

WORK: an empty folder. WEIGHTS: a file of weights of the net that the notebook names, for machines that cannot download
them. It takes two minutes on two CPU cores.
"""

import base64
import io
import os
import re
import shutil
import sys
from html import unescape
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from helpers.browser import Browser  # pyright: ignore[reportMissingImports]

NOTEBOOK = Path(__file__).resolve().parents[1] / "docs/own_photos.ipynb"
WIDTH, HEIGHT = 900, 520  # pixels of a picture of a page
COLUMNS = 66  # of what is printed: as many fit on a page of the site
NET = "model.name=tf_efficientnet_lite0"
PAGE = re.compile(r'<iframe srcdoc="([^"]+)"')


def picture(page: str, browser: Browser, work: Path) -> str:
    file = work / "page.html"
    file.write_text(page, encoding="utf-8")
    browser.open(file.as_uri())
    data = browser.call("Page.captureScreenshot", format="png")["data"]
    made = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        image.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(made, "PNG", optimize=True)
    return base64.b64encode(made.getvalue()).decode()


def printed(text: str, work: Path) -> str:
    """Return what stands on a terminal after the text."""
    lines = [line.rpartition("\r")[2] for line in text.replace("\x1b[K", "").replace("\r\n", "\n").split("\n")]
    return "\n".join(lines).replace(f"{work}/", "")


def main(work: Path, weights: Path) -> None:
    shutil.copy(weights, work / "lite0.pth")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    sources = [cell.source for cell in notebook.cells]
    for cell in notebook.cells:
        cell.source = cell.source.replace(NET, f"{NET} model.weights=lite0.pth")
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": work}})
    client.execute(env={**os.environ, "COLUMNS": str(COLUMNS)})
    with Browser(work / "profile") as browser:
        size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        browser.call("Emulation.setDeviceMetricsOverride", **size)
        browser.call("Emulation.setScrollbarsHidden", hidden=True)
        for cell, source in zip(notebook.cells, sources, strict=True):
            cell.source, outputs = source, cell.get("outputs", [])
            cell.metadata.pop("execution", None)
            text = "".join(each.text for each in outputs if each.get("name") == "stdout")
            kept = [nbformat.v4.new_output("stream", text=printed(text, work))] if text else []
            for each in outputs:
                if found := PAGE.search(each.get("data", {}).get("text/html", "")):
                    data = {"image/png": picture(unescape(found[1]), browser, work)}
                    kept.append(nbformat.v4.new_output("display_data", data))
            if outputs:
                cell.outputs = kept
    notebook.metadata.language_info = {"name": "python"}
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    main(*(Path(word).resolve() for word in sys.argv[1:]))
