"""Render a table at any terminal width, as Markdown and as CSV."""

import pytest
from rich.cells import cell_len

from imagenet_ddp.system.text_table import Cell, Column, Table, as_markdown, as_text, shorten_middle

ODD = ["a|b", "<c>&d", 'e,"f"', "g_h*`i`", "数据", "x\\y"]


def table(names: list[str] = ODD) -> Table:
    columns = [Column("place", "#"), Column("run", "run", right=False), Column("top1", "top-1 %"),
               Column("state", "state", drop=1, right=False), Column("val/loss", "loss", drop=2),
               Column("folder", "", shown=False)]  # fmt: skip
    rows = [
        [Cell(n, str(n)), Cell(name, name), Cell(1 / 3, "33.33"), Cell("finished", "finished"),
         Cell(None, "-"), Cell(f"/x/{name}", "")]
        for n, name in enumerate(names, 1)
    ]  # fmt: skip
    return Table(columns, rows)


def test_a_wide_terminal_shows_every_column():
    lines, left_out = as_text(table(), 80)
    assert left_out == []
    assert lines[0] == "#  run      top-1 %  state     loss"
    assert set(lines[1]) == {"-"}
    assert lines[2] == "1  a|b        33.33  finished     -"
    assert lines[6] == "5  数据       33.33  finished     -", "a wide character takes two columns"
    assert {cell_len(line) for line in lines} == {35}


@pytest.mark.parametrize("width", [3, 8, 9, 20])
def test_shortened_text_fits(width: int):
    for text in ("abcdefghijkl", "数据集数据集", "ab", "a\u0301" * 9):
        assert cell_len(shorten_middle(text, width)) <= width
    assert shorten_middle("ab", width) == "ab"
    assert shorten_middle("abcdefghijkl" * 2, 9) == "abcd…ijkl"


def test_markdown_is_escaped():
    lines = as_markdown(table())
    assert lines[0] == "| \\# | run | top-1 % | state | loss |"
    assert lines[1] == "| ---: | --- | ---: | --- | ---: |"
    assert [line.split(" | ")[1] for line in lines[2:]] == [
        "a\\|b", "&lt;c&gt;&amp;d", 'e,"f"', "g\\_h\\*\\`i\\`", "数据", "x\\\\y",
    ]  # fmt: skip
