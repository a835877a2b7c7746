"""What a word of the command line means: the contract, one row each."""

import sys
from pathlib import Path
from typing import Any

import pytest
from hydra.types import RunMode
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from imagenet_ddp.cli.options import Files
from imagenet_ddp.cli.parse import composed
from imagenet_ddp.cli.words import UNREAD, read
from imagenet_ddp.config.schema import commands
from imagenet_ddp.config.schema.keys import declared
from imagenet_ddp.errors import ConfigError

LAYERS = "data=imagefolder data.root=x"  # its recipe sets optim.lr=0.1 and schedule.name=cosine
# (words, key, its value)
VALUES: list[tuple[str, str, Any]] = [
    # a text takes its characters; all else follows Hydra's grammar
    ("name=1.10", "name", "1.10"), ("name=2024_11_26", "name", "2024_11_26"), ("name='1.10'", "name", "1.10"),
    ("model.weights=null", "model.weights", None), ("name=null", "name", "null"), ("seed=1_0", "seed", 10),
    ("optim.lr=1e-3", "optim.lr", 0.001), ("trainer.benchmark=true", "trainer.benchmark", True),
    ("trainer.devices=[0,3]", "trainer.devices", [0, 3]), ("trainer.devices='0,3'", "trainer.devices", "0,3"),
    ("loss.class_weights={cat: 3}", "loss.class_weights", {"cat": 3}),
    ("allow_targets=[a.B]", "allow_targets", ["a.B"]),
    ("+data.args={label: 1_0}", "data.args", {"label": 10}), ("hydra.run.dir=1.10", "hydra.run.dir", "1.10"),
    # free keys, and what changes the keys themselves
    ("+callbacks.mine.x=1.10", "callbacks.mine", {"x": 1.1}), ("++model.args.width=2", "model.args", {"width": 2}),
    ("nccl.env.NCCL_DEBUG=INFO", "nccl.env", {"NCCL_DEBUG": "INFO"}),
    ("~callbacks.progress", "callbacks.progress", None),
    ("callbacks.history.curves=false", "callbacks.history.curves", False),
    # the last word of a key counts
    ("seed=1 seed=2", "seed", 2), ("optim=sgd optim=lamb", "optim.name", "lamb"),
    # an interpolation is resolved when all layers lie
    ("name=${optim.name} optim=adamw", "name", "adamw"), ("name=${seed}_1_0 seed=1_0", "name", "10_1_0"),
    # defaults < recipe of the data < experiment < typed choice < typed value, wherever they are typed
    ("seed=0", "optim.lr", 0.0015), (LAYERS, "optim.lr", 0.1), (f"experiment=finetune {LAYERS}", "optim.lr", 0.0002),
    (f"optim=adamw experiment=finetune {LAYERS}", "optim.lr", 0.001),
    (f"optim.lr=0.3 optim=adamw experiment=finetune {LAYERS}", "optim.lr", 0.3),
    (f"optim=adamw {LAYERS}", "schedule.name", "cosine"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "key", "value"), VALUES, ids=[words for words, *_ in VALUES])
def test_a_word_means(words: str, key: str, value: Any):
    parts = [words] if ": " in words else words.split()
    request = composed("train", parts)
    found = request.hydra.run.dir if key == "hydra.run.dir" else OmegaConf.select(request.config, key)
    assert (OmegaConf.to_container(found) if OmegaConf.is_config(found) else found) == value
    recorded = OmegaConf.to_container(request.hydra.overrides.task, resolve=False)
    assert request.typed == parts and recorded == [word for word in parts if not word.startswith("hydra.")]


def test_a_yes_no_key_without_a_value_belongs_to_no_path(here: Path):
    (here / "lists").mkdir()
    for file in ("lists/a.csv", "lists/gone.csv"):
        found = read("prepare", [f"decisions={file}", "undo"])
        assert (found.typed, found.mistakes) == ([f"decisions={file}", "undo"], [])
    (here / "lists/a.csv").touch()
    assert read("prepare", ["decisions=lists/a.csv", "more"]).mistakes == []  # a path that exists is whole
    assert read("prepare", ["decisions=lists/my", "list.csv"]).typed == ["decisions=lists/my list.csv"]


