"""A mistake is named with a hint, and what the hint says to type makes it go, without bringing another one."""

import os
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from imagenet_ddp.cli import command, words
from imagenet_ddp.cli.correct import apply, corrected
from imagenet_ddp.cli.known_terms import INSTEAD
from imagenet_ddp.cli.parse import command_line
from imagenet_ddp.config.schema.commands import COMMANDS
from imagenet_ddp.config.schema.keys import declared
from imagenet_ddp.config.schema.read_if import CONDITIONS
from imagenet_ddp.config.schema.trainer import REFUSED
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Fix, Mistake, key_of
from imagenet_ddp.prepare import options as prepare_options

MACHINES = "trainer.num_nodes=2 cluster.address=tcp://127.0.0.1:29500"
# For what a person puts something of their own.
PLACEHOLDERS = {"FOLDER": "pets", "FILE.csv": "x.csv", "FILE": "x.ckpt", "HOST": "127.0.0.1", "NAME": "pets",
                "PATH": "x.ckpt", "VALUE": "1", "PACKAGE.CLASS": "torch.nn.Linear", "PACKAGE": "torch",
                "runs/NAME/TIME": "x.ckpt",
                "CLASS": "Timer"}  # fmt: skip

# Options of train -> the keys of the only mistake, and what each of its fixes sets and leaves out.
LINES: dict[str, list[str]] = {
    # ---- words that are no options of this program
    "pets": ["data data.root", "experiment=own_photos data.root=pets", "data=imagefolder data.root=pets"],
    "Pets": ["data data.root", "experiment=own_photos data.root=pets", "data=imagefolder data.root=pets"],
    "resume=[] data=imagefolder data.root=pets": ["resume", "resume=auto"],
    "data.pad=300": ["data.pad data.augment", "without data.pad"],
    "pets optim.lr=1": ["data data.root", "data=imagefolder data.root=pets"],
    "x.ckpt": ["resume", "resume=x.ckpt"],
    "--lr=0.5": ["", "optim.scaling=none optim.lr=0.5"], "main.py": ["", "without main.py"],
    "-b 64": ["", "data.batch_size=64"], "--opt-betas 0.9 0.95 seed=1": ["", "optim.betas=[0.9,0.95]"],
    "-p 10": ["", "trainer.log_every_n_steps=10"], "--lr": ["", "optim.scaling=none optim.lr=VALUE"],
    "data=imagefolder data.root=my pets seed=1": ["data.root", "data.root=my pets"],
    "resnet50 pets": ["model.name", "model.name=resnet50"], "cpu pets": ["", "trainer.accelerator=cpu"],
    "adamw": ["optim.name", "optim.name=adamw"], "pretrained pets": ["", "model.weights=DEFAULT"],
    "probe data.root=pets": ["experiment", "experiment=probe"],
    "prob data.root=pets": ["experiment", "experiment=probe"],
    "pest": ["data data.root", "experiment=own_photos data.root=pets", "data=imagefolder data.root=pets"],
    "-epochs 3": ["", "trainer.max_epochs=3"], "seed 3": ["seed", "seed=3"], "optim adamw": ["optim", "optim=adamw"],
    "'seed = 1'": ["seed", "seed=1"], "“seed=1”": ["", "seed=1"],
    "photo=pets data=imagefolder": ["photo", "data.root=pets without photo"],
    "time=5 experiment=own_photos data.root=pets": ["time", "budget_min=5 without time"],
    "model=yolov8n-cls.pt": ["model", "without model"],
    "--amp --amp-dtype bfloat16": ["", "without --amp"],
    "item_tfms=Resize(224)": ["", "without item_tfms=Resize(224)"],
    "seed = 1": ["seed", "seed=1"], "seed= 1": ["seed", "seed=1"], "seed =1": ["seed", "seed=1"],
    "name=my run": ["name", "name=my run"], "-m seed=[1,2]": ["seed", "seed=1,2"],
    "data.mean=[0.5, 0.5, 0.5]": ["data.mean", "data.mean=[0.5,0.5,0.5]"],
    "trainer.max_epochs=3, seed=1": ["trainer.max_epochs", "trainer.max_epochs=3"],
    "data.mean=[0.5 0.5 0.5] seed=1": ["data.mean", "data.mean=[0.5,0.5,0.5]"],
    "data.mean=[ 0.5 , 0.5 , 0.5 ]": ["data.mean", "data.mean=[0.5,0.5,0.5]"],
    "-m optim.lr=0.1, 0.2 seed=1": ["optim.lr", "optim.lr=0.1,0.2"],
    "+model.args={a: 128}": ["model.args", "+model.args={a:128}"],
    "--trainer.max_epochs 3": ["trainer.max_epochs", "trainer.max_epochs=3"],
    "--optim.lr=0.02": ["optim.lr", "optim.lr=0.02"],
    "trainer.precision=fp16": ["trainer.precision", "trainer.precision=16-mixed"],
    "trainer.precision=float32": ["trainer.precision", "trainer.precision=32-true"],
    "trainer.precision=bf16_mixed": ["trainer.precision", "trainer.precision=bf16-mixed"],
    # ---- unknown keys
    "lr=0.1": ["lr", "optim.lr=0.1 without lr"],
    "num_epochs=3": ["num_epochs", "trainer.max_epochs=3 without num_epochs"],
    "trainer.gpus=2": ["trainer.gpus", "trainer.devices=2 without trainer.gpus"],
    "data.batchsize=3": ["data.batchsize", "data.batch_size=3 without data.batchsize"],
    "dataroot=pets data=imagefolder": ["dataroot", "data.root=pets without dataroot"],
    "checkpoint=x.ckpt": ["checkpoint", "resume=x.ckpt without checkpoint"],
    "trainer.max_epoch=3": ["trainer.max_epoch", "trainer.max_epochs=3 without trainer.max_epoch"],
    "strategy.bucket_cap=25": ["strategy.bucket_cap", "strategy.bucket_cap_mb=25 without strategy.bucket_cap"],
    "model.args.x=1": ["model.args.x", "+model.args.x=1 without model.args.x"],
    "+data.batch_size=3": ["data.batch_size", "data.batch_size=3"],
    # ---- choices
    "data=STL10": ["data", "data=stl10"], "data=null": [
        "data", "experiment=own_photos data.root=FOLDER without data",
    ],
    "model=resnet50": ["model", "model.name=resnet50 without model"], "optim=adamm": ["optim", "optim=adam"],
    "model.weights=true": ["model.weights", "model.weights=DEFAULT"],
    "model.weights=false": ["model.weights", "model.weights=null"],
    "model.weights=ImageNet": ["model.weights", "model.weights=DEFAULT"],
    "teacher.weights=none": ["teacher.weights", "teacher.weights=null"],
    "model.weights=resnet50": ["model.weights", "model.name=resnet50 model.weights=DEFAULT"],
    "model.weights=vit_tiny_patch16_224.in21k": [
        "model.weights", "model.library=timm model.name=vit_tiny_patch16_224 model.weights=in21k",
    ],
    "model.weights=gone.pth": ["model.weights", "model.weights=DEFAULT"],
    "model.weights=xx.ckpt": ["model.weights", "model.weights=x.ckpt"],
    "logger=tensorboard,csv": ["logger", "logger=[tensorboard,csv]", "-m"],
    "compile=true": ["compile", "compile=default"],
    "logger=tb": ["logger", "logger=tensorboard"],
    "optim.name=torch.optim.AdamW": ["optim.name", "optim.name=adamw", "optim._target_=torch.optim.Adam"],
    "optim.name=adan": ["optim.lr optim.name", "optim.lr=0.001"],
    "+data=stl10": ["data", "data=stl10"], "schedule=cosine": ["schedule", "schedule.name=cosine without schedule"],
    "schedule=null": ["schedule", "schedule.name=step without schedule"],
    "schedule=cosin": ["schedule", "schedule.name=cosine without schedule"],
    "loss=nll": ["loss", "loss.name=cross_entropy without loss"],
    "hydra/launcher=gone": ["hydra/launcher", "hydra/launcher=basic"],
    "~data.batch_size": ["data.batch_size", "without ~data.batch_size"],
    # ---- values
    "model.name=resnet19": ["model.name", "model.name=resnet18"],
    "model.name=tf_efficientnet_lite0": ["model.name", "model.library=timm"],
    "model.name=ResNet50": ["model.name", "model.name=resnet50"],
    "model.name=torchvision.models.resnet50": ["model.name", "model.name=resnet50"],
    "model.name=timm/resnet50.a1_in1k": ["model.name", "model.library=timm model.name=resnet50.a1_in1k"],
    "model.name=google/vit-base-patch16-224": ["model.name", "model.library=timm model.name=vit_base_patch16_224"],
    "model.name=tf_efficientnet_lite": ["model.name", "model.library=timm model.name=tf_efficientnet_lite0"],
    "model.library=timm model.name=tf_efficientnet_lite": ["model.name", "model.name=tf_efficientnet_lite0"],
    "model=resnet50d": ["model", "model.library=timm model.name=resnet50d without model"],
    "data.val_resize=abc": ["data.val_resize", "data.val_resize=null"],
    "trainer.max_epochs=ten": ["trainer.max_epochs", "trainer.max_epochs=10"],
    "data.image_size='(64, 64)'": ["data.image_size", "data.image_size=64"],
    "data.batch_size=null": ["data.batch_size", "data.batch_size=32"],
    "resume=true": ["resume", "resume=auto"], "resume=latest": ["resume", "resume=auto"],
    "--resume": ["", "resume=auto"],
    "data.mean=[1,2": ["data.mean", "data.mean=[0.485,0.456,0.406]"], "name={a:1}": ["name", 'name="{a:1}"'],
    "name=a/b": ["name", "name=my_run"], "optim.lr=0.1,0.2": ["optim.lr", "-m"], "data=stl10,shapes": ["data", "-m"],
    "optim.lr=range(1,3)": ["optim.lr", "-m"], "allow_targets=a,b": ["allow_targets", "allow_targets=[a,b]"],
    "hydra.run.dir=x.ckpt/run": ["hydra.run.dir", "hydra.run.dir=FOLDER"],
    "hydra.run.dir=old": ["hydra.run.dir", "hydra.run.dir=old2", "resume=old"],
    "resume=odl": ["resume", "resume=old"],
    "resume=of": ["resume", "resume=of/1"],
    "resume=gone.ckpt": ["resume", "resume=auto"], "resume=of/2": ["resume", "resume=auto"],
    "hydra.run.dir=r,1": ["hydra.run.dir", 'hydra.run.dir="r,1"'],
    "resume=pets": ["resume", "resume=runs/NAME/TIME", "resume=auto"],
    "+callbacks.mine=3": [
        "callbacks.mine", "++callbacks.mine._target_=lightning.pytorch.callbacks.CLASS without callbacks.mine",
    ],
    "sweep.job=0": ["sweep.job", "-m"],
    "trainer.strategy=dp": ["trainer.strategy", "strategy=dp without trainer.strategy"],
    # ---- keys that nothing reads, and combinations
    "optim.lr=0,02": ["optim.lr", "optim.lr=0.02"],
    "data.fold=3": ["data.fold data.name", "data=stl10", "without data.fold"],
    "budget_min=3": ["budget_min model.weights", "model.weights=DEFAULT", "budget_min=null"],
    "model.freeze=backbone": ["model.freeze model.weights", "model.weights=DEFAULT", "model.freeze=null"],
    "averaging=ema averaging.start_epoch=9": ["averaging.start_epoch trainer.max_epochs", "averaging.start_epoch=0"],
    "data.root=pets seed=1": [
        "data.root data", "experiment=own_photos data.root=pets", "data=imagefolder data.root=pets",
    ],
    "data.root=pets model.weights=null": ["data.root data", "data=imagefolder data.root=pets"],
    "data=pets": ["data", "experiment=own_photos data.root=pets without data"],
    "data=pets pretrained=false": ["data", "data=imagefolder data.root=pets without data"],
    "data.cutout=48": ["data.cutout data.image_size", "data.cutout=12"],
    "data.augment=pad_crop data.pad=50": ["data.pad data.image_size", "data.pad=4"],
    "data=imagefolder": ["data.root", "data.root=FOLDER"],
    "data=imagefolder data.root=pest": ["data.root", "data.root=pets"],
    "data=imagefolder data.root=~/gone": ["data.root", "data.root=FOLDER"],
    "data=imagefolder data.root=above": ["data.root", "data.root=above/photos"],
    "data=imagefolder data.root=disk": ["data.root", "data.root=disk/2026/photos"],
    "model=x.ckpt": ["model", "model.weights=x.ckpt without model"],
    "experiment=own_photos data.root=pets budget_min=0.5h": ["budget_min", "budget_min=30"],
    "cluster.timeout_s=2min": ["cluster.timeout_s", "cluster.timeout_s=120"],
    "cluster.timeout_s=1h30m": ["cluster.timeout_s", "cluster.timeout_s=5400"],
    "model.weights=x.ckpt budget_min=1:30:00": ["budget_min", "budget_min=90"],
    "model.weights=x.ckpt budget_min=1:30": ["budget_min", "budget_min=10"],
    "trainer.max_time=90min": ["trainer.max_time", "trainer.max_time=00:01:30:00"],
    "strategy=dp strategy.bucket_cap_mb=10": [
        "strategy.bucket_cap_mb strategy.name", "strategy=auto", "without strategy.bucket_cap_mb",
    ],
    "strategy=dp trainer.num_nodes=2": ["strategy.name trainer.num_nodes", "trainer.num_nodes=1"],
    # ---- Hydra's own options
    "hydra.job.chdir=true": ["hydra.job.chdir", "without hydra.job.chdir=true"],
}  # fmt: skip
OF_OTHERS: list[tuple[str, str, list[str]]] = [
    ("evaluate", "", [
        "checkpoint model.weights", "checkpoint=runs/NAME/TIME", "model.name=resnet18 model.weights=DEFAULT",
    ]),
    ("evaluate", "data.root=pets", [
        "checkpoint model.weights", "checkpoint=runs/NAME/TIME",
        "model.name=resnet18 model.weights=DEFAULT data=imagefolder data.root=pets",
    ]),
    ("predict", "checkpoint=x.ckpt images=pets --top-k 3", ["top_k", "top_k=3"]),
    ("evaluate", "x.ckpt", ["checkpoint", "checkpoint=x.ckpt"]),
    ("predict", "checkpoint=x.ckpt pets", ["images", "images=pets"]),
    ("predict", "checkpoint=x.ckpt", ["images", "images=FOLDER", "images=FILE", "images=FOLDER/*.jpg"]),
    ("predict", "checkpoint=x.ckpt data.root=pets", ["images", "images=pets without data.root", "images=FILE",
                                                     "images=FOLDER/*.jpg"]),
    ("predict", "checkpoint=x.ckpt images=above/*.jpg", ["images", "images=above/**/*.jpg"]),
    ("predict", "run=old images=pets", ["run", "checkpoint=old without run"]),
    ("predict", "checkpoint=x.ckpt img=pets", ["img", "images=pets without img"]),
    ("prepare", "prepare=dedupe data.root=pets", [
        "data.root data", "experiment=own_photos data.root=pets", "data=imagefolder data.root=pets",
    ]),
    ("prepare", "", ["prepare.name", "prepare=check experiment=own_photos data.root=FOLDER out=checked",
                     "prepare=relabel", "prepare=pack", "prepare=import", "prepare=imagenet"]),
    ("prepare", "data=imagefolder data.root=pets out=new", [
        "prepare.name", "prepare=check", "prepare=relabel", "prepare=pack", "prepare=import", "prepare=imagenet",
    ]),
    ("evaluate", "checkpoint=pets", ["checkpoint", "checkpoint=runs/NAME/TIME"]), ("export", "-m", ["", "without -m"]),
    ("export", "--multirun", ["", "without --multirun"]),
    ("export", "hydra.mode=MULTIRUN", ["", "without hydra.mode=MULTIRUN"]),
    ("predict", "checkpoint=x.ckpt images=pets format=xml", ["format", "format=auto"]),
    ("prepare", "check", ["prepare", "prepare=check"]), ("prepare", "prepare=relabel --undo", ["undo", "undo=true"]),
    ("prepare", "prepare=relabel undo", ["undo", "undo=true"]), ("export", "--format onnx", ["format", "format=onnx"]),
    ("predict", "checkpoint=x.ckpt source=pets", ["source", "images=pets without source"]),
    ("prepare", "prepare=check data.root=pets", [
        "data.root data", "experiment=own_photos data.root=pets", "data=imagefolder data.root=pets",
    ]),
    ("prepare", "prepare=chek data.root=pets", [
        "data.root data", "experiment=own_photos data.root=pets", "data=imagefolder data.root=pets",
    ]),
    ("prepare", "prepare=pack data.root=pets", ["data.root data", "data=imagefolder data.root=pets"]),
    ("predict", "model=x.ckpt images=pets", ["model", "checkpoint=x.ckpt without model"]),
    ("predict", "checkpoint=x.ckpt images=x.csv", ["images", "images=FOLDER"]),
    ("predict", "checkpoint=x.ckpt images=pets out=p.pdf", ["out", "out=p.html"]),
    ("export", "checkpoint=x.ckpt format=ONNX", ["format", "format=onnx"]),
    ("export", "checkpoint=x.ckpt format=torchscript", ["format", "format=torch_export"]),
    ("export", "checkpoint=x.ckpt out=m.safetensors", ["out format", "format=safetensors"]),
    ("export", "checkpoint=x.ckpt out=m.tflite", ["out format", "format=onnx out=m.onnx"]),
    ("export", "checkpoint=x.ckpt out=m.onx", ["out format", "out=m.onnx"]),
    ("export", "checkpoint=x.ckpt format=onnx out=m.html", ["out format", "out=m.onnx"]),
    ("predict", "checkpoint=x.ckpt images=pets label_next=10%", ["label_next", "label_next=50"]),
    ("export", "checkpoint=x.ckpt export=onnx", ["export", "format=onnx without export"]),
    ("predict", "checkpoint=x.ckpt images=pest", ["images", "images=pets"]),
    ("predict", "checkpoint=x.ckpt images=gone", ["images", "images=FOLDER/*.jpg"]),
    ("demo", "checkpoint=x.ckpt model.weights=DEFAULT", ["model.weights checkpoint", "without model.weights"]),
]  # fmt: skip
# Where the user must decide: the command and its options -> the keys of the mistake, and words of its sentence.
ADVICE: dict[tuple[str, str], tuple[str, str]] = {
    ("train", "2"): ("", "`--help` shows examples"), ("train", "ä=1"): ("ä", "cannot be read by Hydra's grammar"),
    ("predict", "pets/1.jpg pets"): ("images", "type one value for images, such as a folder"),
    ("train", "data=cifar10"): ("data", "set experiment=own_photos data.root=FOLDER for a folder of photographs"),
    ("train", "--gres=gpu:4"): ("", "`python -m imagenet_ddp.submit` makes the command of sbatch"),
    ("predict", "checkpoint=x.ckpt images=pets my.jpg"): ("images", "type one value for images, such as a folder"),
    ("predict", "checkpoint=x.ckpt images=https://a.org/x.jpg"): ("images", "is an address. Hint: download it"),
    ("train", "-e"): ("", "run `python -m imagenet_ddp.evaluate checkpoint=FILE "),
    ("train", "--bogus"): ("", "is not an option"), ("train", "+bogus=1"): ("bogus", "--cfg job"),
    ("train", "hydra.foo=1"): ("hydra.foo", "Key 'foo' not in 'HydraConf'."),
    ("train", "~bogus"): ("bogus", "bogus is not a known key"),
    ("train", "+trainer.bogus=1"): ("trainer.bogus", "trainer.bogus is not a known key."),
    ("train", "+transform.p=0.3"): ("transform.p", "set +transform.args.p=0.3 for an argument of transform._targ"),
    ("train", "transform.p=0.3"): ("transform.p", "set +transform.args.p=0.3 for an argument of transform._targ"),
    **{("train", f"data.batch_size={size}"): ("data.batch_size", "set trainer.batch_finder=true and leave data.batch_s")
       for size in ("auto", "-1")},
    ("train", "strategy=fsdp"): ("strategy", "got fsdp. Hint: set strategy=ddp"),
    ("train", "hydra/sweeper=optuna"): ("hydra/sweeper", "python -m imagenet_ddp.tune"),
    ("train", "-m hydra/sweeper=ax"): ("hydra/sweeper", "`python -m imagenet_ddp.tune`"),
    ("train", "'data={batch_size: abc}'"): ("data", "type each key by itself."),
    ("train", "name=${nope}"): ("name", "Interpolation key 'nope' not found."),
    ("train", "'+callbacks.mine={_target_: builtins.dict, c: {_target_: d.E}}'"): (
        "callbacks.mine.c._target_", "callbacks.mine.c._target_ has no effect",
    ),
    ("train", f"resume={'a' * 300}"): ("", "cannot be used as a path"),
    ("train", "data=table data.root=x.cvs"): ("data.root", "Hint: did you mean data.root=x.csv?"),
    ("train", "/gone/pets"): ("data data.root", "and does not exist. Hint: set experiment=own_photos data.root=/gone/"),
    ("train", "recipe=gone"): ("recipe", "or leave recipe out"),
    ("train", "experiment=gone"): ("experiment", "or leave experiment out"),
    ("train", "resume=of/2"): ("resume", "name a run that exists, such as of/1"),
    ("predict", "checkpoint=x.ckpt images=gone.jpg"): ("images", "/gone.jpg) does not exist"),
    ("train", "data=shapes data.root=pets"): ("data.name data.root", "set data.root=null."),
    ("train", f"-m {MACHINES} optim.lr=0.05,0.1"): ("", "run the same job on each node"),
    ("train", f"{MACHINES} cluster.node_rank=2"): ("cluster.node_rank", "must be from 0 to 1"),
    ("train", "--config-dir=gone"): ("", "--config-dir must be a folder"),
    ("train", "--config-name=gone"): ("", "Cannot find primary config 'gone'."),
    ("train", "--cfg=gone"): ("", "argument --cfg/-c: invalid choice"),
    ("train", "-m optim.lr=interval(0,1)"): ("", "sweep cannot be split into jobs"),
    ("train", "-m hydra.verbose=true,false"): ("hydra.verbose", "cannot be swept"),
    ("train", "-m optim.lr=range(1,4,0)"): ("", "sweep cannot be split into jobs"),
    ("evaluate", "resume=x.ckpt"): ("resume", "resume is not a known"),
    ("evaluate", "checkpoint=x.ckpt real_labels=x.csv"): ("real_labels", "real_labels must be a JSON file"),
    ("evaluate", "checkpoint=x.ckpt real_labels=pipe"): ("real_labels", "real_labels must be a JSON file"),
    # ---- what Lightning and other programs have
    **{("train", option): (key_of(option), f"Hint: {INSTEAD[option]}.")
       for option in ("logger=comet", "logger=neptune", "strategy=fsdp")},
    ("export", "int8=true"): ("int8", f"Hint: {INSTEAD['int8']}."),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _files(here: Path) -> None:
    (here / "pets" / "1.jpg").touch()
    shutil.copytree(here / "pets", here / "my pets")
    for folder in ("above/photos", "disk/2026/photos"):
        for name in ("cat", "dog"):
            shutil.copytree(here / "pets/train/cat", here / folder / name)
    (here / "above" / "Documents").mkdir()
    os.mkfifo(here / "pipe")
    (here / "old" / "checkpoints").mkdir(parents=True)
    (here / "old" / "checkpoints" / "last.ckpt").touch()
    shutil.copytree(here / "old", here / "of" / "1")
    (here / "x.csv").write_text("path,label,split\npets/train/cat/1.jpg,cat,train\npets/val/dog/1.jpg,dog,val")


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


ALL = [*(("train", line, expected) for line, expected in LINES.items()), *OF_OTHERS]


@pytest.mark.parametrize(("verb", "line", "expected"), ALL, ids=[f"{verb} {line}"[:80] for verb, line, _ in ALL])
def test_a_mistake_and_its_fixes(verb: str, line: str, expected: list[str]):
    argv = shlex.split(line)
    found = mistakes(argv, verb)
    fixes = [" ".join([*fix.options, *(f"without {word}" for word in fix.without)]) for fix in found[0].fixes]
    assert [" ".join(found[0].keys), *fixes] == expected
    assert all("Hint: " in str(mistake) for mistake in found), found
    before = {each.what.partition(" ")[0] for each in found}
    for mistake in found:
        for fix in map(with_own, mistake.fixes):
            assert fix.is_complete, fix
            left = mistakes(apply(fix, argv, mistake.typed), verb)
            assert mistake not in left, (mistake, fix, left)
            assert {each.what.partition(" ")[0] for each in left} <= before, (mistake, fix, left)


@pytest.mark.parametrize(("verb", "line"), [*(each[:2] for each in ALL), *ADVICE])
def test_a_corrected_line_has_no_mistake(
    verb: str, line: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.argv", [verb, *shlex.split(line)])
    command.show(ConfigError(mistakes(shlex.split(line), verb)), verb)
    _, has_line, typed = capfd.readouterr().err.partition(f"Corrected command:\npython -m imagenet_ddp.{verb} ")
    assert not has_line or mistakes(shlex.split(typed), verb) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("trainer.strategy=ddp_find_unused_parameters_true", "strategy=ddp strategy.find_unused_parameters=true"),
        ("data.augment=randaugment seed=1", "seed=1 data.policy=randaugment"),  # which only one other key takes
        ("data.policy=pad_crop", "data.augment=pad_crop"),
        ("data.augment=randaugment data.policy=augmix", None),  # which of both?
        ("data.mean=0.5", "data.mean=[0.5,0.5,0.5]"),
        ("data.std=[0.5]", "data.std=[0.5,0.5,0.5]"),
        ("data.crop_scale=0.5", None),  # the least, or all?
        ("data.erasing_fill=none", None),  # neither mean nor noise
        ("budget_min=none", "budget_min=null"),
        ("trainer.gradient_clip_val=false", "trainer.gradient_clip_val=null"),
        ("data.policy=off", "data.policy=none"),
        ("averaging=False", "averaging=none"),
        ("compile=none", "compile=off"),
        ("loss.label_smoothing=none", "loss.label_smoothing=0"),
        ("trainer.log_every_n_steps=none", None),
        ("trainer.limit_train_batches=10%", "trainer.limit_train_batches=0.1"),
        ("trainer.limit_val_batches=100%", "trainer.limit_val_batches=1.0"),  # 1 is one batch
        ("trainer.overfit_batches=200%", None),
        ("trainer.max_epochs=100%", None),
        ("loss.label_smoothing=10", "loss.label_smoothing=0.1"),
        ("optim.momentum=9", None),  # 0.9, or 9 %?
    ],
)
def test_a_value_that_is_clear_is_in_the_corrected_line(line: str, expected: str | None):
    argv = line.split()
    assert corrected(argv, mistakes(argv)) == (expected and expected.split())


