"""Write docs/reference.md: every key of every command, from its declaration. Run this file to renew the page."""

import re

import yaml
from omegaconf import MISSING

from imagenet_ddp.config.commands import COMMANDS
from imagenet_ddp.config.keys import Key, declared
from imagenet_ddp.config.schema import conf_dir
from imagenet_ddp.config.validators import shown

PAGE = conf_dir().parent / "docs" / "reference.md"
_HEAD = """# Reference of all keys

Typed as `key=value`. `python -m imagenet_ddp.train --cfg job` shows the values of one command line, and
[configuration.md](configuration.md) how they are composed. The defaults are those without a file of `conf/`: the data's
recipe, for example, sets some of them.

Generated from `src/imagenet_ddp/config/` by `python -m imagenet_ddp.cli.reference`.
"""


def page() -> str:
    """Return the text of docs/reference.md."""
    lines = [_HEAD]
    train = {path: key for path, key in declared("train").items() if not key.is_group}
    for group in dict.fromkeys(path.rpartition(".")[0] for path in train):
        lines += _table(group, [key for path, key in train.items() if path.rpartition(".")[0] == group])
    for command in COMMANDS:
        own = [key for path, key in declared(command).items() if not key.is_group and _is_own(key, train.get(path))]
        if own:
            lines += _table(f"python -m imagenet_ddp.{command}", own)
    return "\n".join(lines)


def _is_own(key: Key, of_train: Key | None) -> bool:
    return of_train is None or (key.default, key.meaning) != (of_train.default, of_train.meaning)


def _table(title: str, keys: list[Key]) -> list[str]:
    head = ["| key | value | default | meaning |", "|---|---|---|---|"]
    return [f"## {title or 'Keys of all commands'}\n", *head, *map(_row, keys), ""]


def _row(key: Key) -> str:
    words = key.words if key.allowed is not None or key.type is not dict else "a mapping"
    cells = (f"`{key.path}`", words, _default(key), key.meaning)
    return f"| {' | '.join(map(_escaped, cells))} |"


def _escaped(text: str) -> str:
    """Return text whose characters mean nothing to Markdown, except between backticks."""
    return text if text.startswith("`") else re.sub(r"[|<*_]", r"\\\g<0>", text)


def _default(key: Key) -> str:
    group, _, name = key.path.partition(".")
    if group == "trainer" and name:
        return f"`{shown(yaml.safe_load((conf_dir() / 'trainer/default.yaml').read_text(encoding='utf-8'))[name])}`"
    return "must be set" if key.default == MISSING else f"`{shown(key.default)}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
