"""A mistake is named with a hint, and what the hint says to type makes it go, without bringing another one."""

import os
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.composed_once import compose_once

from imagenet_ddp.cli import command
from imagenet_ddp.cli.correct import apply
from imagenet_ddp.cli.known_terms import REMOVED
from imagenet_ddp.cli.parse import command_line
from imagenet_ddp.config.schema.keys import declared
from imagenet_ddp.config.schema.read_if import CONDITIONS
from imagenet_ddp.config.schema.trainer import REFUSED
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Fix, Mistake, key_of

MACHINES = "trainer.num_nodes=2 cluster.address=tcp://127.0.0.1:29500"
# For what a person puts something of their own.
PLACEHOLDERS = {"FOLDER": "pets", "FILE.csv": "x.csv", "FILE": "x.ckpt", "HOST": "127.0.0.1", "NAME": "pets",
                "PATH": "x.ckpt", "VALUE": "1", "PACKAGE.CLASS": "torch.nn.Linear", "PACKAGE": "torch",
                "runs/NAME/TIME": "x.ckpt",
                "CLASS": "Timer"}  # fmt: skip

# Options of train -> key words of the only mistake.
LINES = {
    # ---- words that are no options of this program
    "pets": "set data=imagefolder data.root=pets.", "x.ckpt": "set resume=x.ckpt.", "2": "must be key=value",
    "ä=1": "cannot be read by Hydra's grammar", "--lr=0.5": "set optim.lr=0.5 (", "-b 64": "set data.batch_size=64",
    "--opt-betas 0.9 0.95 seed=1": "set `'optim.betas=[0.9,0.95]'`.", "-p 10": "set trainer.log_every_n_steps=10.",
    "--lr": "set optim.lr=VALUE (", "--bogus": "is not an option",
    # ---- unknown keys
    "lr=0.1": "did you mean optim.lr?", "num_epochs=3": "did you mean trainer.max_epochs?", "+bogus=1": "--cfg job",
    "trainer.gpus=2": "did you mean trainer.devices?", "data.batchsize=3": "did you mean data.batch_size?",
    "checkpoint=x.ckpt": "did you mean resume?", "trainer.max_epoch=3": "did you mean trainer.max_epochs?",
    "strategy.bucket_cap=25": "did you mean strategy.bucket_cap_mb?", "hydra.foo=1": "Key 'foo' not in 'HydraConf'.",
    "~bogus": "bogus is not a known key", "model.args.x=1": "type +model.args.x=1 to add it",
    "+trainer.bogus=1": "trainer.bogus is not a known key.", "+data.batch_size=3": "set data.batch_size=3 without +",
    # ---- choices
    "data=STL10": "set data=stl10.", "data=null": "data must be one of ", "model=resnet50": "set model.name=resnet50.",
    "optim=adamm": "set optim=adam.", "recipe=gone": "recipe must be one of", "experiment=gone": "leave experiment out",
    "+data=stl10": "set data=stl10.", "strategy=fsdp": "got fsdp. Hint: set strategy=ddp",
    "schedule=cosine": "set schedule.name=cosine.", "schedule=null": "schedule must be a group of keys, got null.",
    "schedule=cosin": "set schedule.name=cosine.", "loss=nll": "set loss.name=cross_entropy.",
    "hydra/launcher=gone": "hydra/launcher must be one of basic", "hydra/sweeper=optuna": "python -m imagenet_ddp.tune",
    "-m hydra/sweeper=ax": "`python -m imagenet_ddp.tune`", "~data.batch_size": "leave ~data.batch_size out",
    # ---- values
    "model.name=resnet19": "did you mean model.name=resnet18", "data.val_resize=abc": "set data.val_resize=null.",
    "data.batch_size=null": "must be an integer ≥ 1, got null.", "data.mean=[1,2": "but cannot be read: [1,2.",
    "'data={batch_size: abc}'": "type each key by itself.", "name={a:1}": "put quotes around it", "name=a/b": "name m",
    "optim.lr=0.1,0.2": "add -m to run one job per value.", "data=stl10,shapes": "add -m", "optim.lr=range(1,3)": "-m",
    "allow_targets=a,b": "set `'allow_targets=[a,b]'`",
    "name=${nope}": "Interpolation key 'nope' not found.", "hydra.run.dir=x.ckpt/run": "x.ckpt is a file.",
    "'+callbacks.mine={_target_: a.B, c: {_target_: d.E}}'": "callbacks.mine.c._target_ has no effect",
    "resume=gone.ckpt": "be a checkpoint file",
    "hydra.run.dir=r,1": "Hint: set `'hydra.run.dir=\"r,1\"'` if this is one text.",
    "resume=pets": "is a folder without", "+callbacks.mine=3": "must name its class", "sweep.job=0": "add -m",
    f"resume={'a' * 300}": "cannot be used as a path", "trainer.strategy=dp": "set strategy=dp and leave ",
    # ---- keys that nothing reads, and combinations
    "optim.lr=0,02": "set optim.lr=0.02 with a decimal point.",
    "data.fold=3": "data.fold=3 has no effect", "budget_min=3": "budget_min is for",
    "model.freeze=backbone": "needs pretrained layers", "averaging=ema averaging.start_epoch=9": "must be less",
    "data.root=pets": "data.root=pets must be typed with data=", "data=shapes data.root=pets": "set data.root=null.",
    "data.cutout=48": "must be less than data.image_size (48)", "data.augment=pad_crop data.pad=50": "set data.pad=4.",
    "data=imagefolder": "", "data=imagefolder data.root=~/gone": "data.root must be a folder",
    "strategy=dp strategy.bucket_cap_mb=10": "has no effect", "strategy=dp trainer.num_nodes=2": "",
    f"-m {MACHINES} optim.lr=0.05,0.1": "", f"{MACHINES} cluster.node_rank=2": "",
    # ---- Hydra's own options
    "--config-dir=gone": "--config-dir must be a folder", "--config-name=gone": "Cannot find primary config 'gone'.",
    "--cfg=gone": "argument --cfg/-c: invalid choice", "hydra.job.chdir=true": "hydra.job.chdir=true has no effect",
    "-m optim.lr=interval(0,1)": "sweep cannot be split into jobs", "-m hydra.verbose=true,false": "cannot be swept",
    "-m optim.lr=range(1,4,0)": "sweep cannot be split into jobs",
    # ---- what earlier versions had
    **{option: f"Hint: {REMOVED[option.removesuffix('=x')]}." for option in ("compile=auto", "cluster.max_restarts=x")},
}  # fmt: skip
OF_OTHERS = [
    ("evaluate", "", "checkpoint is required, but not set."), ("evaluate", "resume=x.ckpt", "resume is not a known"),
    ("evaluate", "x.ckpt", "set checkpoint=x.ckpt"), ("predict", "checkpoint=x.ckpt pets", "set images=pets"),
    ("predict", "checkpoint=x.ckpt", "images is required"), ("prepare", "", "prepare.name is required"),
    ("evaluate", "checkpoint=pets", "is a folder"), ("export", "-m", "-m starts several jobs, but export runs one."),
    ("export", "--multirun", "--multirun starts several jobs"),
    ("export", "hydra.mode=MULTIRUN", "hydra.mode=MULTIRUN starts several jobs"),
    ("predict", "checkpoint=x.ckpt images=pets format=xml", "format must be auto, csv, jsonl or xlsx"),
    ("predict", "checkpoint=x.ckpt images=gone", "images=gone must match image files"),
    ("evaluate", "checkpoint=x.ckpt real_labels=x.csv", "real_labels must be a JSON file"),
    ("evaluate", "checkpoint=x.ckpt real_labels=pipe", "real_labels must be a JSON file"),
    ("demo", "checkpoint=x.ckpt model.weights=DEFAULT", "model.weights must be null beside checkpoint="),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _composed_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "pets" / "1.jpg").touch()
    os.mkfifo(here / "pipe")
    (here / "x.csv").write_text("path,label,split\npets/train/cat/1.jpg,cat,train\npets/val/dog/1.jpg,dog,val")
    compose_once(monkeypatch)


