"""The table of other programs' terms: complete, its lines are accepted, and docs/coming-from.md is made from it."""

import re
import shlex
from pathlib import Path

import pytest
from helpers.composed_once import compose_once

from imagenet_ddp.cli import hydra_flags, known_terms
from imagenet_ddp.cli.known_terms import BY_NAME, TERMS, Term
from imagenet_ddp.cli.parse import command_line
from imagenet_ddp.distributed import nvidia_gpus
from imagenet_ddp.errors import ConfigError
from scripts.doc_pages import PROGRAMS

# A sensible value of each option, by its first name, several separated by |; of others 1.
SAMPLES = {
    "-a": "resnet50", "--weights": "DEFAULT|x.ckpt", "--model-kwargs": "replace_stride_with_dilation=null",
    "--drop": "0.1", "--drop-path": "0.1", "--lr": "0.2", "--lr-base": "0.1", "--lr-base-size": "256",
    "--lr-base-scale": "sqrt",
    "--momentum": "0.9", "--wd": "1e-4", "--opt": "|".join([*BY_NAME["opt"].values, "nadam"]),
    "--opt-betas": "0.9 0.95", "--opt-eps": "1e-8", "--opt-kwargs": "dampening=0.1 foreach=false",
    "--layer-decay": "0.75", "--epochs": "90",
    "--lr-scheduler": "|".join([*BY_NAME["sched"].values, "step", "multistep", "poly"]),
    "--decay-milestones": "30 60", "--lr-gamma": "0.1", "--lr-min": "0.001|0|0.0", "--warmup-lr": "1e-5",
    "--lr-warmup-method": "constant|linear", "--lr-warmup-decay": "0.01", "--label-smoothing": "0.1",
    "--clip-mode": "norm|value|agc", "--bce-target-thresh": "0.2", "--amp-dtype": "float16|bfloat16",
    "--model-ema-decay": "0.9999", "--norm-weight-decay": "0|0.0|1e-4", "--bias-weight-decay": "0",
    "--transformer-embedding-decay": "0", "--mixup-alpha": "0.2", "--mixup-prob": "0.5",
    "--auto-augment": "|".join(BY_NAME["auto_augment"].values), "--ra-magnitude": "7", "--augmix-severity": "3",
    "--aa": "rand|rand-m9-mstd0.5-inc1|rand-m7-n3|3a|original|v0", "--random-erase": "0.25",
    "--color-jitter": "0.4", "--grayscale-prob": "0.1", "--gaussian-blur-prob": "0.1", "--cutmix-minmax": "0.2 0.8",
    "--scale": "0.08 1.0", "--ratio": "0.75 1.33", "--hflip": "0.5", "--vflip": "0.0", "--ra-reps": "4",
    "--interpolation": "bilinear|bicubic|random", "DIR": "pets", "--dataset": "shapes",
    "--train-split": "train", "--val-split": "val", "-b": "256", "--train-crop-size": "176", "--img-size": "224",
    "--input-size": "3 224 224", "--crop-pct": "0.95|0.875", "--mean": "0.5 0.5 0.5", "--std": "0.2 0.2 0.2",
    "--val-resize-size": "232", "--resume": "x.ckpt|auto", "--output-dir": "out|.", "--experiment": "first",
    "--device": "cuda|cpu|mps", "--eval-metric": "top1|loss", "--nproc_per_node": "2|all|0", "--gpu": "0",
    "--dist-url": "tcp://10.0.0.1:23456|env://", "--master_addr": "10.0.0.1", "--master_port": "23456",
    "--dist-backend": "gloo|nccl", "backend": "gloo|nccl|PIL|tensor", "gpu0_bsz": "1", "--remode": "pixel|const|rand",
    "--mixup-mode": "batch",
    "--lr-noise": "0.4 0.9", "--tta": "2|0",
    "--gp": "avg", "local_rank": "0", "--rank": "0", "-rn": "0", "--node_rank": "0",
    "--world-size": "2|8",
}  # fmt: skip
# What must stand beside the options that a hint names.
BESIDE = {
    "--ra-magnitude": "data.policy=randaugment", "--remode": "data.erasing=0.25",
    "--bce-target-thresh": "loss.name=bce", "--clip-mode": "trainer.gradient_clip_val=1",
    "--opt-betas": "optim=adamw", "--opt-eps": "optim=adamw", "--decay-milestones": "schedule.name=multistep",
    "--nesterov": "optim=sgd", "gpu0_bsz": "trainer.devices=2 data.batch_size=4",
    "--rank": "trainer.num_nodes=2 cluster.address=tcp://10.0.0.1:29500",
    "-rn": "trainer.num_nodes=2 cluster.address=tcp://10.0.0.1:29500",
    "--node_rank": "trainer.num_nodes=2 cluster.address=tcp://10.0.0.1:29500",
    "--world-size": "cluster.address=tcp://10.0.0.1:29500",
    "--master_addr": "trainer.num_nodes=2", "--master_port": "trainer.num_nodes=2", "--dist-url": "trainer.num_nodes=2",
    "--train-split": "data=imagefolder data.root=pets", "--val-split": "data=imagefolder data.root=pets",
    "--model-ema-decay": "averaging=ema", "--model-ema-steps": "averaging=ema",
    "--model-ema-warmup": "averaging=ema",
    "--lr-warmup-decay": "schedule.warmup_epochs=5", "--lr-warmup-method": "schedule.warmup_start=0.01",
}  # fmt: skip


