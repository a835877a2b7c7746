"""A stored config is data: that of a checkpoint, of a run folder, or of a job that another machine sends."""

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Run
from omegaconf import OmegaConf

from imagenet_ddp.cli import parse
from imagenet_ddp.config.schema.evaluate import EvaluateConfig
from imagenet_ddp.config.schema.predict import PredictConfig
from imagenet_ddp.config.section import WITH_ARGS, make, to_plain
from imagenet_ddp.config.stored import literal, not_plain, refused
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch.job import decide
from imagenet_ddp.launch.stored_config import resolved_config

RUNS = "torch.utils.collect_env.run"  # runs a shell command, and is none of Hydra's own block list

OWN = {
    "model": "torchvision.models.resnet18", "data": "torchvision.datasets.ImageFolder",
    "optim": "torch.optim.SGD", "loss": "torch.nn.CrossEntropyLoss", "schedule": "builtins.dict",
    "transform": "torch.nn.Identity", "module": "torch.nn.Identity",
}  # fmt: skip

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def evil(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Change], Path]:
    """Return a function: it changes the stored config of a copy of a run, whose files are clean otherwise."""
    monkeypatch.chdir(tmp_path)

    def change(how: Change) -> Path:
        shutil.copytree(trained.parent.parent, tmp_path / "theirs", symlinks=True)
        for path in (tmp_path / "theirs" / "checkpoints").glob("*.ckpt"):
            checkpoint = torch.load(path, weights_only=True)
            how(checkpoint["imagenet_ddp"]["config"])
            path.unlink()  # the files are links to each other
            torch.save(checkpoint, path)
        return tmp_path / "theirs" / "checkpoints" / "best.ckpt"

    return change


def config_of(verb: str, *options: str) -> Any:
    """Return what the command makes of its options and of the checkpoint that they name."""
    if verb == "train":
        request = parse.command_line("train", options, {})
        return decide(request, {}, Place(), "").config
    request = parse.command_line(verb, options, {})
    return resolved_config(request, {}, EvaluateConfig if verb == "evaluate" else PredictConfig)


def refusals(verb: str, *options: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        config_of(verb, *options)
    return [str(each) for each in error.value.mistakes]


def naming(place: str, target: str, **arguments: Any) -> Change:
    """Return a change after which the config names this class at a place, such as model.args or callbacks."""

    def how(config: dict[str, Any]) -> None:
        group, _, key = place.partition(".")
        if key == "_target_":
            config[group] |= {"_target_": target, "args": arguments}
        elif key:
            config[group] |= {"_target_": OWN[group], "args": {"x": {"_target_": target, **arguments}}}
        else:
            config[group]["x"] = {"_target_": target, **arguments}

    return how


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    ["model.args", "data._target_", "callbacks logger " + " ".join(f"{group}._target_" for group in WITH_ARGS
                                                                   if group not in ("model", "data"))],
)  # fmt: skip
def test_no_command_runs_the_code_of_a_checkpoint(
    place: str, evil: Callable[[Change], Path], run: Run, tree: Path, tmp_path: Path
) -> None:
    def how(config: dict[str, Any]) -> None:
        for each in place.split():
            naming(each, RUNS, command=f"touch {tmp_path / 'done'}")(config)

    checkpoint = evil(how)
    for verb, options in {
        "predict": (f"checkpoint={checkpoint}", f"images={tree / 'val/cat'}"),
        "evaluate": (f"checkpoint={checkpoint}", "hydra.run.dir=e"),
        "features": (f"checkpoint={checkpoint}", "hydra.run.dir=f"),
        "export": (f"checkpoint={checkpoint}", "out=net.onnx"),
        "train": (f"resume={tmp_path / 'theirs'}", "trainer.max_epochs=7"),
        "report": (str(tmp_path / "theirs"),),
    }.items():
        # what a command does not make need not be allowed
        is_used = verb == "train" or place.startswith(("model",) if verb == "predict" else ("model", "data"))
        # report goes on without the evaluation, and exits with 1
        done = run(verb, *options, code=(1 if verb == "report" else 2) if is_used else 0)
        assert not (tmp_path / "done").exists(), verb
        assert "Traceback" not in done.stderr, verb
        assert ("name no code but that of this program" in " ".join((done.stdout + done.stderr).split())) is is_used, (
            done
        )


