"""The HTML file: whole in itself, and whatever a name holds is only text in it."""

import base64
import re
from html.parser import HTMLParser

from imagenet_ddp.report.html import page
from imagenet_ddp.report.table import Cell, Column, Table

NASTY = """</td><script>alert("1")</script> & 'x' | ünï 数"""


class Reader(HTMLParser):
    """Texts of cells, attributes of tags."""

    def __init__(self, text: str):
        super().__init__()
        self.cells: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag in ("td", "button"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in ("td", "button"):
            self.cells[-1] += data


def written() -> str:
    columns = [Column("run", "run", right=False), Column("top1", "top-1 %"), Column("x", "", shown=False)]
    rows = [[Cell(NASTY, NASTY), Cell(0.123456, "12.35"), Cell(1, "")], [Cell("b", "b"), Cell(None, "-"), Cell(1, "")]]
    return page(f"Runs of {NASTY}", [Table(columns, rows, NASTY, [NASTY])], [("curves <", b"picture")], "marker")


def test_names_are_text():
    reader = Reader(written())
    assert reader.cells == ["run", "top-1 %", NASTY, "12.35", "b", "-"]
    values = [attributes["data-value"] for tag, attributes in reader.tags if tag == "td"]
    assert values == [NASTY, "0.123456", "b", ""]
    assert [tag for tag, _ in reader.tags].count("script") == 1, "the page's own"


def test_nothing_is_fetched():
    text = written()
    assert not re.search(r"https?://|src=\"(?!data:)|@import|url\(|<link", text)
    (picture,) = re.findall(r'src="data:image/png;base64,([^"]*)"', text)
    assert base64.b64decode(picture) == b"picture"
    assert "prefers-color-scheme: dark" in text
    assert 'content="marker"' in text[:4096]


def test_the_same_runs_give_the_same_page():
    assert written() == written()
