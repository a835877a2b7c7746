import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from imagenet_ddp.cli import command, mistakes, parse
from imagenet_ddp.cli.overrides import merge_overrides
from imagenet_ddp.cli.parse import Request, command_line
from imagenet_ddp.cli.suggest import REMOVED
from imagenet_ddp.cli.validate import _long_tmpdir, validate
from imagenet_ddp.config.conf_dir import conf_dir
from imagenet_ddp.config.schema.commands import COMMANDS
from imagenet_ddp.distributed import nvidia_gpus
from imagenet_ddp.errors import ConfigError

ENVIRON = {"HOME": "/home/ann"}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder of one's own, and a machine without a GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nvidia_gpus, "GPU_PATHS", ())
    monkeypatch.setattr(nvidia_gpus.sys, "platform", "linux")
    (tmp_path / "x.ckpt").touch()
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / "pets" / split / name).mkdir(parents=True)
            (tmp_path / "pets" / split / name / "1.jpg").touch()


def asked(*argv: str, verb: str = "train", environ: dict[str, str] = ENVIRON) -> Request:
    return command_line(verb, list(argv), environ)


def refused(*argv: str, verb: str = "train", environ: dict[str, str] = ENVIRON) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        command_line(verb, list(argv), environ)
    return caught.value.mistakes


# ---- what is well


def test_the_plain_command():
    request = asked()
    assert (request.verb, request.argv, request.typed, request.multirun, request.passthrough) == (
        "train",
        [],
        [],
        False,
        False,
    )
    assert len(request.configs) == 1
    assert "hydra" not in request.configs[0]
    assert request.configs[0].name == "shapes_resnet18"
    assert str(request.hydra.run.dir).startswith("runs/shapes_resnet18/")


# Group of conf/ -> the only command that knows it.
OF_ONE_VERB = {"search": "tune", "prepare": "prepare", "benchmark": "benchmark"}
# tests/config/test_experiments.py composes the experiments
FILES = sorted(
    path.relative_to(conf_dir())
    for path in conf_dir().glob("*/*.yaml")
    if path.parent.name not in ("hydra", "experiment")
)
FIRST = {path.parent: path for path in reversed(FILES) if path.parent.name not in OF_ONE_VERB}.values()