def test_turning_off_what_a_choice_does_not_have_needs_no_other_choice():
    keys = declared("train")
    amounts = [key for key in keys.values() if key.type is bool or (key.default and
               key.type in (int, float) and key.allowed and key.allowed.accepts(0))]  # fmt: skip
    for key in amounts:
        argv = [f"{key.path}={'false' if key.type is bool else '0'}"]
        if key.readers:
            group = key.path.partition(".")[0]
            section = keys[group].type
            other = next(name for name in ("shapes", *section.by_name) if name in {*section.by_name} - {*key.readers})
            argv = [f"{group}.name={other}", *argv]
        for mistake in mistakes(argv):
            if " has no effect, " in mistake.what:
                assert [(fix.options, fix.without) for fix in mistake.fixes] == [((), (key.path,))], argv
                assert corrected(argv, [mistake]) == argv[:-1]
    assert {"optim.nesterov", "averaging.warmup", "data.mix_probability", "data.pad"} <= {key.path for key in amounts}
    for line in ("data.fold=0", "schedule.name=step schedule.final_fraction=0"):  # a number of something, an end
        (mistake,) = mistakes(shlex.split(line))
        assert len(mistake.fixes) == 2, line


# Keys of free text that hold no path: names, addresses, classes of one's own.
NO_PATHS = {"model.name", "teacher.name", "nccl.name", "cluster.address", "cluster.job_id", "format", "host"}


