"""Every hint is typed: what a refusal says to type makes that mistake go, and no other come.

LINES are wrong command lines, and more are made from the tables of the checks. What stands behind Hint: is read as a
person would: options, whole commands, variables, "leave it out". A hint that is not typeable fails, and so does a
Hint in the source that no line here has brought up.
"""

import ast
import functools
import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers.composed_once import compose_once

from imagenet_ddp.cli.parse import command_line
from imagenet_ddp.config.keys import declared
from imagenet_ddp.config.read_if import required
from imagenet_ddp.config.schema.trainer import REFUSED
from imagenet_ddp.data.sources import manifest
from imagenet_ddp.distributed import nvidia_gpus
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs import validate as runs_check

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "imagenet_ddp"
# Whose hints are all to be brought up by a line below.
SOURCES = [
    "cli/parse", "cli/hydra_flags", "cli/compose", "cli/explain", "cli/suggest",
    "cli/known_terms", "cli/validate",
    "data/validate", "data/sources/table",
    "config/validators", "config/schema/trainer",
    "models/validate", "runs/validate", "distributed/validate",
    "distributed/launchers/ranks",
    "distributed/launchers/address", "distributed/network/nccl",
    "distributed/strategies/batch_split",
]  # fmt: skip
# Words for which a person puts something of their own.
PLACEHOLDERS = {
    "FOLDER": "pets", "FILE.csv": "x.csv", "FILE": "x.ckpt", "HOST": "127.0.0.1", "NAME": "pets",
    "VALUE": "1", "SWEEP": "s",
    "<address of node 0>": "127.0.0.1", "<address of rank 0's machine>": "127.0.0.1", "PATH": "job", "PORT": "29500",
    "<number of nodes>": "2", "PACKAGE.CLASS": "torch.nn.Linear", "PACKAGE": "torch", "RANK": "0", "LOCAL_RANK": "0",
    "WORLD_SIZE": "8", "<0 to 1>": "1", "<name>/<time>/checkpoints/best": "x", "runs/<name>/<time>": "run",
    "runs/x": "x", "$RANK": "0", "CLASS": "Timer", "<number of machines>": "2",
    "N": "0", "<number of processes>": "8",
}  # fmt: skip


@dataclass
class Case:
    """A command as typed. environ: in front of it."""

    line: str
    environ: dict[str, str] = field(default_factory=dict)
    verb: str = "train"
    gpu: bool = False  # this machine seems to have one

    @property
    def argv(self) -> list[str]:
        return shlex.split(self.line)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder with images of two classes, others that are wrong, and a machine without a GPU but with eth0."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nvidia_gpus, "GPU_PATHS", ())
    monkeypatch.setattr(nvidia_gpus.sys, "platform", "linux")
    monkeypatch.setattr(runs_check, "find_spec", lambda name: None if name in ("wandb", "pyarrow") else find_spec(name))
    trees = {
        "pets": ("train/cat", "train/dog", "val/cat", "val/dog"),
        "imagenet": ("train/n01440764", "train/n01443537", "val/n01440764", "val/n01443537"),
        "no_val": ("train/cat", "train/dog"),
        "classes": ("cat", "dog"),
        "flat_val": ("train/cat", "train/dog"),
        "other_val": ("train/cat", "train/dog", "val/cat", "val/cow"),
    }
    for tree, folders in trees.items():
        for folder in folders:
            (tmp_path / tree / folder).mkdir(parents=True)
            (tmp_path / tree / folder / "1.jpg").touch()
    (tmp_path / "x.ckpt").touch()
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "best.ckpt").touch()
    for name in ("1", "gone", "gone2", "gone3"):
        (tmp_path / "pets" / f"{name}.jpg").touch()
    pet, dog = "pets/train/cat/1.jpg", "pets/train/dog/1.jpg"
    for table, rows in {
        "x": [f"path,label,split\n{pet},cat,train\n{dog},dog,train\n{pet.replace('train', 'val')},cat,val"],
        "no_split": [f"path,label\n{pet},cat\n{dog},dog"],
        "named": [f"file,animal\n{pet},cat\n{dog},dog"],
        "no_names": [f"{pet},cat", f"{dog},dog"],
        "no_rows": ["path,label"],
        "only_train": [f"path,label,split\n{pet},cat,train\n{dog},dog,train"],
        "wrong": [f"path,label,split,weight\n{pet},cat,train,0\n{pet},,val,1\n{pet},cat,test,x\n,dog,val,1\na,b"],
        "gone": ["path,label,split\ngone.jpg,cat,train\ngone3.jpg,dog,train\ngone2.jpg,cat,val"],
    }.items():
        (tmp_path / f"{table}.csv").write_text("\n".join(rows))
    (tmp_path / "flat_val" / "val").mkdir()
    (tmp_path / "flat_val" / "val" / "1.jpg").touch()
    (tmp_path / "packed").mkdir()
    arrays = {name: manifest.File(name, 0, "") for name in manifest.ARRAYS}
    for name in arrays:
        (tmp_path / "packed" / name).touch()
    splits = {name: manifest.Split(0, False, [], arrays, 0) for name in ("train", "val")}
    packed = manifest.Manifest("jpeg", 0, 90, False, 1, "", "", ["cat"], ["cat"], splits)
    (tmp_path / "packed" / manifest.FILE).write_bytes(packed.dump())
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "bad.yaml").write_text("# @package _global_\nseed: {a: 1}\n")
    (tmp_path / "mine" / "experiment" / "bare.yaml").write_text("seed: 1\n")
    (tmp_path / "mine" / "experiment" / "broken.yaml").write_text("seed: 1\nseed: 2\n")
    (tmp_path / "mine" / "experiment" / "gone.yaml").write_text("defaults: [override /optim: gone]\n")
    (tmp_path / "mine" / "experiment" / "cycle.yaml").write_text("a: &a {b: *a}\n")
    (tmp_path / "mine" / "experiment" / "scalar.yaml").write_text("# @package _global_\noptim: 3\n")
    (tmp_path / "mine" / "bare.yaml").write_text("seed: 1\n")