def asked_with(path: Path, verb: str, *more: str) -> None:
    """Compose the command with this file of conf/ and with what the file needs besides."""
    typed = [f"{path.parent}={path.stem}", "checkpoint=x.ckpt", "images=pets"]
    typed = typed[: {"evaluate": 2, "export": 2, "demo": 2, "predict": 3}.get(verb, 1)]
    if verb == "prepare" and path.parent.name != "prepare":
        typed.append("prepare=check")
    environ = ENVIRON
    if str(path) in ("cluster/tcp.yaml", "cluster/file.yaml"):
        typed += ["trainer.num_nodes=2", f"cluster.address={path.stem}:///tmp/job42".replace("tcp:///tmp/job42", "a:1")]
    if str(path) == "cluster/env.yaml":
        environ = {**ENVIRON, "MASTER_ADDR": "a", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    if str(path.parent) == "data" and path.stem not in ("shapes", "stl10"):
        typed.append("data.root=pets")
    said = {"imagenet": "WordNet", "packed": "packed folder", "streamed": "data.root=s3://", "table": "must be a table"}
    said = said.get(path.stem, "")
    if str(path.parent) == "data" and said and verb == "train":
        assert all(said in text for text in refused(*typed))  # pets are none
    else:
        assert OmegaConf.missing_keys(asked(*typed, *more, verb=verb, environ=environ).configs[0]) == set()


@pytest.mark.parametrize(
    ("path", "verb"),
    [
        pytest.param(path, verb, id=f"{path}-{verb}")
        for path in FILES
        for verb in ("train", "evaluate", "prepare", "tune", "benchmark")
        if OF_ONE_VERB.get(path.parent.name, "train") == verb
        or (path.parent.name == "data" and verb in ("evaluate", "prepare"))
    ],
)
def test_every_file_of_conf_composes(path: Path, verb: str):
    asked_with(path, verb)


@pytest.mark.parametrize("verb", [verb for verb in COMMANDS if verb != "train"])
def test_every_command_has_the_groups_of_train(verb: str):
    one, *others = [path for path in FIRST if path.parent.name != "cluster"]
    asked_with(one, verb, *(f"{path.parent}={path.stem}" for path in others), "data=shapes")


@pytest.mark.parametrize("stem", sorted(path.stem for path in conf_dir().glob("*.yaml")))
def test_every_primary_config_is_a_verb_or_the_base(stem: str):
    assert stem in {*COMMANDS, "base"}


def test_composing_again_is_not_in_hydras_way():
    """hydra.main runs after the check, in the same process."""
    from hydra.core.global_hydra import GlobalHydra

    asked("trainer.max_epochs=3")
    assert not GlobalHydra.instance().is_initialized()


def test_own_files_by_config_dir(tmp_path: Path):
    (tmp_path / "mine" / "data").mkdir(parents=True)
    (tmp_path / "mine" / "data" / "own.yaml").write_text("name: own\n_target_: mypkg.Data\n")
    typed = ["--config-dir", "mine", "data=own"]
    (text,) = refused(*typed)
    assert "got mypkg.Data. Hint: if you trust that package, add `'allow_targets=[mypkg]'`" in text
    assert asked(*typed, "allow_targets=[mypkg]").configs[0].data.name == "own"


@pytest.mark.parametrize(
    "argv", [["--help"], ["--hydra-help"], ["--version"], ["--shell-completion"], ["--cfg", "job"], ["--info"]]
)
def test_hydra_answers_by_itself(argv: list[str]):
    assert asked(*argv).passthrough


@pytest.mark.parametrize("option", ["--help", "--cfg=job"])
def test_hydra_main_runs_after_the_check(option: str, tmp_path: Path):
    program = """
import hydra, sys
from imagenet_ddp.cli.parse import command_line
from imagenet_ddp.config.conf_dir import conf_dir
@hydra.main(config_path=str(conf_dir()), config_name="train", version_base="1.3")
def main(config): ...
command_line("train", sys.argv[1:], {})
main()
"""
    (tmp_path / "program.py").write_text(program)
    environ = dict(os.environ, PYTHONPATH=str(Path(parse.__file__).parents[2]))
    command = [sys.executable, "program.py", option]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    assert "train_dir: train" in done.stdout


def test_local_rank_never_reaches_hydra():
    assert asked("--local-rank=1", "seed=1").argv == ["seed=1"]
    assert asked("--local_rank", "1", "seed=1").argv == ["seed=1"]
    assert asked("seed=1", "--local-rank", "0").argv == ["seed=1"]


def test_words_behind_an_option_are_put_before_it():
    """argparse gives up on them, and Hydra with it."""
    request = asked("seed=1", "-m", "optim.lr=0.1,0.2")
    assert request.argv == ["seed=1", "optim.lr=0.1,0.2", "-m"]
    assert request.typed == ["seed=1", "optim.lr=0.1,0.2"]
    assert len(request.configs) == 2


# ---- what is not


def test_mistakes_of_every_kind_come_in_one_list():
    found = refused(
        "data.batchsize=3",  # unknown key
        "data.image_size=abc",  # wrong type
        "trainer.max_epochs=-5",  # wrong value of Lightning's
        "optim=adamm",  # unknown option of a group
        "data=imagefolder",
        "data.root=/gone/[ä",  # cannot be read, so there is none
        "model.name=resnet19",
        "schedule=cosine",  # a value for a group
        "trainer.devices=0,3",  # a bare list
        "trainer.strategy=ddp",  # filled by this project
        "+data.bogus=1",
    )
    for said in [
        "data.batchsize is not a known key. Hint: did you mean data.batch_size?",
        "data.image_size must be an integer ≥ 8, got abc. Hint: set data.image_size=224 ",
        "trainer.max_epochs must be an integer ≥ -1 or null, got -5.",
        "got adamm. Hint: set optim=adam.",
        "Hint: put quotes around the value: `'data.root=\"/gone/[ä\"'`",
        "model.name must be a classifier of torchvision.models",
        "schedule must be a group of keys, got cosine. Hint: set schedule.name=cosine.",
        "Hint: type `'trainer.devices=[0,3]'` to use all of them together, or add -m",
        "trainer.strategy is set by this project. Hint: set strategy=ddp.",
        "data.bogus is not a known key.",
    ]:
        assert sum(said in text for text in found) == 1, said
    assert len(found) == 11
    assert all("Hint: " in text for text in found)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("checkpoint=x.ckpt", "did you mean resume?"),
        ("+bogus=1", "bogus is not a known key."),
        ("+trainer.bogus=1", "trainer.bogus is not a known key."),
        ("+trainer.strategy=ddp", "Hint: set strategy=ddp."),
        ("trainer.max_epoch=3", "did you mean trainer.max_epochs?"),
        ("data=imagenett", "Hint: set data=imagenet."),
        ("data=STL10", "Hint: set data=stl10."),
        ("experiment=aws", "Hint: set experiment=aws_stl10."),
        ("optim=nesterov", "Hint: set optim=sgd optim.nesterov=true."),
        ("schedule=null", "Hint: set schedule.name=step."),
        ("data.val_resize=abc", "Hint: set data.val_resize=null."),
        ("hydra.run.dir=${nope}", "hydra.run.dir does not resolve"),
        ("data=null", "must be one of imagefolder, imagenet, packed, shapes, stl10, streamed, table, got null."),
        ("model=resnet50", "Hint: set model.name=resnet50."),
        ("recipe=gone", "recipe must be one of"),
        ("experiment=gone", "experiment must be one of aws_stl10, deit_small, "),
        ("callbacks=null", "Hint: set callbacks=none."),
        ("+data=stl10", "Hint: type data=stl10 without +."),
        ("~data", "data is required and cannot be deleted."),
        ("~data.batch_size", "data.batch_size is required and cannot be deleted. Hint: leave ~data.batch_size out."),
        ("~trainer.devices", "trainer.devices is required and cannot be deleted."),
        ("data.batch_size=null", "data.batch_size must be an integer ≥ 1, got null."),
        ("data.mean=3", "data.mean must be three numbers, one per channel or null, got 3."),
        ("data.mean=[1,2", "but cannot be read: [1,2."),
        ("schedule=null", "schedule must be a group of keys, got null."),
        ("data={batch_size: abc}", "Hint: leave this option out, and type each key by itself."),
        ("model.args.x=1", "Hint: type +model.args.x=1 to add it."),
        (
            "callbacks.mine.patience=3",
            "Hint: type +callbacks.mine._target_=lightning.pytorch.callbacks.CLASS +callbacks.mine.patience=3 to add",
        ),
        (
            "optim.lr=0.1,0.2",
            "optim.lr=0.1,0.2 has several values, but -m is not set. Hint: add -m to run one job per value.",
        ),
        ("data=stl10,shapes", "Hint: add -m"),
        ("optim.lr=range(1,3)", "Hint: add -m"),
        ("allow_targets=a,b", "Hint: type `'allow_targets=[a,b]'`"),
        ("resume", "resume must be key=value. Hint: did you mean resume=auto?"),
        ("name=${nope}", "name=${nope} does not resolve: Interpolation key 'nope' not found."),
        ("hydra.foo=1", "hydra.foo=1: Key 'foo' not in 'HydraConf'."),
        ("hydra/launcher=gone", "hydra/launcher must be one of basic"),
        ("hydra.run.dir=x.ckpt/run", "x.ckpt is a file."),
        ("optim._target_=os.system", "optim._target_ must begin with one of imagenet_ddp, torch,"),
        ("optim._target_=torchevil.SGD", "Hint: if you trust that package, add `'allow_targets=[torchevil]'`"),
        ("+hydra.callbacks.x._target_=os.system", "hydra.callbacks.x._target_ must begin with"),
        ("resume=gone.ckpt", "resume must be a checkpoint file"),
        ("--config-dir=gone", "--config-dir must be a folder"),
        ("--config-name=gone", "Cannot find primary config 'gone'."),
        ("--cfg=gone", "the command line cannot be read: argument --cfg/-c: invalid choice"),
        ("--resolve", "Hint: type --cfg job --resolve."),
        ("--config-path=x", "Hint: type --config-dir FOLDER"),
    ],
)
def test_one_mistake(line: str, said: str):
    found = refused(line)
    assert said in found[0]
    assert all("Hint: " in text for text in found)
    assert len(found) == 1


