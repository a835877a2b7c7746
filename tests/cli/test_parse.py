"""A command line becomes checked configs."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from imagenet_ddp.cli.parse import Request, command_line, composed
from imagenet_ddp.config import conf_dir
from imagenet_ddp.config.schema.commands import COMMANDS
from imagenet_ddp.config.schema.keys import declared
from imagenet_ddp.errors import ConfigError

ENVIRON = {"HOME": "/home/ann"}
pytestmark = pytest.mark.usefixtures("here")


def asked(*argv: str, verb: str = "train") -> Request:
    return command_line(verb, list(argv), ENVIRON)


def refused(*argv: str, verb: str = "train") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        command_line(verb, list(argv), ENVIRON)
    return list(map(str, caught.value.mistakes))


# Group of conf/ -> the only command that knows it.
OF_ONE_VERB = {"search": "tune", "prepare": "prepare", "benchmark": "benchmark"}
# tests/config/test_experiments.py composes the experiments
FILES = sorted(
    path.relative_to(conf_dir())
    for path in conf_dir().glob("*/*.yaml")
    if path.parent.name not in ("hydra", "experiment")
)
OF_TRAIN = [
    [path for path in FILES if path.parent == group]
    for group in dict.fromkeys(path.parent for path in FILES)
    if group.name not in OF_ONE_VERB
]
LINES = [[path for path in line if path] for line in itertools.zip_longest(*OF_TRAIN)]  # one file of each group


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_every_file_of_conf_composes(line: list[Path]):
    composed("train", [f"{path.parent}={path.stem}" for path in line])


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_command_has_the_groups_of_train(verb: str):
    composed(verb, [f"{path.parent}={path.stem}" for path in LINES[0]])
    for path in FILES:
        if OF_ONE_VERB.get(path.parent.name) == verb:
            composed(verb, [f"{path.parent}={path.stem}"])
    assert {path.stem for path in conf_dir().glob("*.yaml")} == {*COMMANDS, "base"}


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_name_brings_the_values_of_its_file(path: Path):
    """Typed as optim.name=adamw, it would otherwise train at the rate of another optimizer."""
    group, verb = path.parent, OF_ONE_VERB.get(path.parent.name, "train")
    content: Any = OmegaConf.to_container(OmegaConf.load(conf_dir() / path), resolve=False)
    if content.get("name") != path.stem or f"{group}.name" not in declared(verb):
        return
    by_name, by_choice = (composed(verb, [f"{group}{key}={path.stem}"]).config for key in (".name", ""))
    assert by_name == by_choice
    kept = composed(verb, [f"{group}={path.stem}", f"{group}.name={path.stem}"])
    assert kept.config == by_choice


def test_the_last_of_two_names_wins():
    """A file with nothing but the name, as that of resnet18, is not chosen by it: a value would win over the choice."""
    assert asked("model.name=vgg11", "model.name=resnet18").config.model.name == "resnet18"


def test_own_files_by_config_dir(tmp_path: Path):
    (tmp_path / "mine" / "data").mkdir(parents=True)
    (tmp_path / "mine" / "data" / "own.yaml").write_text("name: own\n_target_: torchvision.datasets.FakeData\n")
    (tmp_path / "mine" / "bare.yaml").write_text("seed: 1\n")
    typed = ["--config-dir", "mine", "data=own"]
    assert asked(*typed).config.data.name == "own"  # its file is the user's, and may name any code
    (text,) = refused("--config-dir=mine", "--config-name=bare")
    assert "defaults: [train, _self_]" in text


def test_an_experiment_may_be_added():
    assert asked("+experiment=quick").argv == ["experiment=quick"]


def test_hydra_answers_by_itself(tmp_path: Path):
    for option in ("--help", "--hydra-help", "--version", "--shell-completion", "--cfg=job", "--info"):
        assert asked(option).only_prints
    (tmp_path / "program.py").write_text("""