def mistakes(argv: list[str], verb: str = "train") -> list[Mistake]:
    try:
        command_line(verb, argv, {"HOME": "/home/ann"})
    except ConfigError as error:
        return error.mistakes
    return []


def texts(argv: list[str], verb: str = "train") -> list[str]:
    return list(map(str, mistakes(argv, verb)))


def with_own(fix: Fix) -> Fix:
    """Return a fix with the user's own values in place of the words in capitals."""
    options = list(fix.options)
    for word, own in sorted(PLACEHOLDERS.items(), key=lambda item: -len(item[0])):
        options = [re.sub(rf"(?<![A-Za-z_]){re.escape(word)}(?![A-Z_a-z=])", own, option) for option in options]
    return replace(fix, options=tuple(options))


ALL = [*(("train", line, said) for line, said in LINES.items()), *OF_OTHERS]


@pytest.mark.parametrize(("verb", "line", "said"), ALL, ids=[f"{verb} {line}"[:80] for verb, line, _ in ALL])
def test_a_mistake_and_its_fixes(verb: str, line: str, said: str):
    argv = shlex.split(line)
    found = mistakes(argv, verb)
    assert said in str(found[0]) and all("Hint: " in str(mistake) for mistake in found), found
    before = {each.what.partition(" ")[0] for each in found}
    for mistake in found:
        for fix in map(with_own, mistake.fixes):
            assert fix.is_complete, fix
            left = mistakes(apply(fix, argv, mistake.typed), verb)
            assert mistake not in left, (mistake, fix, left)
            assert {each.what.partition(" ")[0] for each in left} <= before, (mistake, fix, left)


