"""Whatever is typed: a command line is accepted, or refused with all its mistakes, each with a hint that leads on."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from imagenet_ddp.cli.parse import command_line
from imagenet_ddp.config.schema.commands import COMMANDS
from imagenet_ddp.config.schema.keys import declared
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, key_of

GROUPS = ["data", "model", "optim", "strategy", "cluster", "logger", "experiment", "recipe", "nccl.env"]
ODD = [
    "", "null", "true", "-1", "0", "3", "0.5", "1e999", "nan", "9" * 400, "a" * 300, "[]", "{}", "[1,2", "{a:{b:[1]}}",
    "[null]", "${x}", "${oc.env:NOPE}", "${", "'", "a,b", "range(3,3)", "glob(*)", "choice(a,b)", "???", "ä", "\0",
    "~nobody/x", "/", "x.ckpt", "pets", "sgd", "table", "ddp", "gpu", "tcp://[", "file:///", "=", "%", "\\",
]  # fmt: skip
FLAGS = ["-m", "--cfg", "--info", "--config-name=x", "--config-dir=gone", "--resume", "-", "--", "pets"]


@pytest.fixture(scope="module", autouse=True)
def _here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("here")
    (folder / "x.ckpt").touch()
    for name in ("train/cat", "train/dog", "val/cat", "val/dog"):
        (folder / "pets" / name).mkdir(parents=True)
        (folder / "pets" / name / "1.jpg").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield


def mistakes(verb: str, *argv: str) -> Sequence[Mistake]:
    try:
        command_line(verb, argv, {"HOME": str(Path.cwd())})
    except ConfigError as error:
        return error.mistakes
    return []


@given(st.data())
def test_any_line_is_accepted_or_refused_with_hints(data: st.DataObject) -> None:
    verb = data.draw(st.sampled_from([*COMMANDS]))
    option = st.tuples(
        st.sampled_from(["", "", "", "+", "++", "~"]),
        st.sampled_from([*declared(verb), *GROUPS]) | st.text(max_size=9),
        st.sampled_from(["=", "=", "=", "", "=="]), st.sampled_from(ODD) | st.text(max_size=9),
    ).map("".join)  # fmt: skip
    argv = data.draw(st.lists(option | st.sampled_from(FLAGS), min_size=1, max_size=4))
    assert [each for each in mistakes(verb, *argv) if not each.advice.strip()] == []


@given(st.sampled_from([*COMMANDS]), st.data())
def test_any_mistyped_key_is_named(verb: str, data: st.DataObject) -> None:
    keys = [path for path, key in declared(verb).items() if not key.is_group]
    key = data.draw(st.sampled_from(keys))
    place, letter = data.draw(st.integers(0, len(key) - 1)), data.draw(st.sampled_from("abcxyz_"))
    typed = key[:place] + data.draw(st.sampled_from(["", letter, letter + key[place]])) + key[place + 1 :]
    assume(typed not in declared(verb) and typed.strip(".") == typed)
    # hydra's own keys, and dictionaries that take any, are no mistakes
    assume(not re.match(r"hydra\b|.*\b(args|env|callbacks)\.|\.", typed))
    found = mistakes(verb, f"{typed}=1")
    assert [each for each in found if typed in each.what and each.advice], found
    meant = {key_of(option) for each in found for fix in each.fixes for option in fix.options}
    assert meant <= {*declared(verb), *GROUPS}