@pytest.mark.parametrize("there", ["", "My photos", "photos"])
@pytest.mark.parametrize("verb", [*COMMANDS])
def test_a_path_with_spaces_is_answered_with_quotes(verb: str, there: str, here: Path):
    """Of each key that takes a path, whether it exists, or a folder that is named as its last word."""
    (here / (there or "x")).mkdir(exist_ok=True)
    free = {path for path, key in declared(verb).items() if key.type is str and key.allowed is None}
    keys = {*free - NO_PATHS, *(["hydra.run.dir"] if verb == "train" else [])}
    for key in (key for key in keys if not key.endswith("._target_")):
        last = "photos.pth" if key.endswith("weights") and there != "My photos" else "photos"
        line = [f"{key}=My", last, "seed=1", *(["data.root=pets"] if key != "data.root" else []), "images=pets"]
        for argv in (line, [f"--{key}", "My", *line[1:]]):
            found = words.read(verb, argv).mistakes
            assert [fix.options for each in found for fix in each.fixes] == [(f"{key}=My {last}",)], argv


@pytest.mark.parametrize(
    ("verb", "line", "left"),
    [
        ("predict", "checkpoint=gone pets", ["pets"]),  # the images
        ("prepare", "data.root=gone check out=x", ["check"]),
        ("train", "data.root=gone probe", ["probe"]),
        ("train", "data.root=gone -m seed=1,2", []),
        ("train", "data.root=gone /pets", ["/pets"]),
        ("train", "model.weights=DEFAULT photoss", ["photoss"]),
        ("train", "model.name=resnet18 photoss", ["photoss"]),
    ],
)
def test_a_word_with_a_meaning_of_its_own_is_no_part_of_a_path(verb: str, line: str, left: list[str]):
    found = words.read(verb, line.split())
    assert not found.mistakes and [word for word in found.typed if "=" not in word] == left