# What must be typed beside a key, so that its value is the only mistake.
BESIDE = {
    "data.val_fraction": "data=imagefolder data.root=no_val",
    "data.progressive_start": "data.val_resize=null data.image_size=224 data.progressive_epochs=[1,2]",
    "data.progressive_epochs": "data.val_resize=null data.image_size=224 data.progressive_start=128",
    "data.image_size": "data.val_resize=null", "cluster.node_rank": MACHINES,
    "optim.reference_batch": "optim.scaling=linear", "optim.scaling": "optim.reference_batch=256",
}  # fmt: skip


def test_a_value_of_the_wrong_kind_for_every_key(here: Path):
    (here / "no_val/train/cat").mkdir(parents=True)
    for path, declaration in declared("train").items():
        if declaration.allowed is not None and not path.startswith(("cluster.", "sweep.", "resume")):
            context = BESIDE.get(path) or " ".join(
                option for each in CONDITIONS.get(path, ()) for option in each.options
            )
            values = {"bogus": "bogus", "-7": -7, "0.5": 0.5, "true": True}
            values = dict(zip(values, values, strict=True)) if declaration.type is str else values
            wrong = next((text for text in values if not declaration.allowed.accepts(values[text])), "\"''\"")
            found = [text for text in texts(shlex.split(f"{context} {path}={wrong}")) if "got null" not in text]
            assert sum(text.startswith(f"{path} must be ") for text in found) == 1, (path, found)
    for name in REFUSED:
        (text,) = texts([f"trainer.{name}={3 if 'limit_' in name else 'mine'}"])
        assert text.startswith(f"trainer.{name} ") and "Hint: " in text


@pytest.mark.parametrize("option", ["model.weights=", "hydra.run.dir=", "data=", "name=", "resume=", "optim.lr="])
def test_an_empty_value_is_one_mistake(option: str):
    (mistake,) = mistakes([option, "seed=1"])
    assert mistake.what == f"{key_of(option)} is empty" and "shell variable" in mistake.hint
    for verb, line in (
        ("evaluate", "checkpoint="),
        ("export", "checkpoint=x.ckpt out="),
        ("predict", "checkpoint=x.ckpt images="),
    ):
        (text,) = texts(line.split(), verb)
        assert text.startswith(f"{line.split()[-1][:-1]} is empty")


@pytest.mark.parametrize(
    ("option", "said", "meant"),
    [
        ("trainer.max_epochs=1\r", "<U+000D> contains an invisible character, carriage return", "trainer.max_epochs=1"),
        ("data=imagefolder\r", "it was saved on Windows", "data=imagefolder"),
        ("data.root=pets\u00a0", "<U+00A0> contains an invisible character, no-break space", "data.root=pets"),
        ("\ufeffseed=1", "<U+FEFF>seed=1 contains an invisible character, zero width no-break space", "seed=1"),
    ],
)
def test_an_invisible_character_is_shown(option: str, said: str, meant: str):
    found = mistakes(["data=imagefolder", "data.root=pets", option])
    assert len(found) == 1 and said in str(found[0]) and found[0].fixes[0].options == (meant,)


