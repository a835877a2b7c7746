"""The table of other programs' terms: complete, its lines are accepted, and docs/coming-from.md is made from it."""

import re
from pathlib import Path

import pytest
from helpers.composed_once import compose_once

from imagenet_ddp.cli import hydra_flags, known_terms
from imagenet_ddp.cli.known_terms import BY_NAME, TERMS, VALUES, Term
from imagenet_ddp.cli.parse import command_line
from imagenet_ddp.cli.translate import Translation, translate
from imagenet_ddp.distributed import nvidia_gpus
from imagenet_ddp.errors import ConfigError
from scripts.doc_pages import LINES, PROGRAMS

# A sensible value of each option, by its first name, several separated by |; of others 1.
SAMPLES = {
    "-a": "resnet50", "--weights": "DEFAULT|x.ckpt", "--model-kwargs": "replace_stride_with_dilation=null",
    "--drop": "0.1", "--drop-path": "0.1", "--lr": "0.2", "--lr-base": "0.1", "--lr-base-size": "256",
    "--lr-base-scale": "sqrt",
    "--momentum": "0.9", "--wd": "1e-4", "--opt": "|".join([*VALUES["optimiser"], "nadam"]),
    "--opt-betas": "0.9 0.95", "--opt-eps": "1e-8", "--opt-kwargs": "dampening=0.1 foreach=false",
    "--layer-decay": "0.75", "--epochs": "90",
    "--lr-scheduler": "|".join([*VALUES["schedule"], "step", "multistep", "poly"]),
    "--decay-milestones": "30 60", "--lr-gamma": "0.1", "--lr-min": "0.001|0|0.0", "--warmup-lr": "1e-5",
    "--lr-warmup-method": "constant|linear", "--lr-warmup-decay": "0.01", "--label-smoothing": "0.1",
    "--clip-mode": "norm|value|agc", "--bce-target-thresh": "0.2", "--amp-dtype": "float16|bfloat16",
    "--model-ema-decay": "0.9999", "--norm-weight-decay": "0|0.0|1e-4", "--bias-weight-decay": "0",
    "--transformer-embedding-decay": "0", "--mixup-alpha": "0.2", "--mixup-prob": "0.5",
    "--auto-augment": "|".join(VALUES["policy"]), "--ra-magnitude": "7", "--augmix-severity": "3",
    "--aa": "rand|rand-m9-mstd0.5-inc1|rand-m7-n3|augmix-m5-w4-d2|3a|original|v0", "--random-erase": "0.25",
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
# What must stand beside an option, as it must in its own program.
BESIDE = {
    "--ra-magnitude": "--auto-augment ra", "--remode": "--reprob 0.25",
    "--bce-target-thresh": "--bce-loss", "--clip-mode": "--clip-grad 1",
    "--opt-betas": "--opt adamw", "--opt-eps": "--opt adamw", "--decay-milestones": "--sched multistep",
    "--lr-min": "--sched cosine --lr 0.5", "--warmup-lr": "--warmup-epochs 5", "--nesterov": "--opt sgd",
    "gpu0_bsz": "gpus=2 batch_size=4", "--rank": "--world-size 8", "-rn": "-ws 2", "--node_rank": "-n 2",
    "local_rank": "--world-size 8 --rank 0", "--master_addr": "-n 2", "--master_port": "-n 2", "--dist-url": "-n 2",
    "--train-split": "--data-dir pets", "--val-split": "--data-dir pets", "--model-ema-decay": "--model-ema",
    "--model-ema-steps": "--model-ema", "--lr-warmup-decay": "--lr-warmup-epochs 5",
    "--lr-warmup-method": "--lr-warmup-decay 0.01",
}  # fmt: skip
MINE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "8", "HOST": "10.0.0.1", "FILE": "x.ckpt"}  # for a placeholder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compose_once(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nvidia_gpus, "GPU_PATHS", ("/",))  # this machine seems to have GPUs
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / "pets" / split / name).mkdir(parents=True)
            (tmp_path / "pets" / split / name / "1.jpg").touch()
    (tmp_path / "x.ckpt").touch()


def mistakes(translation: Translation) -> list[str]:
    """Of the translated line, with something in the place of each placeholder."""

    def filled(found: re.Match[str]) -> str:
        return found[1] + MINE.get(found[2], found[2])

    argv = [re.sub(r"(=|//)([A-Z_]{4,})\b", filled, word) for word in translation.argv]
    try:
        command_line(translation.verb, argv, {"HOME": "/home/ann"})
    except ConfigError as error:
        return [text for text in error.mistakes if "which is not installed" not in text]  # wandb
    return []


CASES = [(term, value) for term in TERMS for value in ("" if term.flag else SAMPLES.get(term.names[0], "1")).split("|")]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("term", "value"), CASES, ids=[f"{term.names[0]}-{value}" for term, value in CASES])
def test_the_line_of_each_is_accepted(term: Term, value: str):
    name = term.names[0]
    words = [value] if name == "DIR" else [name, *value.split()] if name.startswith("-") else [f"{name}={value}"]
    translation = translate("train", [*words, *BESIDE.get(name, "").split()], {})
    assert translation is not None
    # what another recipe or optimizer reads is a mistake of the line only beside the default data
    assert not [text for text in mistakes(translation) if "has no effect" not in text]
    row = next(row for row in translation.text.split("\n") if row.strip().startswith(" ".join(words)))
    assert row.strip() != f"{' '.join(words)}: as it is.", "what is nothing here has a reason"
    assert "but no value is typed" not in row and "no option here has this" not in row
    if not term.here and value.lower().partition("-")[0] not in VALUES.get(term.role, {}):
        assert term.note and not re.search(r": (\+?[\w.]+=|')", row)


@pytest.mark.usefixtures("here")
def test_flags_can_be_switched_off():
    """--no-NAME and NAME=false set another value than NAME, or say that it can be left out."""
    for term in (term for term in TERMS if term.flag and term.names[0].startswith("--")):
        name = term.names[0]
        negated = translate("train", [f"--no-{name[2:]}"], {})
        assert negated is not None
        assert not [text for text in mistakes(negated) if "has no effect" not in text]
        same = translate("train", [f"{name}=false"], {})
        assert same is not None and same.argv == negated.argv
        positive = translate("train", [name], {})
        assert positive is not None
        assert not set(negated.argv) & set(positive.argv)
        assert bool(negated.argv) or "leave it out" in negated.text


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("line", LINES)
def test_whole_commands_of_the_page_are_accepted(line: str):
    translation = translate("train", line.replace("FOLDER", "pets").split()[1:], {})
    assert translation is not None
    # what another recipe or optimizer reads is a mistake of the line only beside the default data
    assert not [text for text in mistakes(translation) if "has no effect" not in text]


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


def test_hydras_own_options_are_known():
    """By the parser's private table: Hydra has no public one."""
    from hydra._internal.utils import get_args_parser

    options = get_args_parser()._option_string_actions
    assert {name for name, action in options.items() if action.nargs == 0} == hydra_flags.FLAGS
    assert {name for name, action in options.items() if action.nargs != 0} == hydra_flags.WITH_VALUE


def test_none_is_one_of_hydras():
    taken = {"-p"}  # --package NAME: a number is pytorch/examples' --print-freq
    assert (hydra_flags.FLAGS | hydra_flags.WITH_VALUE) & BY_NAME.keys() == taken