@pytest.mark.parametrize(
    "place", [*(f"{group}.{key}" for group in WITH_ARGS for key in ("_target_", "args")), "logger", "callbacks"]
)
def test_a_resume_makes_no_class_of_the_checkpoint(place: str, evil: Callable[[Change], Path]) -> None:
    checkpoint = evil(naming(place, RUNS, command="false"))
    text = refusals("train", f"resume={checkpoint.parent.parent}", "trainer.max_epochs=7")[0]
    assert "must name no code but that of this program" in text and ("args" in place or RUNS in text)


def test_the_hint_names_exactly_the_classes_and_works(evil: Callable[[Change], Path], tree: Path) -> None:
    def how(config: dict[str, Any]) -> None:
        config["model"] |= {"_target_": "torch.nn.Identity", "args": {}}
        config["callbacks"]["mine"] = {"_target_": "torch.nn.Flatten", "folder": "/somewhere"}

    checkpoint = evil(how)
    resume = [f"resume={checkpoint.parent.parent}", "trainer.max_epochs=7"]
    (text,) = refusals("train", *resume)
    (allow,) = shlex.split(text.rpartition("add `")[2].removesuffix("`."))
    assert allow == "allow_targets=[torch.nn.Identity,torch.nn.Flatten]"
    config = config_of("train", *resume, allow)  # nothing more needs to be typed, its paths included
    assert config.callbacks["mine"]["folder"] == "/somewhere"
    # neither a package nor another class of it is a permission
    for less in ("allow_targets=[torch]", "allow_targets=[torch.nn]", "allow_targets=[torch.nn.Flatten]"):
        assert "torch.nn.Identity" in refusals("train", *resume, less)[0]
    # what is typed needs no permission
    typed = ["model._target_=torch.nn.Identity", "+callbacks.mine._target_=torch.nn.Flatten"]
    assert config_of("train", *resume, *typed).model.target == "torch.nn.Identity"
    # predict makes the net alone
    assert config_of("predict", f"checkpoint={checkpoint}", f"images={tree}", "allow_targets=[torch.nn.Identity]")


def test_a_stored_allow_targets_allows_nothing(evil: Callable[[Change], Path], tree: Path) -> None:
    def how(config: dict[str, Any]) -> None:
        config["allow_targets"], config["model"]["_target_"] = ["os.system"], "os.system"

    (text,) = refusals("predict", f"checkpoint={evil(how)}", f"images={tree}")
    assert "model._target_=os.system" in text


def test_arguments_are_plain_values() -> None:
    made = make("model._target_", "builtins.dict", {"x": {"_target_": RUNS, "command": "true"}, "y": [1, 2]})
    assert made == {"x": {"_target_": RUNS, "command": "true"}, "y": [1, 2]} and type(made["y"]) is list


def test_no_interpolation_of_a_checkpoint_is_resolved(
    evil: Callable[[Change], Path], tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "sesame")

    def how(config: dict[str, Any]) -> None:
        config["data"]["root"] = f"{tree}/${{oc.env:SECRET}}"
        config["callbacks"]["history"]["title"] = "${oc.env:SECRET} \\${oc.env:SECRET}"
        config["name"] = "${oc.env:SECRET}"

    checkpoint = evil(how)
    with pytest.raises(ConfigError) as error:
        config_of("evaluate", f"checkpoint={checkpoint}")
    assert "sesame" not in str(error.value) and "${oc.env:SECRET}" in str(error.value)
    config = config_of("train", f"resume={checkpoint.parent.parent}", "trainer.max_epochs=7", f"data.root={tree}")
    assert config.callbacks["history"]["title"] == "${oc.env:SECRET} \\${oc.env:SECRET}"
    assert config.name == "${oc.env:SECRET}"