@pytest.mark.parametrize(
    ("path", "quoted"),
    [
        ("/gone/[a]", "`'data.root=\"/gone/[a]\"'`"),
        ("/gone/it's", "`'data.root=\"/gone/it'\"'\"'s\"'`"),
        ("/gone/a (1)", "`'data.root=\"/gone/a (1)\"'`"),
    ],
)
def test_a_path_hydra_cannot_read_is_answered_with_the_form_to_paste(path: str, quoted: str):
    assert quoted in refused("data=imagefolder", f"data.root={path}")[0]
    (pasted,) = shlex.split(quoted.strip("`"))
    (gone,) = refused("data=imagefolder", pasted)
    assert f"but {path} does not exist" in gone


def test_a_tilde_is_answered_with_the_home_folder():
    text = refused("data=imagefolder", "data.root=~/gone")[0]
    assert text.endswith(f"Hint: put quotes around the value: `'data.root=\"{Path.home()}/gone\"'`")


def test_mandatory_paths():
    assert refused(verb="evaluate")[0].startswith("checkpoint is required, but not set. Hint: set checkpoint=runs/")
    assert {text.split()[0] for text in refused(verb="predict")} == {"checkpoint", "images"}


def test_a_broken_file_of_ones_own_is_named(tmp_path: Path):
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "bad.yaml").write_text("# @package _global_\ndata: {batchsize: 3}\n")
    assert refused("--config-dir", "mine", "experiment=bad") == [
        "experiment=bad cannot be composed: data.batchsize is not a known key (in experiment/bad.yaml). "
        "Hint: did you mean data.batch_size?"
    ]