@pytest.mark.parametrize("typed", ["data.root=photos/gas pump", "'data.root=photos/gas pump'", "data.root=photos/gas"])
def test_a_class_folder_in_place_of_the_folder_of_classes_is_one_mistake_and_one_correction(typed: str, here: Path):
    """With a space in its name, or cut at this."""
    for name in ("gas pump", "cat"):
        (here / "photos" / name).mkdir(parents=True)
        (here / "photos" / name / "1.jpg").touch()
    argv = ["experiment=own_photos", *(shlex.split(typed) if "'" in typed else typed.split())]
    (mistake,) = mistakes(argv)
    assert corrected(argv, [mistake]) == [argv[0], f"data.root={here}/photos"]


@pytest.mark.parametrize("blank", ["", " "])
def test_a_blank_word_is_left_out_and_is_no_part_of_a_path(blank: str):
    """Of a variable that is empty, or a backslash with a space after it at the end of a line."""
    argv = ["data=imagefolder", "data.root=pets", "name=mine", blank, "hydra.run.dir=gone", blank]
    found = mistakes(argv)
    assert found and all(f"Hint: leave {blank!r} out" in str(each) for each in found)
    assert corrected(argv, found) == [word for word in argv if word != blank]


def test_a_number_with_spaces_before_it_is_read():
    """On macOS, wc -l prints such ones."""
    assert mistakes(["trainer.max_epochs=       3"]) == []
    (mistake,) = mistakes(["name= mine"])
    assert mistake.fixes[0].options == ("name=mine",)