import hydra, sys
from imagenet_ddp.cli.parse import command_line
from imagenet_ddp.config import conf_dir
@hydra.main(config_path=str(conf_dir()), config_name="train", version_base="1.3")
def main(config): ...
command_line("train", sys.argv[1:], {})
main()
""")
    environ = dict(os.environ, PYTHONPATH=str(Path(__file__).parents[2] / "src"))
    command = [sys.executable, "program.py", "--cfg=job"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0 and "train_dir: train" in done.stdout, done.stderr


@pytest.mark.parametrize("line", ["-m --cfg=job seed=1,2", "hydra.run.dir=${foo}"])
def test_what_hydra_would_end_with_a_traceback_is_refused(line: str):
    with pytest.raises(ConfigError):
        asked(*line.split())


def test_local_rank_never_reaches_hydra():
    for words in (["--local-rank=1", "seed=1"], ["seed=1", "--local_rank=0"]):
        assert asked(*words).argv == ["seed=1"]


def test_a_checkpoint_fills_in_what_evaluate_does_not_type():
    """The composed default is data=shapes at 48 pixels; what is typed may only fit the checkpoint's."""
    typed = ["checkpoint=x.ckpt", "data.val_resize=40", "data.val_fraction=0.1", "data.root=gone"]
    assert asked(*typed, verb="evaluate").config.data.val_resize == 40
    assert asked("resume=x.ckpt", "data.val_resize=40").typed == ["resume=x.ckpt", "data.val_resize=40"]
    assert len(refused("data.val_resize=40")) == 1
    assert len(refused("checkpoint=x.ckpt", "data.image_size=-1", verb="evaluate")) == 1


@pytest.mark.parametrize(
    ("verb", "root"),
    [("train", "gone"), *((verb, "pets") for verb in ("train", "doctor", "tune", "submit", "benchmark"))],
)
def test_a_root_that_was_typed_is_no_place_for_generated_images(verb: str, root: str, tmp_path: Path):
    text = refused(f"data.root={root}", verb=verb)[0]
    assert text.startswith(f"data.root={root} must be typed with data=")
    assert text.endswith(f" data=imagefolder data.root={root}.")
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize(
    "line",
    ["data=imagefolder data.root=pets", "data.root=null", "data.root=fresh experiment=aws_stl10",
     "data.root=gone resume=x.ckpt", "data.root=gone data._target_=torch.Source",
     "-m data=stl10,imagefolder data.root=pets"],
)  # fmt: skip
def test_whose_images_they_are_is_said(line: str):
    assert asked(*line.split()).configs


def test_every_job_of_a_sweep_is_checked():
    request = asked("seed=range(3)", "-m", "optim.lr=0.1,0.2", "data.root=null")
    assert request.multirun and request.argv == ["seed=range(3)", "optim.lr=0.1,0.2", "data.root=null", "-m"]
    expected = [(lr, seed) for seed in range(3) for lr in (0.1, 0.2)]
    assert [(config.optim.lr, config.seed) for config in request.configs] == expected
    assert asked("optim.lr=0.1", "hydra.mode=MULTIRUN").multirun
    found = refused("-m", "optim.lr=0.1,-1", "model.name=resnet18,resnet19", "data.flip=2")
    starts = ("data.flip must be", "Job 1 (optim.lr=0.1 model.name=resnet19) and others: model.name must be",
              "Job 2 (optim.lr=-1 model.name=resnet18) and others: optim.lr must be")  # fmt: skip
    assert len(found) == 3 and all(any(text.startswith(start) for text in found) for start in starts)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("experiment=fast", {"optim.name": "adamw", "optim.lr": 0.0015}),
        ("experiment=fast optim=sgd", {"optim.name": "sgd", "optim.lr": 0.1}),
        ("optim=sgd", {"optim.name": "sgd"}),  # the recipe of shapes has AdamW
        ("data=imagefolder data.root=x optim=adamw", {"optim.name": "adamw", "optim.lr": 1e-3}),
        ("optim.lr=0.3 experiment=quick optim=lamb", {"optim.name": "lamb", "optim.lr": 0.3}),
        ("experiment=torchvision_v2 averaging=none", {"averaging.name": "none"}),
        ("experiment=deit_small model=resnet18", {"model.name": "resnet18", "model.library": "torchvision"}),
    ],
)
def test_a_typed_group_wins_over_recipe_and_experiment(typed: str, expected: dict[str, object]):
    (config,) = composed("train", typed.split()).configs
    assert {key: OmegaConf.select(config, key) for key in expected} == expected


@pytest.mark.parametrize("typed", ["schedule.warmup_epochs=4", "schedule={warmup_epochs:4}"])
def test_a_warm_up_stays_as_typed_in_a_short_run(typed: str):
    assert asked("trainer.max_epochs=4", typed, "data=stl10").config.schedule.warmup_epochs == 4
    assert asked("trainer.max_epochs=4", "data=stl10").config.schedule.warmup_epochs == 1