GLOBAL = "# @package _global_\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("defaults: [override /averaging: x]", ["averaging must be one of ema, none, swa, got x (in"]),
        ("optim:\n  lr: 1\n  lr: 2", ["experiment/bad.yaml, line 4: found duplicate key lr. Hint: correct that file."]),
        ("optim:\n\tlr: 1", ["experiment/bad.yaml, line 3: found character '\\t' that cannot start any token."]),
        ("optim:\n lr: 1\n  m: 2", ["experiment/bad.yaml, line 4: mapping values are not allowed here."]),
        ("optim:\n  lr: ${", ["optim.lr: no viable alternative at input '${' (in experiment/bad.yaml)."]),
        ("a: &a\n  b: *a", ["experiment/bad.yaml contains itself, by an alias (*NAME) or in its defaults."]),
        ("optim: {lrr: 1}\ndat: {root: x}\nseed: abc\ncallbacks: {mine: {x: 1}}",
         ["optim.lrr is not a known key (in experiment/bad.yaml).", "dat is not a known key (in experiment/bad.yaml).",
          "seed must be an integer from 0 to 4294967295, got abc (in experiment/bad.yaml)."]),
    ],
)  # fmt: skip
def test_each_mistake_in_a_file_of_ones_own_is_named(content: str, said: list[str], tmp_path: Path):
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "bad.yaml").write_text(GLOBAL + content)
    found = refused("--config-dir", "mine", "experiment=bad")
    for text, start in zip(found, said, strict=True):
        assert text.startswith(f"experiment=bad cannot be composed: {start}")


@pytest.mark.parametrize("first", ["", "# @package _globl_\n"])
@pytest.mark.parametrize("content", ["seed: 1", "", "- a"])
def test_an_experiment_needs_its_first_line(first: str, content: str, tmp_path: Path):
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "bad.yaml").write_text(first + content)
    (text,) = refused("--config-dir", "mine", "experiment=bad")
    assert text.endswith("(in experiment/bad.yaml). Hint: make `# @package _global_` the first line of that file.")
    if not content.startswith("-"):
        (tmp_path / "mine" / "experiment" / "bad.yaml").write_text(GLOBAL + content)
        assert asked("--config-dir", "mine", "experiment=bad")


def test_a_group_file_that_holds_a_list(tmp_path: Path):
    (tmp_path / "mine" / "optim").mkdir(parents=True)
    (tmp_path / "mine" / "optim" / "bad.yaml").write_text("- a")
    (text,) = refused("--config-dir", "mine", "optim=bad")
    assert text.startswith("optim=bad cannot be composed: Merge error: list is not a subclass of OptimConfig.")


