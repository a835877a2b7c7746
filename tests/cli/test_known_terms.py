"""The table of other programs' terms: complete, and what it says to type exists."""

import shlex
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from imagenet_ddp.cli import flags, known_terms
from imagenet_ddp.cli.explain import unknown
from imagenet_ddp.cli.flags import without_other_programs
from imagenet_ddp.cli.known_terms import BY_NAME, TERMS, closest
from imagenet_ddp.cli.parse import composed
from imagenet_ddp.config import conf_dir
from imagenet_ddp.config.schema.commands import COMMANDS
from imagenet_ddp.config.schema.keys import declared
from imagenet_ddp.config.schema.read_if import TRAIN, read_by, unread
from imagenet_ddp.config.validators import shown
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import key_of
from scripts.doc_pages import PROGRAMS


def typed_here() -> list[tuple[str, str]]:
    """Return (an option of another program, one of the options to type here) of the whole table."""
    lines = [(term, line) for term in TERMS for line in (term.here, *term.values.values())]
    return [
        (term.names[0], word) for term, line in lines if not line.startswith("python") for word in shlex.split(line)
    ]


def test_each_option_to_type_here_exists_and_takes_the_value():
    for name, word in typed_here():
        keys = declared(name.rpartition("/")[0] or "train")
        key, _, value = word.partition("=")
        key = key.lstrip("+")
        if key in keys and not keys[key].is_group:
            allowed = keys[key].allowed
            assert "{}" in value or allowed is None or allowed.accepts(yaml.safe_load(value)), (name, word)
        elif key in keys or key == "experiment":
            assert "{}" in value or (conf_dir() / key / f"{value}.yaml").is_file(), (name, word)
        else:
            assert key.startswith(("hydra.run.dir", "callbacks.", "model.args.", "optim.args.")), (name, word)


def mistakes(*argv: str, verb: str = "train") -> list[str]:
    with pytest.raises(ConfigError) as error:
        composed(verb, argv)
    return list(map(str, error.value.mistakes))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("--arch resnet50", "set model.name=resnet50 (any"),
        ("--opt sgd_nesterov", "set optim=sgd optim.nesterov=true (for"),
        ("--scale 0.08 1.0", "set `'data.crop_scale=[0.08,1.0]'`."),
        ("--world-size=2", "set trainer.num_nodes=2 (if"),
        ("--remode rand", "leave --remode rand out (one random colour (rand) has no equivalent)"),
        ("--pretrained", "set model.weights=DEFAULT (the"),
    ],
)
def test_an_option_is_answered(line: str, hint: str):
    (message,) = mistakes(*line.split())
    assert message.startswith(f"{line} is an option of another program. Hint: {hint}")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("--experiment=own_photos", "experiment=own_photos"),  # a key or a choice of this program, however it is typed
        ("--experiment own_photos", "experiment=own_photos"),
        ("experiment:own_photos", "experiment=own_photos"),
        ("budget_min:5", "budget_min=5"),
        ("--budget_min 5", "budget_min=5"),
        ("--data.root 'my pets'", "data.root=my pets"),
        ("-d my pets", "data.root=my pets"),
        ("--experiment mine", "name=mine"),
        ("--image_size '(64, 64)'", "data.image_size=(64, 64)"),
        ("validation_split=0.2", "data.val_fraction=0.2"),
        ("--validation-split 0.2", "data.val_fraction=0.2"),
        ("device=cpu", "trainer.accelerator=cpu"),  # by its value
        ("device=0", ""),
        ("device=0,1", "trainer.devices=[0,1]"),  # no sweep
        ("pretrained=True", "model.weights=DEFAULT"),
        ("pretrained=false", "model.weights=null"),
        ("pretrained=no", "model.weights=null"),
        ("--pretrained false", "model.weights=null"),
        ("amp=0", "trainer.precision=32-true"),  # auto may use bf16
        ("--amp=false", "trainer.precision=32-true"),
        ("amp=bf16-mixed", "trainer.precision=bf16-mixed"),
        ("early_stopping=5", "callbacks=early_stopping"),  # no file of callbacks
        ("torchcompile=max-autotune", "compile=max-autotune"),
        ("norm_weight_decay=0", "optim.no_decay_on=[norm]"),
        ("norm_weight_decay=0.0", "optim.no_decay_on=[norm]"),
        ("pretrained=x.pth", "model.weights=x.pth"),
        ("patience=5", "callbacks=early_stopping callbacks.early_stopping.patience=5"),
        ("lr0=0.1", "optim.scaling=none optim.lr=0.1"),
        ("lr=0.1", "optim.lr=0.1"),  # a key of this program without its group
    ],
)
def test_a_word_of_another_program_is_translated_however_it_is_typed(line: str, meant: str):
    with pytest.raises(ConfigError) as error:
        composed("train", [*shlex.split(line), "seed=3"])
    (mistake,) = error.value.mistakes
    assert " ".join(mistake.fixes[0].options) == meant


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("recipe", [["data=imagefolder"], ["experiment=own_photos"]])
def test_a_flag_that_is_off_is_off_after_the_correction(recipe: list[str]):
    """Where the config, or the recipe, has it on."""
    start = composed("train", recipe)
    for term in TERMS:
        option, equals, on = term.here.rpartition(" ")[2].partition("=")
        if not equals or "{}" in term.here or term.here.startswith("python") or "/" in term.names[0]:
            continue
        for off in ("false", "no"):
            with pytest.raises(ConfigError) as error:
                composed("train", [*recipe, f"{known_terms.plain(term.names[0])}={off}"])
            fix = error.value.mistakes[0].fixes[0]
            typed = dict(each.split("=", 1) for each in fix.options)
            before = OmegaConf.select(start.config, option)
            before = before.get("name") if isinstance(before, DictConfig) else before  # of a group
            assert typed.get(option, shown(before)) != on, (term.names, off)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("before", ["-a resnet18", "--std 0.5 0.5 0.5", "--pretrained --evaluate", "--rank 0"])