def test_the_weights_of_a_run_are_for_its_net(tmp_path: Path):
    (tmp_path / "mine" / "checkpoints").mkdir(parents=True)
    best = tmp_path / "mine" / "checkpoints" / "best.ckpt"
    best.touch()
    own = {"name": "tf_efficientnet_lite0", "library": "timm", "_target_": None, "args": {"drop_rate": 0.1}}

    def net(*typed: str, **stored: object) -> tuple[object, ...]:
        (best.parent.parent / "config.yaml").write_text(json.dumps({"model": own | stored}))
        (config,) = composed("train", ["model.weights=mine", *typed]).configs
        return config.model.name, config.model.library, config.model._target_, config.model.args

    assert net() == net(freeze="backbone") == ("tf_efficientnet_lite0", "timm", None, {"drop_rate": 0.1})
    usual = "resnet18", "torchvision", None, {}
    assert net("model.name=resnet18") == net("model=resnet18") == net(_target_="os.system") == usual
    assert net("experiment=deit_small")[0] != own["name"]


# ---- text, whose characters Hydra would change

NAMES = ("2024_11_26", "1.10", "1e5", "0x10", "007", "-5", "inf", "true", "No", "1_0", "٣", "12:30", "a=b", "café")
ODD = ("in,out", "a=b", "[x]", "(1)", "two words", " lead", "$x", "{a}", "it's", 'a"b', "x\\y", "a\\,b", "choice(a,b)")


def read(key: str, *argv: str, verb: str = "train") -> object:
    return OmegaConf.select(composed(verb, list(argv)).config, key)


@pytest.mark.parametrize("text", [*NAMES, "NULL"])
def test_text_keeps_its_characters(text: str):
    typed = [f"{key}={text}" for key in ("name", "model.name", "data.val_dir", "hydra.run.dir")]
    request = composed("train", typed)
    config = request.config
    assert [config.name, config.model.name, config.data.val_dir, request.hydra.run.dir] == [text] * 4
    assert read("images", "checkpoint=x", f"images={text}", verb="predict") == text


@pytest.mark.parametrize("rest", ["runs", "runs/${name}"])
def test_the_home_folder_is_expanded(rest: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/me")
    request = composed("train", [f"hydra.run.dir=~/{rest}", "name=x"])
    assert OmegaConf.to_container(request.hydra.run, resolve=False) == {"dir": f"/home/me/{rest}"}


def test_null_and_quotes_keep_their_meaning():
    assert read("data.args.label", "data=imagefolder", "+data.args.label=1_0") == 10
    assert (read("data.root", "data.root=null"), read("name", "name=null")) == (None, "null")
    assert read("name", "name='1.10'") == "1.10"
    assert read("name", "name=${seed}_1_0", "seed=1_0") == "10_1_0"
    jobs = composed("train", ["-m", "name=1.10,2_0,'3_0',x"]).configs
    assert [config.name for config in jobs] == ["1.10", "2_0", "3_0", "x"]
    jobs = composed("train", ["-m", "name=a, 1.10 ,'b c'", "optim=sgd, adamw"]).configs
    assert [(config.name, config.optim.name) for config in jobs] == [
        (name, optim) for name in ("a", "1.10", "b c") for optim in ("sgd", "adamw")
    ]


@pytest.mark.parametrize("text", ODD)
def test_an_existing_path_is_that_path(text: str):
    Path(text).mkdir()
    for key, verb in (("data.root", "train"), ("resume", "train"), ("checkpoint", "evaluate"), ("images", "predict")):
        needed = ["checkpoint=x"] if verb == "predict" else ["data=imagefolder"]
        assert read(key, *needed, f"{key}={text}", verb=verb) == text


@pytest.mark.parametrize("text", ["0", "-2", "0,00", "٢", "cuda:0", ""])
def test_text_that_names_no_devices_is_refused(text: str):
    (devices,) = refused(f"trainer.devices='{text}'")
    assert devices.startswith("trainer.devices must be auto, an integer ≥ 1,")
    assert "for example, set trainer.devices=1 for one device, 'trainer.devices=[0]' for GPU 0, or auto." in devices