def test_a_checkpoint_fills_in_what_evaluate_does_not_type():
    """The composed default is data=shapes at 48 pixels; what is typed may only fit the checkpoint's."""
    typed = ["checkpoint=x.ckpt", "data.val_resize=40", "data.val_fraction=0.1"]
    assert asked(*typed, verb="evaluate").configs[0].data.val_resize == 40
    assert asked("resume=x.ckpt", "data.val_resize=40").typed == ["resume=x.ckpt", "data.val_resize=40"]
    assert len(refused("data.val_resize=40")) == 1
    assert len(refused("checkpoint=x.ckpt", "data.image_size=-1", verb="evaluate")) == 1


# ---- whose images


@pytest.mark.parametrize("root", ["pets", "gone"])
@pytest.mark.parametrize("verb", ["train", "doctor", "tune", "submit", "benchmark"])
def test_a_root_that_was_typed_is_no_place_for_generated_images(verb: str, root: str, tmp_path: Path):
    text = refused(f"data.root={root}", verb=verb)[0]
    assert text.startswith(f"data.root={root} must be typed with data=")
    assert text.endswith(f"Hint: set data=imagefolder data.root={root}.")
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize(
    "typed",
    [
        ["data=imagefolder", "data.root=pets"],
        ["data.root=null"],
        ["data.root=fresh", "experiment=aws_stl10"],
        ["data.root=gone", "resume=x.ckpt"],
        ["data.root=gone", "data._target_=torch.Source"],
        ["-m", "data=stl10,imagefolder", "data.root=pets"],
    ],
)
def test_whose_images_they_are_is_said(typed: list[str]):
    assert asked(*typed).configs
    assert asked("checkpoint=x.ckpt", "data.root=gone", verb="evaluate").configs


def test_generated_images_are_never_put_among_others(tmp_path: Path):
    (text,) = refused("data=shapes", "data.root=pets")
    assert text.endswith("got pets. Hint: set data.root=null.")
    assert sorted(path.name for path in (tmp_path / "pets").iterdir()) == ["train", "val"]


def test_a_file_of_ones_own_without_ours_below_is_one_mistake(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "bare.yaml").write_text("seed: 1\n")
    (text,) = refused("--config-dir=mine", "--config-name=bare")
    assert "defaults: [train, _self_]" in text


# ---- sweeps


def test_every_job_of_a_sweep_is_checked():
    request = asked("-m", "optim.lr=0.1,0.2", "seed=range(3)", "data.root=null")
    assert request.multirun
    assert [(config.optim.lr, config.seed) for config in request.configs] == [
        (lr, seed) for lr in (0.1, 0.2) for seed in range(3)
    ]
    assert asked("optim.lr=0.1", "hydra.mode=MULTIRUN").multirun


def test_mistakes_of_a_sweep_name_their_jobs():
    found = refused("-m", "optim.lr=0.1,-1", "model.name=resnet18,resnet19", "data.flip=2")
    assert len(found) == 3
    assert sum(text.startswith("data.flip must be ") for text in found) == 1
    assert sum(text.startswith("Jobs 1, 3 of 0 to 3: model.name must be ") for text in found) == 1
    assert sum(text.startswith("Jobs 2, 3 of 0 to 3: optim.lr must be ") for text in found) == 1
    (text,) = refused("-m", "trainer.devices=1,99")
    assert text.startswith("Job 1 (trainer.devices=99): trainer.devices must be at most")


