"""The page of faults: its rows and its tests."""

import pytest
from conftest import ROOT

from scripts import reliability


@pytest.mark.parametrize("test", reliability.ELSEWHERE.values())
def test_tests_of_other_modules_exist(test: str):
    path, _, name = test.partition("::")
    assert f"\ndef {name}(" in (ROOT / path).read_text(encoding="utf-8")


def test_no_fault_of_the_page_has_failed():
    text = reliability.PAGE.read_text(encoding="utf-8")
    assert "| fault | what happens |" in text and "FAILED" not in text.partition("end: table")[0]