def test_no_line_chooses_one_of_several_values():
    argv = ["checkpoint=x.ckpt", "format=onnx,openvino"]
    more = corrected(argv, mistakes(argv, "export"))
    assert more is None or corrected(more, mistakes(more, "export")) is None


def test_no_correction_replaces_the_values_of_a_sweep():
    argv = ["-m", "optim.lr=0.05,-1", "seed=0,1"]
    assert corrected(argv, mistakes(argv)) is None
    argv = ["-m", "trainer.max_epochs=2,ten", "seed=0,1"]
    assert corrected(argv, mistakes(argv)) is None
    argv = ["-m", "trainer.max_epochs=ten", "seed=0,1"]
    assert corrected(argv, mistakes(argv)) == ["-m", "trainer.max_epochs=10", "seed=0,1"]


def test_values_of_a_sweep_that_the_shell_split_are_corrected():
    argv = ["-m", "optim.lr=0.1,", "0.2", "seed=1"]
    assert corrected(argv, mistakes(argv)) == ["-m", "seed=1", "optim.lr=0.1,0.2"]


def test_the_folder_of_a_run_is_refused_to_a_new_one_only(here: Path):
    (here / "old2").mkdir()
    (mistake,) = mistakes(["hydra.run.dir=old"])
    assert mistake.fixes[0].options == ("hydra.run.dir=old3",)
    for line in ("resume=auto", "resume=old", "-m hydra.sweep.dir=s"):
        assert mistakes(["hydra.run.dir=old", *line.split()]) == []
    assert command_line("train", ["hydra.run.dir=old"], {"SLURM_RESTART_COUNT": "1"})  # it may be its own
    rank = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}  # fmt: skip
    assert command_line("train", ["hydra.run.dir=old"], rank)  # a rank that is faster may have begun


