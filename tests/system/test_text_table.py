"""Render a table at any terminal width, as Markdown and as CSV."""

from imagenet_ddp.system.text_table import Cell, Column, Table, as_csv, as_markdown, as_text

COLUMNS = [Column("place", "#"), Column("run", "run", right=False), Column("top1", "top-1 %"),
           Column("state", "state", drop=1, right=False), Column("val/loss", "loss", drop=2),
           Column("folder", "", shown=False)]  # fmt: skip


def table(*names: str) -> Table:
    rows = [
        [Cell(n, str(n)), Cell(name, name), Cell(1 / 3, "33.33"), Cell("finished", "finished"),
         Cell(None, "-"), Cell(f"/x/{name}", "")]
        for n, name in enumerate(names, 1)
    ]  # fmt: skip
    return Table(COLUMNS, rows)


def test_a_terminal_shows_what_fits():
    lines, left_out = as_text(table("a|b", "long"), 80)
    assert (lines, left_out) == ([
        "#  run   top-1 %  state     loss", "-" * 32, "1  a|b     33.33  finished     -",
        "2  long    33.33  finished     -",
    ], [])  # fmt: skip
    lines, left_out = as_text(table("the_first_run_of_many_with_the_last_word"), 40)
    assert left_out == ["state", "loss"]
    assert lines[2] == "1  the_first_run_…the_last_word    33.33"


def test_markdown_is_escaped_and_csv_has_every_column():
    lines = as_markdown(table("a|b", "<c>&d", "g_h*`i`"))
    assert lines[:2] == ["| \\# | run | top-1 % | state | loss |", "| ---: | --- | ---: | --- | ---: |"]
    assert [line.split(" | ")[1] for line in lines[2:]] == ["a\\|b", "&lt;c&gt;&amp;d", "g\\_h\\*\\`i\\`"]
    assert as_csv(table('e,"f"')).splitlines()[1] == b'1,"e,""f""",0.3333333333333333,finished,,"/x/e,""f"""'