def test_an_existing_path_may_contain_any_character(here: Path):
    (here / "pets").rename(here / "pets\u202f1")
    assert mistakes(["data=imagefolder", "data.root=pets\u202f1"]) == []


@pytest.mark.parametrize("text", ["2024_11_26", "1.10", "007", "0x10", "true"])
def test_text_in_a_file_that_yaml_reads_as_something_else(text: str, here: Path):
    (here / "mine" / "experiment").mkdir(parents=True)
    file = here / "mine" / "experiment" / "a.yaml"
    file.write_text(f"# @package _global_\nname: {text}\ndata: {{root: {text}}}\nseed: 7\n")
    found = mistakes(["--config-dir", "mine", "data=imagefolder", "experiment=a"])
    said = [mistake for mistake in found if "must be text in quotes" in mistake.what]
    assert [mistake.keys for mistake in said] == [("name",), ("data.root",)]
    assert said[0].hint == f"write name: '{text}' there" and "(line 2)" in said[0].what
    file.write_text(f"# @package _global_\nname: '{text}'\nseed: 7\n")
    assert mistakes(["--config-dir", "mine", "experiment=a"]) == []


def test_a_file_with_the_name_of_one_of_conf_is_not_read(here: Path):
    (here / "mine" / "optim").mkdir(parents=True)
    (here / "mine" / "optim" / "sgd.yaml").write_text("name: [a\n")
    assert mistakes(["--config-dir", "mine", "optim=sgd"]) == []


def test_a_wrong_value_is_answered_with_the_nearest(here: Path):
    (here / "mine" / "experiment").mkdir(parents=True)
    (here / "mine" / "experiment" / "a.yaml").write_text("# @package _global_\ntrainer: {max_time: 00:10:00}")
    for argv, fix in (
        (["--config-dir", "mine", "experiment=a"], "trainer.max_time=00:00:10:00"),
        (["trainer.max_time=01:30:00"], "trainer.max_time=00:01:30:00"),
        (["trainer.precision=bf16_mixed"], "trainer.precision=bf16-mixed"),
    ):
        (mistake,) = mistakes(argv)
        assert mistake.fixes[0].options == (fix,) and mistakes([*argv, fix]) == []


