"""Write the generated pages docs/reference.md and docs/coming-from.md: python -m imagenet_ddp.cli.doc_pages."""

import re

import yaml
from omegaconf import MISSING

from imagenet_ddp.cli.known_terms import PROGRAMS, TERMS, Term
from imagenet_ddp.config.commands import COMMANDS
from imagenet_ddp.config.keys import Key, declared
from imagenet_ddp.config.schema import conf_dir
from imagenet_ddp.config.validators import shown

DOCS = conf_dir().parent / "docs"
_HEAD = """# Reference of all keys

Typed as `key=value`. `python -m imagenet_ddp.train --cfg job` shows the values of one command line, and
[configuration.md](configuration.md) how they are composed. The defaults are those without a file of `conf/`: the data's
recipe, for example, sets some of them.

Generated from `src/imagenet_ddp/config/` by `python -m imagenet_ddp.cli.doc_pages`.
"""


def reference() -> str:
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


_COMING_FROM = """# Coming from another program

Options of other programs are answered with the line to type here, one line for the whole command:

    $ python -m imagenet_ddp.train -a resnet18 --lr 0.1 --multiprocessing-distributed --world-size 1 --rank 0 FOLDER

names what each option is here, and ends with `python -m imagenet_ddp.train data=imagenet data.root=FOLDER …`.
Nothing is started. The same holds for their names typed as keys (`print_freq=10`, `trainer.gpus=2`).

Generated from `src/imagenet_ddp/cli/known_terms.py` by `python -m imagenet_ddp.cli.doc_pages`.
"""


def coming_from() -> str:
    """docs/coming-from.md."""
    parts = [_COMING_FROM]
    for program, (title, introduction) in PROGRAMS.items():
        rows = [_term_row(term, term.names[program]) for term in TERMS if term.names.get(program)]
        parts.append(f"## {title}\n\n{introduction}\n\n| there | here | difference in meaning |\n|---|---|---|\n")
        parts[-1] += "\n".join(rows) + "\n"
    return "\n".join(parts)


def _term_row(term: Term, names: str) -> str:
    value = "" if term.flag else " VALUE"
    there = ", ".join(f"`{name}`" for name in names.split())
    return f"| {there} | {_here(term, value.strip())} | {_filled(term.note)} |"


def _here(term: Term, value: str) -> str:
    if term.values is not None:
        return "; ".join(f"{name}: `{here}`" for name, here in term.values.items())
    if not term.here:
        return "not available yet" if term.missing else "nothing"
    return f"`{term.here.replace('{}', value)}`"


def _filled(note: str) -> str:
    return note.replace("{}", "VALUE")


PAGES = {"reference.md": reference, "coming-from.md": coming_from}

if __name__ == "__main__":
    for name, text in PAGES.items():
        (DOCS / name).write_text(text(), encoding="utf-8")
