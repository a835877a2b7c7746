"""The table of other programs' terms: complete, its keys are ours, and docs/coming-from.md is made from it."""

import pytest

from imagenet_ddp.cli import hydra_flags, known_terms
from imagenet_ddp.cli.known_terms import BY_NAME, TERMS, VALUES, Term
from imagenet_ddp.config.conf_dir import conf_dir
from imagenet_ddp.config.keys import declared
from scripts.doc_pages import PROGRAMS


@pytest.mark.parametrize("term", TERMS, ids=lambda term: ",".join(term.names))
def test_its_keys_are_ours(term: Term):
    keys = declared("train")
    for here in [term.here, *VALUES.get(term.role, {}).values()]:
        for option in here.replace("'", "").split():
            key = option.partition("=")[0]
            assert key in keys or (conf_dir() / key).is_dir() or key == "hydra.run.dir", option
    assert term.here or term.note


def test_a_name_has_one_meaning_and_a_place_in_the_page():
    names = [(name, term) for term in TERMS for name in term.names]
    assert [name for name, term in names if BY_NAME[known_terms.plain(name)] is not term] == []
    shown = " ".join(names for _, names in PROGRAMS.values()).split()
    assert BY_NAME.keys() == {known_terms.plain(name) for name in shown}


def test_hydras_own_options_are_known():
    """By the parser's private table: Hydra has no public one."""
    from hydra._internal.utils import get_args_parser

    options = get_args_parser()._option_string_actions
    assert {name for name, action in options.items() if action.nargs == 0} == hydra_flags.FLAGS
    assert {name for name, action in options.items() if action.nargs != 0} == hydra_flags.WITH_VALUE


def test_none_is_one_of_hydras():
    taken = {"-p"}  # --package NAME: a number is pytorch/examples' --print-freq
    assert (hydra_flags.FLAGS | hydra_flags.WITH_VALUE) & BY_NAME.keys() == taken
