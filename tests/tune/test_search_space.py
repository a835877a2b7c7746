"""The space a study searches: what it may say, and how a value is typed to train."""

from pathlib import Path
from typing import Any

import pytest

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.tune.search_space import Parameter, as_overrides, quote, read
from imagenet_ddp.tune.study_plan import read as read_plan

distributions = pytest.importorskip("optuna.distributions", reason="the extra `tune` is not installed")
Choices = distributions.CategoricalDistribution
Float, Int = distributions.FloatDistribution, distributions.IntDistribution


@pytest.mark.parametrize(
    ("key", "entry", "distribution"),
    [
        ("optim.lr", {"low": 1, "high": 2, "log": True}, Float(1, 2, log=True)),
        ("schedule.warmup_epochs", {"low": 0, "high": 2, "step": 0.3}, Float(0, 1.8, step=0.3)),
        ("data.batch_size", {"low": 8, "high": 64, "step": 8}, Int(8, 64, step=8)),
        ("model.name", ["resnet18", "resnet34"], Choices(["resnet18", "resnet34"])),
        ("data.crop_scale", [[0.1, 1.0], [0.2, 1.0]], Choices(["[0.1,1.0]", "[0.2,1.0]"])),
        ("optim.args.eps", {"low": 0.1, "high": 0.2}, Float(0.1, 0.2)),
    ],
)
@pytest.mark.filterwarnings("error")
def test_an_entry_is_one_of_optunas_distributions(key: str, entry: Any, distribution: Any):
    tree = entry
    for part in reversed(key.split(".")):
        tree = {part: tree}
    assert read(tree, ()) == ([Parameter(key, entry, distribution)], [])


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"optim": {"lr": 0.1}}, "search.optim.lr=0.1 cannot be searched: it is neither a range nor a list."),
        ({"optim": {"lr": {"low": 2, "high": 1}}}, "search.optim.lr={low:2,high:1} cannot be searched: `low <= high`"),
        ({"optim": {"lr": {"low": 0.1}}}, "missing 1 required positional argument: 'high'."),
        ({"trainer": {"devices": [1, 2]}}, "it must be the same for all trials"),
        ({"data": {"root": ["a", "b"]}}, "data.root is also typed"),
        ({}, "the search space is empty"),
    ],
)
def test_a_wrong_entry_is_refused(search: dict, message: str):
    parameters, [found] = read(search, ["data.root=x"])
    assert parameters == [] and message in str(found) and "Hint: " in str(found)


@pytest.mark.parametrize(
    "value",
    ["resnet18", "null", "a b", "it's", "C:\\x", "", "1e3", True, None, 3, 0.1, 1e-05, [0.08, 1.0], ["a", None],
     {"a": 1, "b": [True]}],
)  # fmt: skip
def test_hydra_reads_back_the_quoted_value(value: object):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    read_back = OverridesParser.create().parse_override(f"a.b={quote(value)}").value()
    assert read_back == value and type(read_back) is type(value)


def test_a_value_becomes_an_option():
    """++ where the key may be new: arguments of one's own classes."""
    search = {"optim.args.eps": {"low": 0.1, "high": 1.0}, "data.crop_scale": [[0.1, 1.0], [0.2, 1.0]],
              "model.name": ["a b", None]}  # fmt: skip
    eps, scale, name = read(search, ())[0]
    assert eps.option(0.123456789) == "++optim.args.eps=0.1235"
    assert scale.option("[0.2,1.0]") == "data.crop_scale=[0.2,1.0]"
    assert [name.option(label) for label in ("a b", None)] == ["model.name='a b'", "model.name=null"]


LR = {"low": 0.005, "high": 0.5, "log": True}


@pytest.mark.parametrize(
    ("typed", "key", "entry"),
    [
        (["data=shapes"], "optim.lr", {**LR, "low": 0.0001, "high": 0.01}),  # its recipe has AdamW
        (["optim=sgd"], "optim.lr", LR),
        (["optim=sgd", "search=auto", "search.optim.lr.high=0.1"], "optim.lr", {**LR, "high": 0.1}),
        (["optim=sgd", "+search.optim.lr={low:0.1,high:1}"], "optim.lr", {"low": 0.1, "high": 1}),
        (["optim=sgd", "search.optim.lr=[0.1,0.2]"], "optim.lr", [0.1, 0.2]),
        (
            ["optim=sgd", "search.loss.label_smoothing={low:0,high:0.5}"],
            "loss.label_smoothing",
            {"low": 0, "high": 0.5},
        ),
        (["data=shapes", "search=sgd", "search.loss.label_smoothing=null"], "loss.label_smoothing", None),
        (
            ["optim=lion", "search=none", "search.model.name=[resnet18,resnet34]"],
            "model.name",
            ["resnet18", "resnet34"],
        ),
    ],
)
def test_the_space_is_that_of_the_optimizer_changed_by_what_is_typed(
    typed: list[str], key: str, entry: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    plan = read_plan(as_overrides([*typed, "trainer.accelerator=cpu"]), {})
    assert {each.key: each.entry for each in plan.parameters}.get(key) == entry


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("optim=lion", "search=auto needs optim.name=sgd or optim.name=adamw, got lion."),
        ("search=none search.optim.lrr=[1,2]", "search.optim.lrr: optim.lrr is not a known key. Hint: did you mean"),
        ("search=none search.data.batch_size={low:1.5,high:9}", "search.data.batch_size: data.batch_size=1.5: Value"),
        ("search=none search.optim.lr={low:-1,high:1}", "search.optim.lr: optim.lr must be a number > 0, got -1."),
        ("resume=auto", "resume must not be set for tune"),
    ],
)
def test_mistakes_are_found_before_the_first_trial(
    typed: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        read_plan(as_overrides(typed.split()), {})
    assert any(str(text).startswith(said) for text in error.value.mistakes), error.value.mistakes
    assert not list(tmp_path.iterdir())