@pytest.mark.parametrize(
    ("words", "key", "values"),
    [
        ("optim.lr=0.1,0.2 seed=3", "optim.lr", [0.1, 0.2]),
        ("seed=range(2,5)", "seed", [2, 3, 4]),
        ("seed=choice(4,7)", "seed", [4, 7]),
        ("optim=glob(ada*)", "optim.name", ["adafactor", "adam", "adamw"]),
        ("name=1.10,'2_0',null", "name", ["1.10", "2_0", "null"]),
        ("data.mean=[0.1,0.2,0.3],[0.4,0.5,0.6]", "data.mean", [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]),
        ("name=${seed}_x seed=1,2", "name", ["1_x", "2_x"]),
        (r"name=a\,b,c", "name", ["a,b", "c"]),
    ],
)
def test_the_values_of_a_sweep_are_split_first(words: str, key: str, values: list[Any]):
    assert [OmegaConf.select(config, key) for config in composed("train", ["-m", *words.split()]).configs] == values


KEYS = [
    path
    for path, key in declared("train").items()
    if not (key.is_group or key.type is str or path.startswith((*UNREAD, "data", "experiment")))
]
PLAIN = ["0", "3", "-1", "0.5", "1e-3", "1_0", "true", "null", "inf", "[]", "[1,2]", "[a,b]", "{a:1}", "abc", "'x'",
         "${seed}", "a\\,b", "12:30", "0x10", "007"]  # fmt: skip
CHOICES = [
    "strategy=ddp", "strategy=dp", "cluster=tcp", "logger=csv", "logger=null", "callbacks=none", "compile=default",
    "callbacks=[default,early_stopping]", "~logger", "hydra.verbose=true", "hydra/launcher=basic",
]  # fmt: skip
FREE = ["callbacks.history.curves", "callbacks.mine.x", "model.args.width", "optim.args.eps", "nccl.env.X", "bogus"]


@pytest.mark.slow
@given(st.data())
def test_the_gate_and_hydra_agree_but_for_text(data: st.DataObject):
    value = st.tuples(
        st.sampled_from(["", "", "", "+", "++"]), st.sampled_from([*KEYS, *FREE]), st.just("="), st.sampled_from(PLAIN)
    ).map("".join)
    delete = st.sampled_from([*KEYS, *FREE]).map("~{}".format)
    words = data.draw(st.lists(value | delete | st.sampled_from(CHOICES), max_size=4))
    commands.register("train")
    try:
        expected = Files("train", "train", None).compose(words, RunMode.RUN)
    except Exception:
        expected = None
    try:
        request = composed("train", words)
    except ConfigError:
        assert expected is None, words
        return
    assert expected is not None, words
    assert request.config == OmegaConf.masked_copy(expected, [str(key) for key in expected if key != "hydra"]), words
    for part in ("overrides", "job", "runtime", "verbose"):
        assert request.hydra[part] == expected.hydra[part], words


@pytest.mark.parametrize("typed", ["-m seed=1,2", "hydra.mode=MULTIRUN", "--hydra-help", "--info=config"])
def test_what_is_left_to_hydra_needs_a_python_that_it_supports(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    composed("train", typed.split())
    monkeypatch.setattr(sys, "version_info", (3, 14, 2))
    monkeypatch.setattr("hydra.__version__", "1.3.8")
    with pytest.raises(
        ConfigError, match=r"requires Python 3\.13 or older, because Hydra 1\.3\.8 .* got 3\.14\. Hint: begin"
    ):
        composed("train", typed.split())
    monkeypatch.setattr("hydra.__version__", "1.3.9")
    composed("train", typed.split())