@pytest.mark.parametrize("text", ["", "a", "${a}", "\\${a}", "\\\\${a}", "${", "$${a}", "\\", "x${oc.env:HOME}y\\"])
def test_text_remains_text(text: str) -> None:
    node = OmegaConf.create({"a": 1, "key": literal({"x": [text]})})
    assert OmegaConf.to_container(node, resolve=True)["key"] == {"x": [text]}  # type: ignore[index]


ADDRESSES: dict[str, tuple[str, Any, str]] = {  # key -> the commands that would use it, the value, what to type
    "data.root": ("evaluate train", "s3://bucket/pack", "data.root=s3://bucket/pack"),
    "data.args": ("evaluate train", {"endpoint_url": "http://10.0.0.1:9"}, "++data.args.endpoint_url=http://10.0.0.1:9"),
    "data.cache_dir": ("evaluate train", "/etc/x", "data.cache_dir=/etc/x"),
    "teacher.weights": ("train", "hf://them/net", "teacher.weights=hf://them/net"),
    "nccl.env": ("train", {"NCCL_NET_PLUGIN": "./x.so"}, "++nccl.env.NCCL_NET_PLUGIN=./x.so"),
    "logger.wandb": (
        "train", {"_target_": "imagenet_ddp.callbacks.loggers.WandbLogger", "project": "a b"},
        '++logger.wandb={_target_:imagenet_ddp.callbacks.loggers.WandbLogger,project:"a b"}',
    ),
    "logger.csv": (
        "train", {"_target_": "lightning.pytorch.loggers.CSVLogger", "save_dir": "s3://bucket", "name": "../.."},
        "++logger.csv={_target_:lightning.pytorch.loggers.CSVLogger,save_dir:s3://bucket,name:../..}",
    ),
    "callbacks.checkpoint.dirpath": ("train", "/etc/x", "++callbacks.checkpoint.dirpath=/etc/x"),
}  # fmt: skip


@pytest.mark.parametrize("key", ADDRESSES)
def test_an_address_of_a_checkpoint_is_used_if_it_is_typed(key: str, evil: Callable[[Change], Path], tree: Path):
    verbs, value, typed = ADDRESSES[key]
    group, _, rest = key.partition(".")

    def how(config: dict[str, Any]) -> None:
        entry, _, last = rest.rpartition(".")
        node = config[group][entry] if entry else config[group]
        node[last] = value
        if group == "data":
            config["data"] |= {"name": "streamed", "shuffle_window_shards": 16}

    checkpoint = evil(how)
    own = [] if key == "data.root" else ["data.root=http://127.0.0.1:9"] if group == "data" else [f"data.root={tree}"]
    lines = {
        "predict": [f"checkpoint={checkpoint}", f"images={tree}"],
        "evaluate": [f"checkpoint={checkpoint}", *own],
        "train": [f"resume={checkpoint.parent.parent}", "trainer.max_epochs=7", *own],
    }
    for verb, line in lines.items():
        if verb not in verbs.split():
            config_of(verb, *line)
            continue
        text = refusals(verb, *line)[0]
        hint = shlex.split(text.rpartition("add `")[2].removesuffix("`."))
        assert hint == [typed]
        config = config_of(verb, *line, *hint)  # the hint works when it is typed
        node: Any = to_plain(config)
        for part in key.split("."):
            node = node[part]
        assert node == value