def test_the_data_folder_is_no_value_of_the_option_before_it(before: str):
    Path("images").mkdir()
    assert "data.root=images" in mistakes(*before.split(), "images")[-1]


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
    assert options.keys() - unsupported == flags.NAMES
    assert not flags.NAMES & BY_NAME.keys()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("verb", [*COMMANDS])
def test_a_command_is_offered_only_keys_that_it_has_a_use_for(verb: str):
    """Each key of any command, typed without its group, and each option of another program."""
    used, keys = read_by(verb), {path for each in COMMANDS for path in declared(each)}
    for name in {path.rpartition(".")[2] for path in keys} | {each.removeprefix(f"{verb}/") for each in BY_NAME}:
        assert "/" in name or {*closest(name, used)} <= used.keys(), name
        options = {key_of(option) for fix in unknown(name, verb).fixes for option in fix.options}
        assert "/" in name or options & keys <= used.keys(), name  # the word of another command
    for name in (name for term in TERMS for name in term.names if name.startswith("-")):
        _, found = without_other_programs(verb, [name, "3"])
        options = {key_of(option) for each in found for fix in each.fixes for option in fix.options}
        assert options & keys <= used.keys(), name
    assert verb in TRAIN or not refused_by(verb, used)


def refused_by(verb: str, keys: Iterable[str]) -> list[str]:
    """Return the keys that a command which reads a checkpoint refuses to take, because only training reads them."""
    typed = [f"{key}=1" for key in keys] if "checkpoint" in declared(verb) else []
    return [str(each) for each in unread(typed, {}, declared(verb)) if "only training reads" in str(each)]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("half=true", "format=onnx_fp16"),  # not the precision of the comparison
        ("--fp16", "format=onnx_fp16"),
        ("half=false", ""),
        ("--batch-size 8", "batch_size=8"),
        ("dynamic=false", "batch_size=1"),
        ("--opset 17", ""),
        ("-o m.onnx", "out=m.onnx"),
        ("imgsz=224", "data.image_size=224"),
    ],
)
def test_a_word_may_mean_something_else_in_a_command(line: str, meant: str):
    with pytest.raises(ConfigError) as error:
        composed("export", ["checkpoint=x.ckpt", *shlex.split(line)])
    (mistake,) = error.value.mistakes
    assert " ".join(mistake.fixes[0].options) == meant
    other = mistakes(*line.split(), "data=shapes")[0]
    assert not meant or f"set {meant}" not in other or line == "imgsz=224"


@pytest.mark.usefixtures("here")
def test_a_command_says_what_it_offers_instead():
    for typed, said in (
        ("threshold=50%", "filter its column probability_1"),
        ("root=pets", "did you mean images?"),
        ("--data pets", "Hint: set images=pets."),
        ("--output classes.csv", "Hint: set out=classes.csv."),
        ("--lr 0.1", "predict has no use for optim.lr. Hint: leave --lr 0.1 out."),
    ):
        (message,) = mistakes(*typed.split(), "images=pets", "checkpoint=x.ckpt", verb="predict")
        assert said in message