def test_paths_without_keys_are_corrected_together():
    found = mistakes(["x.ckpt", "pets", "x.csv"], "predict")
    assert [(each.keys, [fix.options for fix in each.fixes]) for each in found] == [
        (("checkpoint",), [("checkpoint=x.ckpt",)]), (("images",), []),
    ]  # fmt: skip
    found = mistakes(["x.ckpt", "pets"], "predict")
    assert [fix.options for each in found for fix in each.fixes] == [("checkpoint=x.ckpt",), ("images=pets",)]


@pytest.mark.parametrize(("verb", "line"), ADVICE, ids=[f"{verb} {line}"[:80] for verb, line in ADVICE])
def test_a_mistake_about_which_the_user_must_decide(verb: str, line: str):
    mistake, (keys, said) = mistakes(shlex.split(line), verb)[0], ADVICE[verb, line]
    assert " ".join(mistake.keys) == keys and said in str(mistake) and "Hint: " in str(mistake)


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("my photos.zip", "unzip 'my photos.zip' -d 'my photos'"),
        ("cats.tar.gz", "mkdir cats && tar -xf cats.tar.gz -C cats"),
        ("ILSVRC2012_img_val.tar",
         "python -m imagenet_ddp.prepare prepare=imagenet archive_dir=. out=imagenet"),
    ],
)  # fmt: skip
def test_an_archive_is_answered_with_the_line_that_unpacks_it(name: str, run: str, here: Path):
    (here / name).touch()
    (mistake,) = mistakes(["data=imagefolder", f"data.root={name}"])
    (fix,) = mistake.fixes
    assert fix.run == run and f"run `{run}`, then set" in str(mistake) and not fix.is_complete
    assert mistakes(["checkpoint=x.ckpt", f"images={name}"], "predict")[0].fixes[0].run == run
    assert name.endswith("val.tar") or mistakes([name])[0].fixes == (fix,)  # x.tar alone may be a checkpoint
    (folder,) = (option.partition("=")[2] for option in fix.options)
    shutil.copytree(here / "pets", here / folder)
    assert mistakes(["data=imagefolder", f"data.root={name}"])[0].fixes[0].is_complete


# What must be typed beside a key, so that its value is the only mistake.
BESIDE = {
    "data.val_fraction": "data=imagefolder data.root=no_val",
    "data.progressive_start": "data.val_resize=null data.image_size=224 data.progressive_epochs=[1,2]",
    "data.progressive_epochs": "data.val_resize=null data.image_size=224 data.progressive_start=128",
    "data.image_size": "data.val_resize=null", "cluster.node_rank": MACHINES,
    "optim.reference_batch": "optim.scaling=linear", "optim.scaling": "optim.reference_batch=256",
}  # fmt: skip


@pytest.mark.slow(5)
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
            argv = shlex.split(f"{context} {path}={wrong}")
            found = [mistake for mistake in mistakes(argv) if "got null" not in mistake.what]
            said = [
                each for each in found if each.what.startswith((f"{path} must be ", f"{path}={wrong} has no effect"))
            ]
            assert len(said) == 1, (path, found)
            line = corrected(argv, found)  # says nothing else in place of a value that means nothing
            assert line is None or argv[-1] in line or not said[0].is_of_value, (path, line)
    for name in REFUSED:
        (text,) = texts([f"trainer.{name}={3 if 'limit_' in name else 'mine'}"])
        assert text.startswith(f"trainer.{name} ") and "Hint: " in text