# The line in the README of pytorch/examples, and in that for several nodes.
OF_EXAMPLES = "-a resnet50 --dist-url 'tcp://127.0.0.1:FREEPORT' --dist-backend nccl --multiprocessing-distributed"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "-a resnet50 --lr 0.2 data.batchsize=8 optim=adamm trainer.max_epochs=-5 seed=4",
            "optim=adam trainer.max_epochs=90 seed=4 model.name=resnet50 optim.lr=0.2 data.batch_size=8",
        ),
        (
            f"{OF_EXAMPLES} --world-size 2 --rank 0 data",  # a folder of that name
            "model.name=resnet50 cluster.address=tcp://127.0.0.1:29500 trainer.num_nodes=2 cluster.node_rank=0 "
            "data=imagefolder data.root=data",
        ),
        (
            f"{OF_EXAMPLES} --world-size 1 --rank 0 pets",  # on one node, there is no address
            "model.name=resnet50 trainer.num_nodes=1 cluster.node_rank=0 data=imagefolder data.root=pets",
        ),
    ],
)
def test_the_list_ends_with_the_whole_corrected_line(
    line: str, expected: str, here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    shutil.copytree(here / "pets", here / "data")
    monkeypatch.setattr("sys.argv", ["train", *shlex.split(line)])
    with pytest.raises(SystemExit), command.exit_codes("train"):
        command.request("train")
    before, last = capfd.readouterr().err.splitlines()[-2:]
    _, _, typed = last.partition("python -m imagenet_ddp.train ")
    assert before == "Corrected command:" and typed == expected
    assert mistakes(shlex.split(typed)) == []


@pytest.mark.parametrize(
    "line",
    [
        "data=imagefolder optim=adamm",
        "lr=0.2 optim.lr=0.1",  # which of both is meant?
        "--lr 0.2 optim.lr=0.1",
    ],
)
def test_no_line_is_offered_where_something_must_be_decided(
    line: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.argv", ["train", *line.split()])
    with pytest.raises(SystemExit), command.exit_codes("train"):
        command.request("train")
    assert "of each hint" not in capfd.readouterr().err


def test_mistakes_of_every_kind_come_in_one_list():
    found = texts([
        "--lr=3", "data.batchsize=3", "data.image_size=abc", "trainer.max_epochs=-5", "optim=adamm", "data=imagefolder",
        "data.root=/gone/[ä", "model.name=resnet19", "trainer.devices=0,3", "trainer.strategy=ddp", "+data.bogus=1",
    ])  # fmt: skip
    for said in ("--lr=3 is an option", "data.batchsize is not", "data.image_size must be", "trainer.max_epochs must",
                 "optim must be one of", "`'data.root=\"/gone/[ä\"'`", "model.name must be",
                 "`'trainer.devices=[0,3]'`", "trainer.strategy is set by", "data.bogus is not"):  # fmt: skip
        assert sum(said in text for text in found) == 1, said
    assert len(found) == 11


@pytest.mark.parametrize(
    "line",
    ["data=folder data.root=pets", "data=folder optim.nesterov=true", "model=timmm model.name=vit_tiny_patch16_224",
     "optim=adamm optim.nesterov=true", "strategy=ball strategy.first_device_batch=3",
     "cluster=tcpp trainer.num_nodes=2", "averaging=emma averaging.decay=0.9", "logger=wandbb logger.wandb.project=x",
     "recipe=pets data.fold=3", "experiment=fas data.root=pets model.args.x=1", "~data=stl10 optim.nesterov=true"],
)  # fmt: skip
def test_what_follows_from_the_default_in_place_of_a_wrong_choice_is_not_reported(line: str):
    (text,) = texts(line.split())
    assert text.startswith(line.split()[0].partition("=")[0].lstrip("~"))
    assert len(mistakes([*line.split(), "data.batch_size=-1", "seed=-1", "+data.bogus=1"])) == 4


def test_mistakes_in_typed_keys_are_reported_beside_a_wrong_experiment():
    line = ["experiment=fas", "data=imagefolder", "data.root=/gone", "trainer.devices=999", "data.val_resize=200"]
    experiment, root, devices = texts(line)  # the image size, with which val_resize is compared, is unknown
    assert experiment.startswith("experiment must be one of")
    assert root.startswith("data.root must be a folder") and devices.startswith("trainer.devices must be at most")


@pytest.mark.parametrize("path", ["/gone/[a]", "/gone/it's", "/gone/a (1)"])
def test_a_path_hydra_cannot_read_is_answered_with_the_form_to_paste(path: str):
    pasted = texts(["data=imagefolder", f"data.root={path}"])[0].partition("`")[2].rpartition("`")[0]
    (gone,) = texts(["data=imagefolder", *shlex.split(pasted)])
    assert f"but {path} does not exist" in gone


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("# @package _global_\ndata: {batchsize: 3}", "Key 'batchsize' not in 'DataConfig' full_key: data.batchsize"),
        ("# @package _global_\nseed: abc", "Value 'abc' of type 'str' could not be converted to Integer full_key"),
        ("# @package _global_\noptim:\n  lr: 1\n  lr: 2", "found duplicate key lr"),
        ("# @package _global_\ndefaults: [override /optim: gone]", ""),
        ("seed: 1", "Hint: correct experiment/bad.yaml, whose first line must be `# @package _global_`."),
    ],
)  # fmt: skip
def test_a_mistake_in_a_file_of_ones_own(content: str, said: str, here: Path):
    (here / "mine" / "experiment").mkdir(parents=True)
    (here / "mine" / "experiment" / "bad.yaml").write_text(content)
    (text,) = texts(["--config-dir", "mine", "experiment=bad"])
    assert text.startswith("experiment=bad cannot be composed: ") and said in text and "Hint: " in text


def test_the_list_is_wrapped_and_ends_with_code_2(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    pasted = f"`python -m imagenet_ddp.train {' '.join(f'data.key{number}=value' for number in range(9))}`"
    long = f"data.root must be a folder, but it does not exist. Hint: type on each node {pasted}."
    with pytest.raises(SystemExit) as caught:
        command.refuse(ConfigError([long, "b. Hint: c."]), "train")
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert (caught.value.code, out, lines[0]) == (2, "", "imagenet_ddp.train: 2 mistakes, nothing was started")
    assert lines[2].startswith(" 1. data.root must be") and lines[-2:] == [" 2. b.", "    Hint: c."]
    assert f"    {pasted}." in lines and all(len(line) <= 80 for line in lines if pasted not in line)