def test_a_sweep_hydra_cannot_make():
    (text,) = refused("-m", "optim.lr=interval(0,1)")
    assert "the sweep cannot be split into jobs" in text
    (text,) = refused("-m", "hydra.verbose=true,false")
    assert "cannot be swept" in text
    (text,) = refused(
        "-m",
        "seed=1,2",
        environ={"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
    )
    assert text.startswith("-m starts the workers of each job itself")


# ---- what is shown


def test_refuse(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    command = f"`python -m imagenet_ddp.train {' '.join(f'data.key{number}=value' for number in range(9))}`"
    deep = f"/a/{'very/' * 20}deep/path"
    long = f"data.root must be a folder, but {deep} does not exist. Hint: type on each node {command}."
    with pytest.raises(SystemExit) as caught:
        mistakes.refuse(ConfigError([long, "b. Hint: c."]), "train")
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0] == "imagenet_ddp.train: 2 mistakes, nothing was started"
    assert lines[2].startswith(" 1. data.root must be")
    assert lines[-2:] == [" 2. b.", "    Hint: c."]
    assert f"    {command}." in lines
    assert deep in err
    assert all(len(line) <= 80 for line in lines if "very" not in line and command not in line)
    assert "Traceback" not in err


def test_refuse_with_a_traceback(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(ConfigError) as caught:
        asked("seed=-1")
    with pytest.raises(SystemExit):
        mistakes.refuse(caught.value, "train")
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "imagenet_ddp.train: 1 mistake, nothing was started" in err


# ---- a checkpoint's config and what is typed


def stored(**changed: Any) -> dict[str, Any]:
    plain: Any = OmegaConf.to_container(asked("data=imagefolder", "data.root=pets").configs[0], resolve=True)
    return plain | {"name": "old"} | changed


def merged(*typed: str, verb: str = "evaluate", base: dict[str, Any] | None = None, **afresh: Any) -> DictConfig:
    composed = asked(*typed, *(["checkpoint=x.ckpt"] if verb == "evaluate" else []), verb=verb).configs[0]
    before = OmegaConf.to_yaml(composed)
    config = merge_overrides(stored() if base is None else base, composed, list(typed), **afresh)
    assert OmegaConf.to_yaml(composed) == before
    assert OmegaConf.is_struct(config)
    return config


def test_merge_starts_from_the_checkpoint():
    config = merged("data.batch_size=7", "trainer.limit_val_batches=2")
    assert (config.data.name, config.data.root, config.data.image_size) == ("imagefolder", "pets", 224)
    assert (config.data.batch_size, config.trainer.limit_val_batches) == (7, 2)
    assert (config.name, config.trainer.max_epochs, config.checkpoint) == ("old", 30, "x.ckpt")
    assert validate(config, ENVIRON, "evaluate")[0] == []


def test_merge_takes_a_group_with_its_subtree():
    config = merged("data=stl10", "data.batch_size=9")
    assert (config.data.name, config.data.root, config.data.batch_size, config.data.image_size) == (
        "stl10",
        "./data",
        9,
        96,
    )
    assert config.optim.weight_decay == 1e-4  # the checkpoint's, not the recipe's that came along


@pytest.mark.parametrize(
    ("typed", "size"),
    [
        (["data=stl10"], 512),
        (["experiment=quick", "trainer.batch_finder=true"], 512),
        (["data=stl10", "data.batch_size=9"], 9),
        (["data=stl10", "trainer.batch_finder=false"], 128),
    ],
)
def test_merge_keeps_the_batch_that_was_found(typed: list[str], size: int):
    """A job that is started again has the options of the first time, where no batch stands."""
    base = stored()
    base = {**base, "data": {**base["data"], "batch_size": 512}, "trainer": {**base["trainer"], "batch_finder": True}}
    assert merged(*typed, base=base).data.batch_size == size
    assert merged("data=stl10", base={**base, "trainer": stored()["trainer"]}).data.batch_size == 128


def test_merge_takes_all_of_an_experiment_but_the_name():
    config = merged("experiment=aws_stl10", "optim.lr=0.3", verb="train")
    assert (config.data.name, config.trainer.max_epochs, config.optim.lr, config.name) == ("stl10", 2, 0.3, "old")
    assert merged("name=new", "experiment=quick", verb="train").name == "new"


def test_merge_ignores_trainer_keys_that_are_refused_now():
    base = stored()
    base["trainer"] |= {"limit_test_batches": 3, "limit_predict_batches": None, "max_epochs": 7}
    config = merged(base=base, verb="train")
    assert config.trainer.max_epochs == 7 and "limit_test_batches" not in config.trainer


def test_merge_keeps_a_number_of_warm_up_epochs():
    """schedule.warmup_epochs was a number in every older checkpoint; 0 must not become auto."""
    base = stored()
    for epochs in (0.0, 2.0):
        config = merged(base={**base, "schedule": {**base["schedule"], "warmup_epochs": epochs}}, verb="train")
        assert config.schedule.warmup_epochs == epochs


def test_merge_ignores_what_another_version_wrote():
    base = stored(bogus=1, seed="no number")
    base["data"] = {**base["data"], "gone": 3}
    del base["data"]["flip"], base["loss"]
    base["trainer"] = {**base["trainer"], "strategy": "ddp"}
    config = merged(base=base)
    assert "bogus" not in config
    assert "gone" not in config.data
    assert "strategy" not in config.trainer
    assert (config.seed, config.data.flip, config.loss.name) == (0, 0.5, "cross_entropy")


def test_merge_copies_free_keys():
    base = stored(callbacks={"early_stopping": {"_target_": "lightning.x", "patience": 3}})
    base["model"] = {**base["model"], "args": {"dropout": 0.1}}
    config = merged("+model.args.width=2", "+optim.args={eps: 1}", base=base)
    assert config.model.args == {"dropout": 0.1, "width": 2}
    assert config.optim.args == {"eps": 1}
    assert config.callbacks.early_stopping.patience == 3
    assert merged("callbacks=none", base=base).callbacks == {}


def test_merge_can_take_keys_afresh():
    base = stored()
    base["trainer"] = {**base["trainer"], "devices": 8, "num_nodes": 2}
    assert merged(base=base).trainer.devices == 8
    config = merged(base=base, afresh=["trainer.devices", "trainer.num_nodes", "cluster"])
    assert (config.trainer.devices, config.trainer.num_nodes) == ("auto", "auto")


def test_a_merge_is_checked_again():
    config = merged("data.root=gone")
    (text,), _ = validate(config, ENVIRON, "evaluate")
    assert text.startswith("data.root must be a folder, but gone (")


@pytest.mark.parametrize("name", ["fsdp", "deepspeed", "ddp_spawn"])
def test_strategies_for_nets_in_pieces_lead_to_ddp(name: str):
    (text,) = refused(f"strategy={name}", "trainer.num_nodes=2", "cluster.address=tcp://127.0.0.1:29500")
    assert text.endswith(f"one of auto, balanced_dp, ddp, dp, got {name}. Hint: set strategy=ddp.")


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("experiment=fast", {"optim.name": "adamw", "optim.lr": 0.0015}),
        ("experiment=fast optim=sgd", {"optim.name": "sgd", "optim.lr": 0.1}),
        ("optim=sgd", {"optim.name": "sgd"}),  # the recipe of shapes has AdamW
        (
            "data=imagefolder data.root=x optim=adamw",
            {"optim.name": "adamw", "optim.lr": 1e-3, "optim.reference_batch": 256},
        ),
        ("optim.lr=0.3 experiment=quick optim=lamb", {"optim.name": "lamb", "optim.lr": 0.3}),
        ("experiment=torchvision_v2 averaging=none", {"averaging.name": "none"}),
        ("experiment=deit_small model=resnet18", {"model.name": "resnet18", "model.library": "torchvision"}),
    ],
)
def test_a_typed_group_wins_over_recipe_and_experiment(typed: str, expected: dict[str, object]):
    (config,) = command_line("train", typed.split(), {}, compose_only=True).configs
    assert {key: OmegaConf.select(config, key) for key in expected} == expected


