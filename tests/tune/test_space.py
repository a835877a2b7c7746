"""The space a study searches: what it may say, and how a value is typed to train."""

from typing import Any

import pytest
from omegaconf import OmegaConf

from imagenet_ddp.config.conf_dir import conf_dir
from imagenet_ddp.tune.space import Parameter, as_override, quote, read

distributions = pytest.importorskip("optuna.distributions", reason="the extra `tune` is not installed")
Choices = distributions.CategoricalDistribution
Float, Int = distributions.FloatDistribution, distributions.IntDistribution


def mistakes(search: dict, *typed: str) -> str:
    return "\n".join(read(search, typed)[1])


def test_the_files_of_the_space_are_right():
    files = sorted((conf_dir() / "search").glob("*.yaml"))
    assert files
    for file in files:
        search: Any = OmegaConf.to_container(OmegaConf.load(file))
        parameters, found = read(search, ())
        is_empty = file.stem in ("auto", "none")  # auto is replaced by the file of the optimizer
        assert bool(parameters) != is_empty
        assert not found or is_empty, found


@pytest.mark.parametrize(
    ("key", "entry", "distribution", "values"),
    [
        ("optim.lr", {"low": 1, "high": 2, "log": True}, Float(1, 2, log=True), (1.0, 2.0)),
        ("schedule.warmup_epochs", {"low": 0, "high": 2, "step": 0.3}, Float(0, 1.8, step=0.3), (0.0, 1.8)),
        ("data.batch_size", {"low": 8, "high": 64, "step": 8}, Int(8, 64, step=8), (8, 64)),
        ("trainer.gradient_clip_val", {"low": 1, "high": 4, "step": 0.5}, Float(1, 4, step=0.5), (1.0, 4.0)),
        ("model.name", {"choices": ["resnet18", "resnet34"]}, Choices(["resnet18", "resnet34"]),
         ["resnet18", "resnet34"]),
        ("data.crop_scale", {"choices": [[0.1, 1.0], [0.2, 1.0]]}, Choices(["[0.1,1.0]", "[0.2,1.0]"]),
         [[0.1, 1.0], [0.2, 1.0]]),
        ("optim.args.eps", {"low": 0.1, "high": 0.2}, Float(0.1, 0.2), (0.1, 0.2)),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_an_entry_is_one_of_optunas_distributions(key: str, entry: dict, distribution: Any, values: Any):
    """Written with its dots, or as a tree."""
    group, _, name = key.rpartition(".")
    tree: dict = {name: entry}
    for part in reversed(group.split(".")):
        tree = {part: tree}
    for search in ({key: entry}, tree):
        (parameter,), found = read(search, ())
        assert found == []
        assert parameter == Parameter(key, entry, distribution)
        assert parameter.values_to_check == values and [type(end) for end in parameter.values_to_check] == [
            type(end) for end in values
        ]


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"optim": {"lrr": {"low": 1, "high": 2}}}, "optim.lrr is not a known key. Hint: did you mean optim.lr?"),
        ({"optim": {"lr": 0.1}}, "search.optim.lr must be a range or a list, got 0.1"),
        ({"optim": {"lr": {"low": 1, "high": 1}}}, "got {low:1,high:1}: it contains only one value"),
        ({"optim": {"lr": {"low": 2, "high": 1}}}, "got {low:2,high:1}: `low <= high` must hold"),
        ({"optim": {"lr": {"low": 0.1}}}, "search.optim.lr must have low and high"),
        ({"optim": {"lr": {"low": 1, "high": 2, "choices": [1, 2]}}}, "search.optim.lr must have low and high"),
        ({"optim": {"lr": {"low": "a", "high": 1}}}, "search.optim.lr.low must be a number, got a"),
        ({"optim": {"lr": {"low": 1, "high": 2, "log": 1}}}, "search.optim.lr.log must be true or false, got 1"),
        ({"data": {"batch_size": {"low": 1.5, "high": 9}}}, "data.batch_size.low must be an integer, got 1.5"),
        ({"optim": {"lr": {"choices": [0.1]}}}, "a list of two or more different values, got {choices:[0.1]}"),
        ({"optim": {"nesterov": {"low": 0, "high": 1}}}, "must be a list, because optim.nesterov is true or false"),
        ({"optim": {"low": 1, "high": 2}}, "got a group of keys. Hint: type `'search.optim.name=[A,B]'`"),
        ({"trainer": {"devices": {"choices": [1, 2]}}}, "trainer.devices must be the same for all trials"),
        ({}, "the search space is empty"),
    ],
)  # fmt: skip
def test_a_wrong_entry_is_refused(search: dict, message: str):
    parameters, found = read(search, ())
    assert parameters == [] and len(found) == 1
    assert message in found[0]


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("search.optim.lr.high=1", "++search.optim.lr.high=1"),
        ("+search.optim.lr={low:1,high:2}", "++search.optim.lr={low:1,high:2}"),
        ("search.model.name=[a,b]", "++search.model.name.choices=[a,b]"),
        ("search=mine", "search=mine"),
        ("optim.lr=1", "optim.lr=1"),
    ],
)
def test_an_option_adds_or_changes(token: str, expected: str):
    assert as_override(token) == expected


def test_a_typed_list_or_range_replaces_the_other_kind():
    """A list typed over a file's range, and the reverse; both typed are a mistake."""
    search = {"optim": {"lr": {"low": 0.1, "high": 1.0, "log": True, "choices": [1.0, 2.0]}}}
    (choices,), _ = read(search, ("++search.optim.lr.choices=[1.0,2.0]",))
    assert choices.distribution == Choices([1.0, 2.0])
    (span,), _ = read(search, ("++search.optim.lr={low:0.1,high:1.0}",))
    assert span.distribution == Float(0.1, 1.0, log=True)
    assert "or only choices" in mistakes(search, "++search.optim.lr.choices=[1.0]", "++search.optim.lr.low=0.1")


@pytest.mark.parametrize(
    "value",
    ["resnet18", "null", "a b", "it's", "C:\\x", "", "1e3", True, None, 3, 0.1, 1e-05, [0.08, 1.0], ["a", None],
     {"a": 1, "b": [True]}],
)  # fmt: skip
def test_hydra_reads_back_the_quoted_value(value: object):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    override = OverridesParser.create().parse_override(f"a.b={quote(value)}")
    read_back = override.value()
    assert read_back == value and type(read_back) is type(value)


def test_a_value_becomes_an_option():
    """++ where the key may be new: arguments of one's own classes."""
    search = {"optim.args.eps": {"low": 0.1, "high": 1.0}, "data.crop_scale": {"choices": [[0.1, 1.0], [0.2, 1.0]]},
              "model.name": {"choices": ["a b", None]}}  # fmt: skip
    eps, scale, name = read(search, ())[0]
    assert eps.option(0.5) == "++optim.args.eps=0.5"
    assert scale.option("[0.2,1.0]") == "data.crop_scale=[0.2,1.0]"
    assert [name.option(label) for label in ("a b", None)] == ["model.name='a b'", "model.name=null"]
