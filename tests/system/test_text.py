"""Numbers in messages."""

import ast
import itertools
import re

import pytest
from conftest import ROOT

from imagenet_ddp.system.text import count_noun

COUNTED = re.compile(r" (epochs|steps|updates|jobs|trials|workers|threads)\b")


def test_no_message_can_say_1_epochs():
    """A number with a noun is made by count_noun. A formatted number (f"{seconds:.1f}") is not a count."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for text in ast.walk(ast.parse(path.read_text())):
            for number, words in itertools.pairwise(text.values if isinstance(text, ast.JoinedStr) else []):
                if not (isinstance(number, ast.FormattedValue) and isinstance(words, ast.Constant)):
                    continue
                if number.format_spec is None and COUNTED.match(str(words.value)):
                    found.append(f"{path.name}: {{{ast.unparse(number.value)}}}{words.value}")
    assert found == []


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(1, "image", "1 image"), (1200, "image", "1,200 images"), (0, "class", "0 classes"), (1.0, "epoch", "1 epoch"),
     (0.5, "epoch", "0.5 epochs"), (2, "copy", "2 copies")],
)  # fmt: skip
def test_count_noun(number: float, noun: str, text: str):
    assert count_noun(number, noun) == text