@pytest.mark.parametrize(
    ("option", "otherwise"),
    [
        ("model.weights=", "type model.weights=null for none"), ("resume=", "type resume=null for none"),
        ("data.root=", "type data.root=FOLDER"), ("name=", "type name=my_run"), ("optim.lr=", "type optim.lr=0.1"),
        ("hydra.run.dir=", "leave it out"), ("data=", "leave it out"),
    ],
)  # fmt: skip
def test_an_empty_value_is_one_mistake(option: str, otherwise: str):
    (mistake,) = mistakes([option, "seed=1"])
    assert mistake.what == f"{key_of(option)} is empty" and "shell variable" in mistake.hint
    assert mistake.hint.endswith(f"; else {otherwise}")
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
    (mistake,) = mistakes(["model.weights=x.ckpt", "budget_min=3min"])
    assert mistake.fixes[0].options == ("budget_min=3",)


# The line in the README of pytorch/examples, and in that for several nodes.
OF_EXAMPLES = "-a resnet50 --dist-url 'tcp://127.0.0.1:FREEPORT' --dist-backend nccl --multiprocessing-distributed"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "-a resnet50 --lr 0.2 data.batchsize=8 optim=adamm trainer.max_epochs=five seed=4",
            "optim=adam trainer.max_epochs=5 seed=4 model.name=resnet50 optim.scaling=none optim.lr=0.2 "
            "data.batch_size=8",
        ),
        (
            f"{OF_EXAMPLES} --world-size 2 --rank 0 data",  # a folder of that name
            "model.name=resnet50 cluster.address=tcp://127.0.0.1:29500 experiment=pytorch_example optim.scaling=none "
            "trainer.num_nodes=2 cluster.node_rank=0 data=imagefolder data.root=data",
        ),
        (
            f"{OF_EXAMPLES} --world-size 1 --rank 0 pets",  # on one node, there is no address
            "model.name=resnet50 experiment=pytorch_example optim.scaling=none trainer.num_nodes=1 "
            "cluster.node_rank=0 data=imagefolder data.root=pets",
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
    said = capfd.readouterr().err
    before, last = said.splitlines()[-2:]
    _, _, typed = last.partition("python -m imagenet_ddp.train ")
    assert before == "Corrected command:" and typed == expected
    assert ("this program's defaults, not those of the other" in " ".join(said.split())) == ("experiment" not in typed)
    assert mistakes(shlex.split(typed)) == []


@pytest.mark.parametrize("line", ["-a resnet50 --lr 0.1 /gone", "data.root=/gone", "/gone/a optim=adamm",
                                  "model.weights=/gone.pth optim=adamm"])  # fmt: skip
def test_the_corrected_line_with_a_path_that_does_not_exist_says_so(
    line: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.argv", ["train", *line.split()])
    with pytest.raises(SystemExit), command.exit_codes("train"):
        command.request("train")
    before, last = capfd.readouterr().err.splitlines()[-2:]
    _, _, typed = last.partition("python -m imagenet_ddp.train ")
    (mistake,) = mistakes(shlex.split(typed))
    assert before == f"Corrected command (once {mistake.missing} exists):" and mistake.missing in line
    there = "x.ckpt" if mistake.missing.endswith(".pth") else "pets"
    assert mistakes(shlex.split(typed.replace(mistake.missing, there))) == []


@pytest.mark.parametrize(
    ("line", "own"),
    [
        ("--epochs 5 --data pets", True),
        ("data=pets epochs=5 imgsz=224 batch=16", True),  # Ultralytics
        ("--model resnet50 --pretrained --data-dir pets -b 8 --lr 0.01 --opt adamw", True),  # timm
        ("pets -a resnet18 --epochs 3 -j 2", True),
        ("pets epochs 3", True),
        ("--image-dir pets --num-epochs 3 --save-dir out", True),
        ("directory=pets batch_size=16 epochs=2", True),  # Keras
        ("data.root=pets trainer.max_epochs=3 data.val_fraction=null", True),
        ("data=pets epochs=3 lr0=0.01", True),  # Ultralytics, which begins with weights
        ("pets -a resnet18 --lr 0.1", False),  # pytorch/examples, which does not
        ("--data-path pets --ra-sampler --ra-reps 4", False),  # torchvision
        ("pets --no-pretrained", False),
        ("pets pretrained=false", False),
        ("--scratch --epochs 90 --data pets", False),
        ("data.root=pets data=imagefolder model.weight=null", False),
        ("--dataset imagefolder --data-dir pets", False),
        ("-a resnet18 --multiprocessing-distributed pets", False),  # the recipe of that program
    ],
)
def test_a_folder_of_photographs_gets_published_weights_unless_the_words_say_otherwise(
    line: str, own: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.argv", ["train", *line.split()])
    with pytest.raises(SystemExit), command.exit_codes("train"):
        command.request("train")
    typed = shlex.split(capfd.readouterr().err.partition("python -m imagenet_ddp.train ")[2])
    assert ("experiment=own_photos" in typed) == own and ("data=imagefolder" in typed) != own
    assert mistakes(typed) == []


@pytest.mark.parametrize("flags", ["--ra-sampler --ra-reps 4", "--ra-reps=4 --ra-sampler"])
def test_an_option_with_a_value_counts_more_than_one_that_implies_it(flags: str):
    argv = [*flags.split(), "data=imagefolder", "data.root=pets"]
    assert corrected(argv, mistakes(argv)) == ["data=imagefolder", "data.root=pets", "data.repeats=4"]


def test_the_newest_runs_are_named_where_a_trained_net_is_needed(here: Path):
    for number, name in enumerate(("a", "my run", "c", "d", "empty")):
        (here / "runs" / name / "checkpoints").mkdir(parents=True)
        if name != "empty":
            (here / "runs" / name / "checkpoints" / "last.ckpt").touch()
        os.utime(here / "runs" / name, (number, number))
    for verb, line in (("predict", "images=pets"), ("evaluate", "data.root=pets"), ("export", ""), ("demo", "")):
        (mistake,) = mistakes(line.split(), verb)
        assert [fix.options for fix in mistake.fixes] == [
            ("checkpoint=runs/d",), ("checkpoint=runs/c",), ("checkpoint=runs/my run",),
            *[mistake.fixes[3].options],
        ]  # fmt: skip
        assert mistakes(apply(mistake.fixes[2], line.split()), verb) == []


def test_a_run_that_goes_on_needs_no_file_of_weights():
    for line in ("resume=auto", "resume=old", "-m sweep.resume=old"):
        assert not any(each.missing for each in mistakes(["model.weights=/gone.pth", *line.split()])), line
    assert command_line("train", ["model.weights=/gone.pth"], {"SLURM_RESTART_COUNT": "1"})


def test_the_corrected_line_of_prepare_names_what_to_do(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.argv", ["prepare", "pets"])
    with pytest.raises(SystemExit), command.exit_codes("prepare"):
        prepare_options.read(["pets"], {})
    typed = "experiment=own_photos data.root=pets prepare=check out=checked"
    assert capfd.readouterr().err.endswith(f"Corrected command:\npython -m imagenet_ddp.prepare {typed}\n")
    assert prepare_options.read(typed.split(), {}).out == Path("checked")


@pytest.mark.parametrize(
    "line",
    [
        "data=imagefolder optim=adamm",
        "lr=0.2 optim.lr=0.1",  # which of both is meant?
        "--lr 0.2 optim.lr=0.1",
        "optim=bogus",  # all but an example
        "experiment=bogus",
        "averaging.start_epoch=1",  # of ema or swa
        "data.progressive_start=64",
        "strategy=dp strategy.bucket_cap_mb=10",  # one of both is left out
        "strategy=dp trainer.sync_batchnorm=true",
        "trainer.max_epoch=bogus",  # the key, whose value is then a mistake
        "model.weights=/gone.pth",
        "model.weights=resnet50 model.name=resnet18",  # which of both?
        "model.name=resnet19",  # other digits name other things
        "resume=of/2",
        "resume=bogus",
        "data=imagefolder data.root=/gone",  # the line as it stands
        "data=imagefolder data.root=/gone optim=bogus",
    ],
)
def test_no_line_is_offered_where_something_must_be_decided(
    line: str, here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.argv", ["train", *line.split()])
    with pytest.raises(SystemExit), command.exit_codes("train"):
        command.request("train")
    assert "Corrected command" not in capfd.readouterr().err


def test_mistakes_of_every_kind_come_in_one_list():
    found = texts([
        "--lr=3", "data.batchsize=3", "data.image_size=abc", "trainer.max_epochs=-5", "optim=adamm", "data=imagefolder",
        "data.root=/gone/[ä", "model.name=resnet19", "trainer.devices=0,3", "trainer.strategy=ddp", "+data.bogus=1",
    ])  # fmt: skip
    for said in ("--lr=3 is an option", "data.batchsize is not", "data.image_size must be", "trainer.max_epochs must",
                 "optim must be one of", "/gone/[ä does not exist", "model.name must be",
                 "`'trainer.devices=[0,3]'`", "trainer.strategy is set by", "data.bogus is not"):  # fmt: skip
        assert sum(said in text for text in found) == 1, said
    assert len(found) == 10


@pytest.mark.parametrize(
    "line",
    ["data-root=pets data=imagefolder", "data.rot=pets data=imagefolder", "model.weight=DEFAULT budget_min=3"],
)
def test_what_follows_from_a_misspelt_key_is_not_reported(line: str):
    (text,) = texts(line.split())
    assert text.startswith(f"{key_of(line)} is not a known key. Hint: did you mean ")
    assert len(texts([*line.split(), "seed=-1", "+data.bogus=1"])) == 3


def test_no_net_is_missed_where_its_key_is_misspelt():
    (text,) = texts(["weights=DEFAULT", "images=pets"], "predict")
    assert text == "weights is not a known key. Hint: did you mean model.weights?"


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


@pytest.mark.parametrize("line", ["data.image_size=0", "data.val_resize=0", "trainer.num_nodes=0", "sweep.job=abc",
                                  "data.progressive_start=-1", "model._target_=abc"])  # fmt: skip
def test_what_follows_from_a_value_that_is_not_allowed_is_not_reported(line: str):
    (text,) = texts(["experiment=finetune", "data=stl10", "data.root=.", line])
    assert text.startswith(f"{line.partition('=')[0]} must be ")


@pytest.mark.parametrize("line", ["data.pad=-1", "data.pad=abc", "data.policy_ops=0", "model.unfreeze_epoch=0",
                                  "optim.momentum=abc", "data.autoaugment=abc", "teacher.share=0"])  # fmt: skip
def test_an_option_nothing_reads_is_left_out_whatever_its_value(line: str):
    (text,) = texts(["experiment=finetune", "data=stl10", "data.root=.", line])
    assert text.startswith(f"{line} has no effect")
    assert text.endswith(f"Hint: leave {line.partition('=')[0]} out.")


def test_mistakes_in_typed_keys_are_reported_beside_a_wrong_experiment():
    line = ["experiment=fas", "data=imagefolder", "data.root=/gone", "trainer.devices=999", "data.val_resize=200"]
    experiment, root, devices = texts(line)  # the image size, with which val_resize is compared, is unknown
    assert experiment.startswith("experiment must be one of")
    assert root.startswith("data.root must be a folder") and devices.startswith("trainer.devices must be at most")


@pytest.mark.parametrize(("verb", "line"), [("train", "data=imagefolder data.root=FOLDER"), ("predict", "images=NEW")])
def test_a_word_of_the_documentation_stands_for_a_path(verb: str, line: str):
    path = line.rpartition("=")[2]
    assert f"Hint: {path} stands for a path of your own: set " in " ".join(texts(line.split(), verb))


@pytest.mark.parametrize("path", ["/gone/[a]", "/gone/it's", "/gone/a (1)"])
def test_a_path_hydra_cannot_read_is_read_as_it_is(path: str):
    (gone,) = texts(["data=imagefolder", f"data.root={path}"])
    assert f"but {path} does not exist" in gone


def test_words_that_are_one_path_are_one_mistake_with_the_line_to_type(here: Path):
    (here / "Holiday photos/cat").mkdir(parents=True)
    (mistake,) = mistakes(["Holiday", "photos"])
    assert corrected(["Holiday", "photos"], [mistake]) == ["experiment=own_photos", "data.root=Holiday photos"]


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
    with pytest.raises(SystemExit) as caught, command.exit_codes("train"):
        raise ConfigError([long, "b. Hint: c."])
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert (caught.value.code, out, lines[0]) == (2, "", "imagenet_ddp.train: 2 mistakes, nothing was started")
    assert lines[2].startswith(" 1. data.root must be") and lines[-2:] == [" 2. b.", "    Hint: c."]
    assert f"    {pasted}." in lines and all(len(line) <= 80 for line in lines if pasted not in line)
