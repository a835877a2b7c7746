"""The space a study searches: what it may say, and how a value is typed to train."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from imagenet_ddp.schema import conf_dir
from imagenet_ddp.tuning.parameter import Parameter, in_grammar
from imagenet_ddp.tuning.space import read, written


def said(search: dict, *typed: str) -> str:
    return "\n".join(read(search, typed)[1])


def test_the_files_of_the_space_are_right():
    files = sorted((conf_dir() / "search").glob("*.yaml"))
    assert files
    for file in files:
        search: Any = OmegaConf.to_container(OmegaConf.load(file))
        parameters, found = read(search, ())
        assert bool(parameters) != (file.stem == "none")
        assert not found or file.stem == "none", found


@pytest.mark.parametrize(
    ("search", "parameter"),
    [
        ({"optim": {"lr": {"low": 1, "high": 2, "log": True}}}, Parameter("optim.lr", 1.0, 2.0, log=True)),
        ({"optim.lr": {"low": 0.1, "high": 0.2}}, Parameter("optim.lr", 0.1, 0.2)),
        ({"data": {"batch_size": {"low": 8, "high": 64, "step": 8}}},
         Parameter("data.batch_size", 8, 64, step=8, whole=True)),
        ({"trainer": {"accumulate_grad_batches": {"low": 1, "high": 4}}},
         Parameter("trainer.accumulate_grad_batches", 1, 4, whole=True)),
        ({"model": {"name": {"choices": ["resnet18", "resnet34"]}}},
         Parameter("model.name", choices=("resnet18", "resnet34"))),
        ({"optim": {"args": {"eps": {"low": 0.1, "high": 0.2}}}}, Parameter("optim.args.eps", 0.1, 0.2)),
    ],
)  # fmt: skip
def test_an_entry_is_a_range_or_choices(search: dict, parameter: Parameter):
    assert read(search, ()) == ([parameter], [])
    assert parameter.whole == isinstance(read(search, ())[0][0].low, int)


@pytest.mark.parametrize(
    ("search", "words"),
    [
        ({"optim": {"lrr": {"low": 1, "high": 2}}}, "optim.lrr is not a known key. HINT: did you mean optim.lr?"),
        ({"optim": {"lr": 0.1}}, "search.optim.lr is expected to be a range or a list, but is 0.1"),
        ({"optim": {"lr": {"low": 1, "high": 1}}}, "low is expected to be less than high"),
        ({"optim": {"lr": {"low": 0, "high": 1, "log": True}}}, "search.optim.lr.low is expected to be a number > 0"),
        ({"optim": {"lr": {"low": 0.1}}}, "search.optim.lr.high is needed"),
        ({"optim": {"lr": {"low": "a", "high": 1}}}, "search.optim.lr.low is expected to be a number, but is a"),
        ({"optim": {"lr": {"low": 1, "high": 2, "step": 3}}}, "step is expected to fit between 1 and 2"),
        ({"optim": {"lr": {"low": 1, "high": 9, "log": True, "step": 2}}}, "has log and step"),
        ({"optim": {"lr": {"low": 1, "high": 2, "lo": 3}}}, "search.optim.lr.lo is not known"),
        ({"optim": {"lr": {"low": 1, "high": 2, "choices": [1, 2]}}}, "has choices and low, high too"),
        ({"optim": {"lr": {"choices": [0.1]}}}, "a list of two values or more, but is [0.1]"),
        ({"optim": {"lr": {"choices": [0.1, 0.2, 0.1]}}}, "holds 0.1 twice"),
        ({"optim": {"nesterov": {"low": 0, "high": 1}}}, "has a range, but optim.nesterov is true or false"),
        ({"data": {"batch_size": {"low": 1.5, "high": 9}}}, "expected to be a whole number as data.batch_size is"),
        ({"optim": {"low": 1, "high": 2}}, "optim is a group of keys. HINT: `'search.optim.name=[A,B]'`"),
        ({"trainer": {"devices": {"choices": [1, 2]}}}, "trainer.devices is the same for all trials"),
        ({"cluster": {"num_threads": {"choices": [1, 2]}}}, "cluster.num_threads is the same for all trials"),
        ({}, "nothing is searched"),
    ],
)  # fmt: skip
def test_a_wrong_entry_is_said(search: dict, words: str):
    assert words in said(search)
    assert read(search, ())[0] == []


def test_a_key_is_typed_or_searched():
    search = {"optim": {"lr": {"low": 1, "high": 2}}}
    assert "optim.lr is typed and searched too" in said(search, "optim.lr=0.1")
    assert read({"optim": {"lr": None}, "data": {"batch_size": {"choices": [8, 16]}}}, ("optim.lr=0.1",))[1] == []


@pytest.mark.parametrize(
    ("token", "as_hydra_takes_it"),
    [
        ("search.optim.lr.high=1", "++search.optim.lr.high=1"),
        ("+search.optim.lr={low:1,high:2}", "++search.optim.lr={low:1,high:2}"),
        ("search.model.name=[a,b]", "++search.model.name.choices=[a,b]"),
        ("search.model.name.choices=[a,b]", "++search.model.name.choices=[a,b]"),
        ("search=mine", "search=mine"),
        ("~search.optim.lr", "~search.optim.lr"),
        ("optim.lr=1", "optim.lr=1"),
    ],
)
def test_an_option_adds_or_changes(token: str, as_hydra_takes_it: str):
    assert written(token) == as_hydra_takes_it


def test_what_is_typed_replaces_the_other_kind():
    """A list typed over a file's range, and the reverse; both typed are a mistake."""
    search = {"optim": {"lr": {"low": 0.1, "high": 1.0, "log": True, "choices": [1.0, 2.0]}}}
    assert read(search, ("++search.optim.lr.choices=[1.0,2.0]",))[0] == [Parameter("optim.lr", choices=(1.0, 2.0))]
    assert read(search, ("++search.optim.lr={low:0.1,high:1.0}",))[0] == [Parameter("optim.lr", 0.1, 1.0, log=True)]
    assert "has choices and" in said(search, "++search.optim.lr.choices=[1.0]", "++search.optim.lr.low=0.1")


@pytest.mark.parametrize(
    "value",
    ["resnet18", "null", "a b", "it's", "C:\\x", "", "1e3", True, None, 3, 0.1, 1e-05, [0.08, 1.0], ["a", None],
     {"a": 1, "b": [True]}],
)  # fmt: skip
def test_hydra_reads_back_what_is_typed(value: object):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    override = OverridesParser.create().parse_override(f"a.b={in_grammar(value)}")
    read_back = override.value()
    assert read_back == value and type(read_back) is type(value)


def test_options_of_the_persons_own_classes_may_be_new():
    assert Parameter("optim.args.eps", 0.1, 1.0).option(0.5) == "++optim.args.eps=0.5"
    assert Parameter("data.crop_scale", choices=([0.1, 1.0], [0.2, 1.0])).option("[0.2,1.0]") == (
        "data.crop_scale=[0.2,1.0]"
    )
    assert Path(conf_dir() / "tune.yaml").is_file()