def test_the_options_of_the_command_count_as_typed(evil: Callable[[Change], Path], tmp_path: Path) -> None:
    """A requeued job, and resume=auto, type the same command again."""

    def how(config: dict[str, Any]) -> None:
        config["data"] |= {"name": "streamed", "root": "http://127.0.0.1:9/pack", "shuffle_window_shards": 16}

    evil(how)
    (tmp_path / "theirs/summary.json").unlink()
    own = ["data=streamed", "data.root=http://127.0.0.1:9/pack", "resume=auto", "hydra.run.dir=theirs"]
    assert config_of("train", *own).data.root == "http://127.0.0.1:9/pack"


def test_no_checkpoint_is_written_through_a_link_of_a_run_folder(
    evil: Callable[[Change], Path], tmp_path: Path
) -> None:
    folder, mine = evil(lambda config: None).parent.parent, tmp_path / "mine"
    (folder / "checkpoints").rename(mine)
    (folder / "checkpoints").symlink_to(mine)
    resume = [f"resume={folder}", "trainer.max_epochs=7"]
    (text,) = refusals("train", *resume)
    (hint,) = shlex.split(text.rpartition("set ")[2].removesuffix("."))
    assert config_of("train", *resume, hint)  # as for the link of one's own run
    (folder / "checkpoints").unlink()
    mine.rename(folder / "checkpoints")
    (folder / "logs" / "rank0.log").unlink()
    (folder / "logs" / "rank0.log").symlink_to(tmp_path / "own")
    assert "links that lead out of it" in refusals("train", *resume)[0]


def test_a_file_that_nccl_would_write_is_typed():
    env = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": ".bashrc"}
    (mistake,) = refused({"nccl": {"env": env}}, {}, "train", "a checkpoint", [])
    assert mistake.fixes[0].options == ("++nccl.env.NCCL_DEBUG_FILE=.bashrc",)


SWEEP: dict[str, Any] = {"options": ["data=shapes", "optim.lr=0.1,0.2"], "flags": [], "jobs": [["optim.lr=0.1"], ["x"]]}


@pytest.mark.parametrize(
    ("key", "word"),
    [
        ("options", "model._target_=os.system"), ("options", "+callbacks.x={_target_: os.system}"),
        ("options", "hydra.launcher._target_=os.system"), ("options", "++loss._target_=os.system"),
        ("options", "schedule._target_=os.system"), ("options", "+loss.args={x: {_target_: os.system}}"),
        ("options", "name=${oc.env:HOME}"),
        ("options", "data.root=s3://x"), ("options", "logger=wandb"),
        ("flags", "--config-dir=evil"), ("options", 3), ("options", "-cd=evil"),
        ("options", "data.cache_dir=/x"), ("options", "+callbacks.checkpoint.dirpath='~/x'"),
        ("options", "++data={cache_dir: ../x}"),
    ],
)  # fmt: skip
def test_a_stored_sweep_is_data(key: str, word: Any, tmp_path: Path, run: Run) -> None:
    from imagenet_ddp.launch.stored_sweep import expand_resume

    folder = tmp_path / "s"
    folder.mkdir()
    (folder / "sweep.yaml").write_text(json.dumps({**SWEEP, key: [*SWEEP[key], word]}))
    with pytest.raises(ConfigError) as error:
        expand_resume([f"sweep.resume={folder}"])
    if isinstance(word, str):  # the hint works when it is typed
        again = shlex.split(str(error.value).rpartition("add `")[2].removesuffix("`."))
        assert expand_resume([f"sweep.resume={folder}", *again])
    (folder / "sweep.yaml").write_text(json.dumps(SWEEP))
    assert "optim.lr=0.1,0.2" in expand_resume([f"sweep.resume={folder}"])


def test_a_config_that_is_no_plain_value_has_a_reason() -> None:
    loop: dict[str, Any] = {}
    loop["a"] = loop
    bomb: Any = "x"
    for _ in range(25):
        bomb = [bomb, bomb]
    assert "levels" in not_plain(loop) and "values" in not_plain(bomb)
    assert not_plain({1: 2}) and not_plain({"a": torch.zeros(1)}) and not not_plain({"a": [1, None, "x", {"b": 0.5}]})
