"""Numbers and command lines in messages."""

import ast
import itertools
import re
from pathlib import Path

import pytest
from conftest import ROOT

from imagenet_ddp.system import text
from imagenet_ddp.system.text import UV, count_noun

COUNTED = re.compile(r" (epochs|steps|updates|jobs|trials|workers|threads)\b")


def test_no_message_can_say_1_epochs():
    """A number with a noun is made by count_noun. A formatted number (f"{seconds:.1f}") is not a count."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            for number, words in itertools.pairwise(node.values if isinstance(node, ast.JoinedStr) else []):
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


def test_names_stand_where_people_look_for_them():
    names = ["zebra", "Wolf", "Élan", "eel", "øre", "Owl", "class 10", "class 2", "Ärger", "apple"]
    assert text.class_list(names, 20) == "apple, Ärger, class 2, class 10, eel, Élan, øre, Owl, Wolf, zebra"
    assert text.class_list(names) == "apple, Ärger, class 2, class 10, eel and 5 more"
    assert text.class_list(names[4:]).endswith(", øre, Owl") and "more" not in text.class_list(names[4:])


@pytest.mark.parametrize(
    ("argv", "uv", "line"),
    [
        (["python", "-m", "imagenet_ddp.train"], False, "python -m imagenet_ddp.report r"),
        (["python3", "-m", "imagenet_ddp.train"], False, "python3 -m imagenet_ddp.report r"),
        (
            ["bin/python", "-m", "imagenet_ddp.train"],
            False,
            "python -m imagenet_ddp.report r",
        ),  # which a shell finds, too
        ([".venv/bin/python", "-m", "imagenet_ddp.train"], False, ".venv/bin/python -m imagenet_ddp.report r"),
        (["/x/bin/python", "-m", "imagenet_ddp.train"], True, "uv run python -m imagenet_ddp.report r"),
        (["bin/imagenet-ddp", "train"], False, "imagenet-ddp report r"),
        (["./imagenet-ddp", "train"], False, "./imagenet-ddp report r"),
        (["/x/bin/imagenet-ddp", "train"], True, "uv run imagenet-ddp report r"),
    ],
)
def test_lines_begin_as_the_command_was_typed(
    argv: list[str], uv: bool, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("python", "imagenet-ddp"):
        (tmp_path / "bin" / name).touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    monkeypatch.setattr("sys.argv", argv)
    monkeypatch.setattr("sys.orig_argv", argv)
    if uv:
        monkeypatch.setenv(UV, "1")
    text.typed_program.cache_clear()
    try:
        said = text.for_terminal("run `python -m imagenet_ddp.report r`")
        assert said == f"run `{line}`" and text.as_typed(said) == said
    finally:
        text.typed_program.cache_clear()