def test_what_is_shown_is_what_is_composed(capsys: pytest.CaptureFixture[str]):
    argv = ["experiment=fast", "optim=sgd", "--cfg", "job"]
    command.with_hydra("train", argv, lambda config: None)
    shown = OmegaConf.create(capsys.readouterr().out)
    (config,) = command_line("train", argv[:2], {}, compose_only=True).configs
    assert shown.optim == config.optim


OF_REPORT = ("against", "by=recipe", "watch")  # which has a parser of its own, with its tests


@pytest.mark.parametrize("option", [option for option in REMOVED if option not in OF_REPORT])
def test_an_option_of_an_earlier_version_is_answered_by_what_to_do_instead(option: str):
    typed = option if "=" in option else f"{option}=x"
    verb = "benchmark" if option.startswith("benchmark=") else "train"  # the command that had the option
    assert [text.partition(" Hint: ")[2] for text in refused(typed, verb=verb)] == [f"{REMOVED[option]}."]


@pytest.mark.parametrize(("length", "is_refused"), [(75, False), (76, True), (110, True)])
def test_a_long_tmpdir_is_refused_before_sockets_are_made(length: int, is_refused: bool):
    folder = Path("/tmp") / "".join(["t"] * (length - 5))
    folder.mkdir()
    try:
        assert bool(_long_tmpdir({"TMPDIR": str(folder)})) == is_refused
    finally:
        folder.rmdir()


def test_a_command_that_runs_one_job_refuses_m():
    assert "-m starts several jobs, but export runs one. Hint: leave -m out." in refused("-m", verb="export")
