"""The page of faults: its rows and its tests."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import ROOT

from scripts import reliability

CASES = """<suite>
<testcase classname="tests.faults.test_x" name="test_a[1]"><properties>
  <property name="fault" value="A | is cut: it ends."/>
  <property name="code" value="1"/><property name="seconds" value="0.4"/></properties></testcase>
<testcase classname="tests.faults.test_x" name="test_a[2]"><failure/></testcase>
<testcase classname="tests.faults.test_x" name="test_b"><properties>
  <property name="fault" value="B: it goes on"/></properties><skipped/></testcase>
<testcase classname="tests.runs.test_checkpoints" name="test_the_one_before_is_taken[x]"/>
</suite>"""


def test_a_row_for_each_fault():
    a, b, c = reliability._rows(list(ElementTree.fromstring(CASES).iter("testcase")))
    assert a == "| A / is cut | FAILED: it ends | 1 | 0.4 |"
    assert b == "| B | not run here: it goes on |  |  |"
    assert c.startswith("| last.ckpt is damaged") and c.endswith("| the previous checkpoint is used |  |  |")


def test_parts_of_the_page_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- begin: soak -->\nold\n<!-- end: soak -->\nb\n")
    monkeypatch.setattr(reliability, "PAGE", page)
    for _ in range(2):
        reliability._replace("soak", ["new"])
        assert page.read_text() == "a\n<!-- begin: soak -->\n\nnew\n\n<!-- end: soak -->\nb\n"


@pytest.mark.parametrize("test", reliability.ELSEWHERE.values())
def test_tests_of_other_modules_exist(test: str):
    path, _, name = test.partition("::")
    assert f"\ndef {name}(" in (ROOT / path).read_text(encoding="utf-8")


def test_the_page_has_a_count_and_a_table():
    text = reliability.PAGE.read_text(encoding="utf-8")
    assert re.search(r"\*\*\d+ runs, 0 hanging, \d+ lost, 0 wrong\*\*", text)
    assert "| fault | what happens |" in text and "FAILED" not in text.partition("end: table")[0]
