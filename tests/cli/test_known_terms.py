"""The table of other programs' terms: complete, its keys are ours, and docs/coming-from.md is made from it."""

import pytest

from imagenet_ddp.cli import hydra_flags, known_terms
from imagenet_ddp.cli.known_terms import BY_NAME, PROGRAMS, TERMS, Term
from imagenet_ddp.config.keys import declared
from imagenet_ddp.config.schema import conf_dir

# pytorch/examples, imagenet/main.py @77f55b9: all of its options.
EXAMPLES = (
    "-a --arch -j --workers --epochs --start-epoch -b --batch-size --lr --learning-rate --momentum --wd --weight-decay "
    "-p --print-freq --resume -e --evaluate --pretrained --world-size --rank --dist-url --dist-backend --seed --gpu "
    "--no-accel --multiprocessing-distributed --dummy"
)
TUTORIALS = (
    "-n -g -nr -bk -im -rn -ws print_freq backend init_method nproc_per_node nnodes node_rank master_addr master_port "
    "gpus gpu0_bsz acc_grad starting_lr pretrained evaluate num_epochs world_size rank"
)


@pytest.mark.parametrize("name", [*EXAMPLES.split(), *TUTORIALS.split()])
def test_it_is_known(name: str):
    assert known_terms.find(name) is not None


@pytest.mark.parametrize("term", TERMS, ids=lambda term: next(iter(term.names.values())).replace(" ", ","))
def test_its_keys_are_ours(term: Term):
    keys = declared("train")
    for here in [term.here, *(term.values or {}).values()]:
        for option in here.replace("'", "").split():
            key = option.partition("=")[0]
            free = key == "hydra.run.dir" or key.startswith("nccl.env.")
            assert key in keys or (conf_dir() / key).is_dir() or free, option
    assert set(term.names) <= set(PROGRAMS)
    assert term.here or term.note or term.values or term.missing


def test_a_name_has_one_meaning():
    names = [(name, term) for term in TERMS for names in term.names.values() for name in set(names.split())]
    assert [
        name for name, term in names if name.isupper() is False and BY_NAME[known_terms.plain(name)] is not term
    ] == []


def test_hydras_own_options_are_known():
    """By the parser's private table: Hydra has no public one."""
    from hydra._internal.utils import get_args_parser

    options = get_args_parser()._option_string_actions
    assert {name for name, action in options.items() if action.nargs == 0} == hydra_flags.FLAGS
    assert {name for name, action in options.items() if action.nargs != 0} == hydra_flags.WITH_VALUE


def test_none_is_one_of_hydras():
    taken = {"-p"}  # --package NAME: a number is pytorch/examples' --print-freq
    assert (hydra_flags.FLAGS | hydra_flags.WITH_VALUE) & BY_NAME.keys() == taken