@pytest.fixture
def composed_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compose_once(monkeypatch)
    monkeypatch.setattr(nvidia_gpus, "GPU_PATHS", ("/",))  # this machine seems to have GPUs


def mistakes(*argv: str) -> list[str]:
    try:
        command_line("train", argv, {"HOME": "/home/ann"})
    except ConfigError as error:
        return error.mistakes
    return []


def typed(message: str) -> list[str]:
    """What a hint says to type; [] for leave it out."""
    found = re.search(r"Hint: type (.*?)(?: \(.*)?\.$", message)
    return shlex.split(found[1].replace("HOST", "10.0.0.1")) if found else []


CASES = [(term, value) for term in TERMS if term.names[0] not in ("DIR", "local_rank")
         for value in ("" if term.flag else SAMPLES.get(term.names[0], "1")).split("|")]  # fmt: skip


@pytest.mark.usefixtures("composed_once")
@pytest.mark.parametrize(("term", "value"), CASES, ids=[f"{term.names[0]}-{value}" for term, value in CASES])
def test_the_hint_of_each_is_accepted(term: Term, value: str):
    name = next((name for name in term.names if name.startswith("-")), "")
    name = name or f"--{term.names[0]}"
    (message,) = mistakes(name, *value.split())
    assert message.startswith(f"{' '.join([name, *value.split()])} is an option of another program. Hint: ")
    options = typed(message)
    assert bool(options) == bool(term.values.get(value.lower(), term.here))
    assert options or "Hint: leave it out" in message
    # what another recipe or optimizer reads is a mistake of the line only beside the default data
    left = mistakes(*options, *BESIDE.get(term.names[0], "").split()) if options else []
    assert not [text for text in left if "has no effect" not in text and "which is not installed" not in text]


# What these programs have, so that none is forgotten: pytorch/examples @77f55b9, torchvision's references @ebc4bc1.
OPTIONS = {
    "pytorch/examples, imagenet/main.py": "DIR -a -j --epochs --start-epoch -b --lr --momentum --wd -p --resume -e "
    "--pretrained --world-size --rank --dist-url --dist-backend --seed --gpu --no-accel --multiprocessing-distributed "
    "--dummy",
    "torchvision, references/classification/train.py": "--data-path --model --device -b --epochs -j --opt --lr "
    "--momentum --wd --norm-weight-decay --bias-weight-decay --transformer-embedding-decay --label-smoothing "
    "--mixup-alpha --cutmix-alpha --lr-scheduler --lr-warmup-epochs --lr-warmup-method --lr-warmup-decay "
    "--lr-step-size --lr-gamma --lr-min --print-freq --output-dir --resume --start-epoch --cache-dataset --sync-bn "
    "--test-only --auto-augment --ra-magnitude --augmix-severity --random-erase --amp --world-size --dist-url "
    "--model-ema --model-ema-steps --model-ema-decay --use-deterministic-algorithms --interpolation "
    "--val-resize-size --val-crop-size --train-crop-size --clip-grad-norm --ra-sampler --ra-reps --weights "
    "--backend --use-v2",
}


@pytest.mark.parametrize(("program", "number"), list(zip(OPTIONS, (22, 51), strict=True)))
def test_every_option_of_a_program_is_in_its_table(program: str, number: int):
    assert len(OPTIONS[program].split()) == number
    assert set(OPTIONS[program].split()) <= set(PROGRAMS[program][1].split())
    assert len({BY_NAME[known_terms.plain(name)] for name in PROGRAMS["timm, train.py"][1].split()}) >= 60


def test_a_name_has_one_meaning_and_a_place_in_the_page():
    names = [(name, term) for term in TERMS for name in term.names]
    assert [name for name, term in names if BY_NAME[known_terms.plain(name)] is not term] == []
    shown = " ".join(names for _, names in PROGRAMS.values()).split()
    assert BY_NAME.keys() == {known_terms.plain(name) for name in shown}


def test_what_is_switched_off_is_not_switched_on():
    found = mistakes("--pretrained=false", "--amp=False", "--model-ema=0")
    assert len(found) == 3
    assert not any(on in text for text in found for on in ("DEFAULT", "16-mixed", "averaging=ema"))


def test_hydras_own_options_are_known():
    """By the parser's private table: Hydra has no public one."""
    from hydra._internal.utils import get_args_parser

    options = get_args_parser()._option_string_actions
    unsupported = {"--config-path", "-cp", "--experimental-rerun"}
    assert options.keys() - unsupported == hydra_flags.NAMES


def test_none_is_one_of_hydras():
    taken = {"-p"}  # --package NAME: a number is pytorch/examples' --print-freq
    assert hydra_flags.NAMES & BY_NAME.keys() == taken