@pytest.fixture(autouse=True)
def _composed_once(monkeypatch: pytest.MonkeyPatch):
    compose_once(monkeypatch)


MACHINES = "trainer.num_nodes=2 cluster.address=tcp://127.0.0.1:29500"
FAR = "tcp://127.0.0.1:23456"
META = {"MASTER_ADDR": "127.0.0.1"}

LINES = [
    # ---- loggers, callbacks, several processes
    Case("logger=neptune"),
    Case("+logger.m._target_=lightning.pytorch.loggers.WandbLogger"),
    Case("checkpoint=x.ckpt predictions=parquet", verb="evaluate"),
    Case("+callbacks.second._target_=imagenet_ddp.callbacks.ResumeCheckpoint"),
    *(Case("checkpoint=x.ckpt model.weights=DEFAULT", verb=verb) for verb in ("evaluate", "export", "demo")),
    Case("checkpoint=x.ckpt model.weights=DEFAULT images=pets", verb="predict"),
    Case("+callbacks.swa={_target_:lightning.pytorch.callbacks.StochasticWeightAveraging,swa_lrs:0.1}"),
    Case("callbacks=early_stopping callbacks.early_stopping.monitor=val/acc"),
    Case("trainer.devices=2 trainer.val_check_interval=00:00:10:00"),
    Case(f"resume={'a' * 300}"),
    *(Case(line) for line in (
        "lr=0.1", "num_epochs=3", "epochs=3", "trainer.epochs=3", "batch_size=3", "print_freq=10", "nproc_per_node=2",
        "gpus=2", "trainer.gpus=2", "acc_grad=2", "starting_lr=0.1", "--lr 0.2", "-b 64", "--sync-bn", "--dummy",
        "pets", "imagenet", "no_val", "classes", "resnet50", "x.ckpt", "NCCL_P2P_DISABLE=1", "CUDA_VISIBLE_DEVICES=0,3",
        "--bogus",
    )),
    Case("resume=x.ckpt", verb="evaluate"),
    Case("x.ckpt", verb="evaluate"),
    Case("checkpoint=x.ckpt pets", verb="predict"),
    # ---- keys and choices
    *(Case(line) for line in (
        "data.batchsize=3", "trainer.max_epoch=3", "+bogus=1", "bogus=1", "trainer.bogus=1", "checkpoint=x.ckpt",
        "data=STL10", "data=imagenett data.root=imagenet",
        "data=ImageNet data.root=imagenet", "data=null", "data=cifar10", "data=pets",
        "data.name=imagnet", "data.name=what", "model=resnet50", "model=bogus", "optim=adamm", "optim=AdamX",
        "averaging=swa trainer.max_epochs=-1 schedule.name=constant", "averaging=ema averaging.start_epoch=9",
        "averaging=ema trainer.precision=bf16-true", "budget_min=3", "model.freeze=backbone", "model.weights=gone.pt",
        "schedule.name=one_cycle", "schedule.warmup=constant", "+optim.args.lr=0.5",
        "loss.name=bce loss.bce_threshold=0 loss.label_smoothing=0.1",
        "trainer.accelerator=cpu trainer.precision=bf16-mixed data.image_size=16",
        "strategy.static_graph=true model.freeze=backbone model.weights=DEFAULT model.unfreeze_epoch=1",
        "model.unfreeze_epoch=1 model.weights=DEFAULT", "optim=lio", "optim.name=adamm",
        "recipe=gone", "experiment=gone", "experiment=aws", "callbacks=null",
        "strategy=fsdp", "strategy=DDP", "strategy=balanced", "loader=ffcv", "cluster=slurm", "+data=stl10", "~data",
        "~data.batch_size", "~trainer.devices", "~bogus", "data.mean=[1,2", "schedule=cosine",
        "schedule=null", "'data={batch_size: abc}'", "model.args.x=1", "callbacks.mine.patience=3", "optim.lr=0.1,0.2",
        "data=stl10,shapes", "optim.lr=range(1,3)", "allow_targets=a,b", "data.mean=0.1,0.2,0.3",
        "name=a,b", "resume", "lr", "bogus", "2", "name=${nope}",
        "hydra.foo=1", "+data.batch_size=3",
        "hydra/launcher=gone", "hydra.run.dir=x.ckpt/run", "hydra.run.dir=${nope}", "optim._target_=os.system",
        "model._target_=torchevil.Net", "optim.name=sgd optim.nesterov=true optim.momentum=0",
        "--config-dir=gone", "--config-name=gone", "--config-path=x", "--resolve",
        "--cfg=gone", "-m --run", "--experimental-rerun=x", "-m hydra.verbose=true,false", "-m optim.lr=interval(0,1)",
        "sweep.job=0", "seed=-1", "name=a/b", "data.on_bad_image=both", "callbacks.mine=3", "logger.mine=3",
        "+callbacks.mine=3", "+logger.mine=3", "resume=gone.ckpt", "resume=pets",
        "name={a:1}", "seed={a:1}", "'data={batch_size'", "ä=1", "name=(", "hydra.verbose=[[",
    )),
    Case("trainer.devices=0,3", gpu=True),
    Case("", verb="evaluate"),
    Case("", verb="predict"),
    Case("", verb="prepare"),
    Case("checkpoint=pets", verb="evaluate"),
    Case("checkpoint=run", verb="evaluate"),
    Case("checkpoint=x.ckpt images=pets out=gone/a.csv", verb="predict"),
    Case("checkpoint=x.ckpt images=pets out=pets", verb="predict"),
    Case("checkpoint=x.ckpt images=pets format=xml top_k=0", verb="predict"),
    # ---- images
    *(Case(line) for line in (
        "data.root=pets", "data.root=imagenet", "data.root=no_val", "data.root=gone",
        "data=shapes data.root=pets", "data=imagefolder", "data=imagefolder data.root=gone",
        "data=imagefolder data.root=pets data.val_fraction=0.1", "data=imagenet data.root=pets",
        "data.fold=3", "data.val_resize=10",
        "data.progressive_start=32",
        "data.progressive_start=512 data.progressive_epochs=[1,2]", "loader=dali", "loader.device=gpu",
        "data.policy_ops=2", "data.policy=rand-m9-x1", "data.policy=autoaugment data.policy_magnitude=3",
        "data.policy=augmix data.policy_magnitude=20", "data.augment=pad_crop data.image_size=64 data.pad=64",
        "data.cutout=300", "data=imagefolder data.root=flat_val",
        "data=imagefolder data.root=other_val",
        "data=imagefolder data.root=packed", "schedule.name=cosine trainer.max_epochs=-1",
        "--config-dir=mine experiment=bad", *(f"--config-dir=mine experiment={name}" for name in
        ("bare", "broken", "gone", "cycle", "scalar")), "--config-dir=mine --config-name=bare", "hydra.job.chdir=bogus",
        "hydra.job.chdir=true",
        "hydra.job.num=abc",
        "data.root=${nope}", "data.root=packed",
        "data=table", "data=table data.root=gone_table.csv", "data=table data.root=pets", "data=x.csv", "x.csv",
        "data=imagefolder data.root=x.csv", "data=table data.root=no_split.csv", "data=table data.root=wrong.csv",
        "data=table data.root=named.csv data.val_fraction=0.1", "data=table data.root=no_names.csv",
        "data=table data.root=no_rows.csv", "data=table data.root=only_train.csv",
        "data=table data.root=x.csv data.val_fraction=0.1", "data=table data.root=gone.csv",
        "data=table data.root=x.csv +data.args.labels=x",
        "data.sampling=balanced data.repeats=3", "data.sampling=balanced loss.class_weights=balanced",
    )),
    # ---- machines and processes
    *(Case(line) for line in (
        "trainer.strategy=ddp_spawn", "trainer.strategy=dp", "trainer.strategy=fsdp", "trainer.strategy=auto",
        f"-m {MACHINES} optim.lr=0.05,0.1", f"-m {MACHINES} optim.lr=0.05,0.1 seed=0,1 hydra.sweep.dir=mine",
        f"cluster.rank=0 cluster.world_size=2 cluster.address={FAR}",
        f"cluster.rank=0 cluster.local_rank=0 cluster.address={FAR}",
        f"cluster.world_size=2 cluster.address={FAR}", f"cluster.rank=2 cluster.local_rank=0 cluster.world_size=2 "
        f"cluster.address={FAR}", "cluster.rank=0 cluster.local_rank=0 cluster.world_size=2",
        f"cluster.rank=0 cluster.local_rank=0 cluster.world_size=2 trainer.devices=1 trainer.num_nodes=3 "
        f"cluster.address={FAR}",
        "trainer.devices=8 cluster.world_size=2 cluster.rank=0", "trainer.num_nodes=2", "cluster.node_rank=1",
        f"cluster.address={FAR}", f"{MACHINES} cluster.node_rank=2", "trainer.devices=99",
        "trainer.batch_finder=true data.batch_size=8", "trainer.batch_finder=true ++data.batch_size=8",
        "trainer.batch_finder=true strategy=dp", "trainer.batch_finder=true teacher.weights=DEFAULT",
        "trainer.num_nodes=1 cluster.node_rank=1",
        "trainer.devices=-1", "trainer.devices=[0,1]", "strategy=dp "
        "trainer.num_nodes=2", "strategy=balanced_dp trainer.num_nodes=2",
        "strategy.check_reduction=true", "strategy.bucket_cap=25",
        "strategy=ddp strategy.first_device_batch=2", "strategy=dp strategy.bucket_cap_mb=10",
        "strategy=dp trainer.sync_batchnorm=true", "strategy=balanced_dp strategy.first_device_batch=0 "
        "trainer.devices=1", "strategy.static_graph=true trainer.accumulate_grad_batches=2",
        "strategy.comm_hook=powersgd",
        "nccl.env.NCCL_SOCKET_IFNAME=ens99 trainer.devices=2",
        "nccl.socket_ifname=lo",
        "nccl.env.NCCL_SOCKET_IFNAM=lo trainer.devices=2", "nccl.env.PATH=x trainer.devices=2",
        "cluster=env", "cluster=tcp trainer.num_nodes=2", "cluster=file trainer.num_nodes=2",
        "cluster=tcp trainer.num_nodes=2 cluster.address=file:///tmp/gone_job",
        "cluster=env trainer.num_nodes=2 cluster.node_rank=0 cluster.address=tcp://127.0.0.1:1",
        "trainer.num_nodes=2 cluster.address=udp://127.0.0.1:1", "trainer.num_nodes=2 cluster.address=env://",
        "trainer.num_nodes=2 cluster.address=::1:5", "trainer.num_nodes=2 cluster.address=127.0.0.1:99999",
        "trainer.num_nodes=2 cluster.address=0.0.0.0", "trainer.num_nodes=2 cluster.address=file://tmp/job",
        "trainer.num_nodes=2 cluster.address=a/b", "trainer.num_nodes=2 cluster.address=file:///tmp/",
    )),
    Case("", {"RANK": "0", "WORLD_SIZE": "2"}),
    Case("", {"RANK": "0", "WORLD_SIZE": "2", **META}),
    Case("trainer.devices=1", {"RANK": "0", "WORLD_SIZE": "2"}),
    Case("trainer.devices=2", {"RANK": "0", "WORLD_SIZE": "2", **META}),
    Case("trainer.devices=2", {"RANK": "0", "WORLD_SIZE": "4", **META}),
    Case("", {"WORLD_SIZE": "2", **META}),
    Case("", {"RANK": "x", "WORLD_SIZE": "2", **META}),
    Case("", {"RANK": "2", "WORLD_SIZE": "2", "LOCAL_RANK": "0", **META}),
    Case("", {"RANK": "0", "WORLD_SIZE": "0", "LOCAL_RANK": "0", **META}),
    Case("", {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "0", **META}),
    Case("", {"RANK": "0", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", **META}),
    Case("trainer.devices=1", {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", **META}),
    Case("trainer.devices=2 trainer.num_nodes=2", {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", **META}),
    Case("trainer.devices=3", {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", **META}),
    Case("cluster.address=tcp://10.0.0.9:1", {
        "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none",
        "MASTER_PORT": "29500", **META}),
    Case("strategy=dp", {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", **META}),
    Case("-m seed=1,2", {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", **META}),
    Case(f"cluster.address={FAR}", {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0",
                                    "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "29500", **META}),
    Case("", {"NODE_RANK": "1"}),
    Case("", {"SLURM_PROCID": "", "LOCAL_RANK": "x"}),
    Case("nccl.env.NCCL_SOCKET_IFNAME=eth0 trainer.devices=2", {"NCCL_SOCKET_IFNAME": "lo"}),
]  # fmt: skip


# What must be typed beside a key, so that its value is the only mistake.
CONTEXT = {
    "data.val_fraction": "data=imagefolder data.root=no_val",
    "data.image_size": "data.val_resize=null",
    "data.progressive_start": "data.val_resize=null data.image_size=224 data.progressive_epochs=[1,2]",
    "cluster.node_rank": MACHINES,
    "cluster.rank": f"cluster.local_rank=0 cluster.world_size=2 cluster.address={FAR}",
    "cluster.local_rank": f"cluster.rank=0 cluster.world_size=2 cluster.address={FAR}",
    "cluster.world_size": f"cluster.rank=0 cluster.local_rank=0 cluster.address={FAR}",
    "data.progressive_epochs": "data.val_resize=null data.image_size=224 data.progressive_start=128",
    "data.train_dir": "data=imagefolder data.root=pets",
    "data.val_dir": "data=imagefolder data.root=pets",
    "data.val_fold": "data=imagefolder data.root=no_val data.val_fraction=0.2",
    "data.images_dir": "data=table data.root=x.csv",
    "data.verify": "data=packed data.root=packed",
    "data.shuffle_window_shards": "data=packed data.root=packed",
    "data.cache_dir": "data=streamed data.root=packed",
    "data.cache_gib": "data=streamed data.root=packed",
}


def _of_tables() -> Iterator[Case]:
    """A value of the wrong kind for every key, and all of Lightning's own names."""
    groups = ("trainer", "data", "optim", "schedule", "loss", "strategy", "cluster")
    for path, key in declared("train").items():
        if path.partition(".")[0] not in groups or key.allowed is None:
            continue
        read = str if key.type is str else _as_yaml
        wrong = next((value for value in ("bogus", "-7", "0.5", "true") if not key.allowed.accepts(read(value))), "''")
        context = CONTEXT.get(path) or " ".join(required(path, dict.fromkeys(declared("train"))))
        yield Case(f"{context} {path}={wrong}".strip(), gpu=path == "trainer.devices")
    yield from (Case(f"trainer.{key}={3 if 'limit_' in key else 'mine'}") for key in REFUSED)


def _as_yaml(text: str) -> object:
    return {"-7": -7, "0.5": 0.5, "true": True}.get(text, text)


# ---- what a hint says ----------------------------------------------------------------------------------------------


def found(case: Case) -> list[str]:
    return [*_mistakes(case.verb, tuple(case.argv), tuple(sorted(case.environ.items())), case.gpu)]


@functools.cache  # several hints lead to the same line
def _mistakes(verb: str, argv: tuple[str, ...], environ: tuple[tuple[str, str], ...], gpu: bool) -> list[str]:
    nvidia_gpus.GPU_PATHS = ("/",) if gpu else ()
    try:
        command_line(verb, argv, {"HOME": "/home/ann", **dict(environ)})
    except ConfigError as error:
        return error.mistakes
    return []


@dataclass
class Way:
    """One thing a hint says to do. commands: whole lines, which replace what was typed."""

    options: list[str] = field(default_factory=list)
    without: list[str] = field(default_factory=list)  # keys or words
    rename: str = ""  # key that was meant
    commands: list[Case] = field(default_factory=list)
    environ: dict[str, str] = field(default_factory=dict)
    unset: list[str] = field(default_factory=list)


_KEY = r"[+~]*(?:[a-z_]+(?:[./][A-Za-z_0-9]+)*|[A-Z]+(?:_[A-Z]+)+|RANK)"
_OPTION = re.compile(
    rf"(?<![\w/=.\"'])'?(?P<key>{_KEY})=(?P<value>\[[^\]]*\]|\{{[^}}]*\}}|<[^>]*>|\"[^\"]*\"|[^\s`']+)'?"
)
# What is typed nowhere: something to do with files, machines or other programs. A hint of this kind is to be rare.
PROSE = [
    r"correct those rows",
    r"sort the images into", r"add images, or remove", r"rename those folders as in train, or remove", r"chmod ",
    r"`--help` shows", r"run the command with `--hydra-help`", r"`--cfg (job|hydra)`",
    r"start it with torchrun", r"torchrun",
    r"correct that file", r"the first line of that file", r"begin the file of", r"for the value of a key",
    r"a,b,c or range",
    r"the same --nproc_per_node on every node", r"ranks from 0", r"to the number of processes",
    r"one value for", r"type another path", r"sbatch --exclude", r"srun without",
    r"docs/strategies.md lists", r"pip install",
]  # fmt: skip


def ways(mistake: str, case: Case) -> list[Way]:
    """What the hint of a mistake says to do, each way alone."""
    said, _, hint = mistake.partition("Hint: ")
    if "without the launcher: " in hint:
        case = Case(case.line, {}, case.verb)
    for word, mine in sorted(PLACEHOLDERS.items(), key=lambda item: -len(item[0])):
        if word == "FOLDER" and "imagenet" in case.line + mistake:
            mine = "imagenet"
        before = "(?<==)" if word.endswith(("RANK", "SIZE")) else "(?<![A-Za-z_])"
        hint = re.sub(rf"{before}{re.escape(word)}(?![A-Z_a-z])(?!=)", mine, hint)
    hint = re.sub(r"(data\.(train|val)_dir)=pets", rf"\1={Path.cwd()}/pets/\2", hint)
    result: list[Way] = []
    for typed in re.findall(r"`([^`]*)`", hint):
        if way := _command(typed, case):
            result.append(way)
    prose = re.sub(r"`[^`]*`", " ", hint)
    result += _options(re.sub(r"leave .*? out", " ", prose))
    if renamed := re.search(r"did you mean ([\w.]+)(?: or ([\w.]+))?\?", prose):
        result += [Way(rename=key) for key in renamed.groups() if key]
    if left_out := re.search(r"leave (.*?) out|without ([\w.+]+(?:, [\w.]+)*(?: and [\w.]+)?)", prose):
        named = re.findall(r"--[\w-]+|[+~]*[\w.]+\.?\w+(?:=\S+)?", left_out[1] or left_out[2])
        keys = [word for word in named if "." in word or "=" in word or word.startswith(("~", "-"))]
        without = keys or re.findall(r"(?<![\w.])[+~]*[\w.@/-]+(?:=\S+)?", said)
        if result and (left_out[2] or "out, and set" in prose):
            result[-1].without += without
        elif left_out[1]:
            result.append(Way(without=without))
    result += [
        Way(options=flags.split())
        for flags in re.findall(r"--(?:config-dir|cfg) \w+(?: --[a-z-]+)?(?=[ .,])", re.sub("leave .*? out", "", prose))
    ]
    if re.search(r"add -m\b", prose):
        result.append(Way(options=["-m"]))
    return result


def _command(typed: str, case: Case) -> Way | None:
    """What stands between backticks."""
    if loop := re.fullmatch(r"for (\w+) in ([^;]*); do (.*); done", typed):
        lines = [loop[3].replace(f"${loop[1]}", value) for value in loop[2].split()]
        return Way(commands=[_case(line, case) for line in lines])
    if "-m imagenet_ddp." in typed and "torchrun" not in typed:
        return Way(commands=[_case(typed, case)])
    if typed.startswith("unset "):
        return Way(unset=typed.split()[1:])
    if typed.startswith("--"):
        return Way(commands=[Case(typed.replace("hydra-help", "help"), verb=case.verb)])
    words = shlex.split(typed)
    return Way(options=words) if words and all("=" in word for word in words) else None


def _case(line: str, case: Case) -> Case:
    before, _, behind = line.partition("python -m imagenet_ddp.")
    verb, *argv = shlex.split(behind)
    return Case(
        shlex.join(argv), {**case.environ, **dict(word.split("=", 1) for word in shlex.split(before))}, verb, case.gpu
    )


def _options(prose: str) -> list[Way]:
    """Options one behind the other, or joined by "with" or "and", are typed together; others are ways of their own."""
    result: list[Way] = []
    last = -1
    for match in _OPTION.finditer(prose):
        key, value = match["key"], match["value"].rstrip("?;")
        value = value.rstrip(".,:)") if not re.fullmatch(r"\.", value.rstrip(",;:")) else "."
        text = value.strip()
        value, ends = text, match.start("value") + len(text)
        between = prose[last : match.start()] if last >= 0 else "-"
        if not re.fullmatch(r"\s*'?\s*|'? (with|and) '?", between):
            result.append(Way())
        if key.isupper():
            result[-1].environ[key] = value
        else:
            result[-1].options.append(f"{key}={value}")
        rest = prose[ends:]
        if more := re.match(r"((?:, \w+)*) or ([\w-]+)(?=[.?]| with|$)", rest):
            others = [word for word in more[1].split(", ") if word] + [more[2]]
            head = result[-1].options[:-1]
            result += [Way(options=[*head, f"{key}={word}"]) for word in others]
        last = (
            match.end()
            - (len(match.group()) - (match.start("value") - match.start()) - len(value))
            + (1 if match.group().endswith("'") else 0)
        )
    return result


def applied(way: Way, case: Case, mistake: str) -> Iterator[list[Case]]:
    """The command as a person would type it then: what is named replaces the option of that key; failing that, also
    the words that the mistake names go."""
    if way.commands:
        yield way.commands
        return
    if way.options and way.options[0].startswith("--"):
        kept = [word for word in case.argv if not word.startswith("--")]
        yield [Case(shlex.join([*kept, *way.options]), case.environ, case.verb)]
        return
    environ = {name: value for name, value in {**case.environ, **way.environ}.items() if name not in way.unset}
    key = lambda word: word.partition("=")[0].lstrip("+~")  # noqa: E731
    if way.rename:
        said = re.findall(r"[\w.+-]+", mistake)
        for word in case.argv:
            if key(word) in said:
                renamed = f"{way.rename}={word.partition('=')[2] or PLACEHOLDERS.get('VALUE')}"
                if way.rename in ("resume", "checkpoint") and "=" not in word:
                    renamed = f"{way.rename}=x.ckpt"
                yield [
                    Case(
                        shlex.join([renamed if other == word else other for other in case.argv]),
                        environ,
                        case.verb,
                        case.gpu,
                    )
                ]
        return
    new = {key(option) for option in way.options}
    without = {key(word) for word in way.without} - {"Hint"}
    kept = [word for word in case.argv if key(word) not in new | without]
    yield [Case(shlex.join([*kept, *way.options]), environ, case.verb, case.gpu)]
    said, _, _ = mistake.partition("Hint: ")
    named = {key(word.strip(".,:()'`")) for word in said.split()}
    named |= {word.strip(".,:()'`") for word in said.split()}
    fewer = [word for word in kept if key(word) not in named and word not in named]
    yield [Case(shlex.join([*fewer, *way.options]), environ, case.verb, case.gpu)]


def _shape(mistake: str) -> str:
    """Without the folders that it names."""
    return re.sub(r"\S*\b(pets|gone|imagenet|classes|no_val|fresh|a,b)\b\S*", "...", mistake)


def faults(case: Case, seen: set[str]) -> list[str]:
    """Sentences on the hints of this line that lead nowhere."""
    mistakes = found(case)
    seen.update(mistakes)
    if not mistakes:
        return [f"{case.verb} {case.line} {case.environ}: is accepted"]
    result = []
    for mistake in mistakes:
        hint = mistake.partition("Hint: ")[2]
        others = {_shape(text) for text in mistakes if text != mistake}
        tried = ways(mistake, case)
        if not tried and not any(re.search(text, hint) for text in PROSE):
            result.append(f"{case.verb} {case.line}: nothing to type in: {hint}")
        for way in tried:
            left: list[str] = []
            for typed in applied(way, case, mistake):
                left = [text for each in typed for text in found(each) if _shape(text) not in others]
                if not left:
                    break
            if left:
                result.append(f"{case.verb} {case.line} {case.environ}\n  {mistake}\n  {way}\n  -> {left}")
    return result


def _templates(name: str) -> list[tuple[str, re.Pattern[str]]]:
    """Each Hint in a source file, and what it looks like on the screen."""
    result = []
    tree = ast.parse((PACKAGE / f"{name}.py").read_text())
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body
        and isinstance(node.body[0], ast.Expr)
    }  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [
                re.escape(part.value) if isinstance(part, ast.Constant) else ".*?"  # type: ignore[arg-type]
                for part in node.values
            ]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside | docstrings:
            parts = [re.escape(re.sub(r"\{\w*\}", "\0", node.value)).replace("\0", ".*?")]
        else:
            continue
        text = "".join(parts)
        if re.search(r"Hint:\\ \S", text) or re.search(r"Hint:\\ $", text):
            behind = text[text.index("Hint:") :]
            result.append((f"{name}.py line {node.lineno}", re.compile(behind, re.DOTALL)))
    return result


# Hints that no line here can bring up: what they need.
ELSEWHERE = {
    "distributed/network/nccl.py": ("export", "once it works"),  # notes of doctor, which refuse nothing
    # a net of one's own, and a machine without timm: tests/models/test_validate.py
    "models/validate.py": ("model.weights=PATH", "model.args.", "run `", "schedule.milestones instead"),
    "data/validate.py": ("run `",),  # a machine without timm
    # a disk that fails, a folder of images and a single class: tests/data/sources/test_table.py
    "data/sources/table.py": (
        "add images of another class",
        "chmod",
        "still mounted",
        "data.images_dir=FOLDER, or leave it out",
    ),
    "cli/parse.py": ("leave -m out",),  # tests/cli/test_text_values.py
    "cli/validate.py": ("TMPDIR=/tmp",),  # tests/cli/test_parse.py
    # tests/distributed/launchers/test_table.py
    "distributed/launchers/ranks.py": ("or start the command with torchrun.",),
}


@pytest.mark.slow
def test_every_hint_can_be_typed():
    seen: set[str] = set()
    cases = [*LINES, *_of_tables()]
    assert len(cases) >= 80
    wrong = list(itertools.chain.from_iterable(faults(case, seen) for case in cases))
    assert not wrong, f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong)
    hints = [text[text.index("Hint:") :] for text in seen if "Hint:" in text]
    unseen = [
        f"{where}: {pattern.pattern}"
        for name in SOURCES
        for where, pattern in _templates(name)
        if not any(pattern.search(hint) for hint in hints)
        and not any(re.escape(text) in pattern.pattern for text in ELSEWHERE.get(f"{name}.py", ()))
    ]
    assert not unseen, "no line in this test brings up:\n" + "\n".join(unseen)
