"""The table of other programs' terms: complete, and what it says to type exists."""

import shlex

import pytest
import yaml

from imagenet_ddp.cli import hydra_flags, known_terms
from imagenet_ddp.cli.known_terms import BY_NAME, TERMS
from imagenet_ddp.cli.parse import command_line
from imagenet_ddp.config.conf_dir import conf_dir
from imagenet_ddp.config.keys import declared
from imagenet_ddp.errors import ConfigError
from scripts.doc_pages import PROGRAMS


def typed_here() -> list[tuple[str, str]]:
    """Return (an option of another program, one of the options to type here) of the whole table."""
    lines = [(term, line) for term in TERMS for line in (term.here, *term.values.values())]
    return [(term.names[0], word) for term, line in lines for word in shlex.split(line)]


def test_each_option_to_type_here_exists_and_takes_the_value():
    keys = declared("train")
    for name, word in typed_here():
        key, _, value = word.partition("=")
        key = key.lstrip("+")
        if key in keys and not keys[key].is_group:
            allowed = keys[key].allowed
            assert "{}" in value or allowed is None or allowed.accepts(yaml.safe_load(value)), (name, word)
        elif key in keys:
            assert "{}" in value or (conf_dir() / key / f"{value}.yaml").is_file(), (name, word)
        else:
            assert key.startswith(("hydra.run.dir", "callbacks.", "model.args.", "optim.args.")), (name, word)


def mistakes(*argv: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        command_line("train", argv, {"HOME": "/home/ann"}, compose_only=True)
    return error.value.mistakes


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("--arch resnet50", "type model.name=resnet50 (any"),
        ("--opt sgd_nesterov", "type optim=sgd optim.nesterov=true (for"),
        ("--scale 0.08 1.0", "type 'data.crop_scale=[0.08,1.0]'."),
        ("--world-size=2", "type trainer.num_nodes=2 (if"),
        ("--remode rand", "leave it out: const and pixel have an equivalent"),
        ("--pretrained", "type model.weights=DEFAULT (the"),
    ],
)
def test_an_option_is_answered(line: str, hint: str):
    (message,) = mistakes(*line.split())
    assert message.startswith(f"{line} is an option of another program. Hint: {hint}")


# What these programs have, so that none is forgotten: pytorch/examples @77f55b9, torchvision's references @ebc4bc1.
OPTIONS = {
    "pytorch/examples, imagenet/main.py": "DIR -a -j --epochs --start-epoch -b --lr --momentum --wd -p --resume -e "
    "--pretrained --world-size --rank --dist-url --dist-backend --seed --gpu --no-accel --multiprocessing-distributed "
    "--dummy",
    "torchvision, references/classification/train.py": "--data-path --model --device -b --epochs -j --opt --lr "
    "--momentum --wd --norm-weight-decay --bias-weight-decay --transformer-embedding-decay --label-smoothing "
    "--mixup-alpha --cutmix-alpha --lr-scheduler --lr-warmup-epochs --lr-warmup-method --lr-warmup-decay "
    "--lr-step-size --lr-gamma --lr-min --print-freq --output-dir --resume --start-epoch --cache-dataset --sync-bn "
    "--test-only --auto-augment --ra-magnitude --augmix-severity --random-erase --amp --world-size --dist-url "
    "--model-ema --model-ema-steps --model-ema-decay --use-deterministic-algorithms --interpolation "
    "--val-resize-size --val-crop-size --train-crop-size --clip-grad-norm --ra-sampler --ra-reps --weights "
    "--backend --use-v2",
}


@pytest.mark.parametrize(("program", "number"), list(zip(OPTIONS, (22, 51), strict=True)))
def test_every_option_of_a_program_is_in_its_table(program: str, number: int):
    assert len(OPTIONS[program].split()) == number
    assert set(OPTIONS[program].split()) <= set(PROGRAMS[program][1].split())
    assert len({BY_NAME[known_terms.plain(name)] for name in PROGRAMS["timm, train.py"][1].split()}) >= 60


def test_a_name_has_one_meaning_and_a_place_in_the_page():
    names = [(name, term) for term in TERMS for name in term.names]
    assert [name for name, term in names if BY_NAME[known_terms.plain(name)] is not term] == []
    shown = " ".join(names for _, names in PROGRAMS.values()).split()
    assert BY_NAME.keys() == {known_terms.plain(name) for name in shown}


def test_hydras_own_options_are_known():
    """By the parser's private table: Hydra has no public one."""
    from hydra._internal.utils import get_args_parser

    options = get_args_parser()._option_string_actions
    unsupported = {"--config-path", "-cp", "--experimental-rerun", "--package", "-p"}
    assert options.keys() - unsupported == hydra_flags.NAMES
    assert not hydra_flags.NAMES & BY_NAME.keys()
