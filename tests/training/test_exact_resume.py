"""A run that is killed goes on to the bit: each source, number of ranks and workers, and setting, at least once."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import PROBES, clean_environ, small_run
from helpers import forked_commands
from helpers.train_runs import assert_same_runs

pytestmark = pytest.mark.slow

COMMON = (
    *small_run("model._target_=block_net.BlockNet"), "allow_targets=[probe.Probe]", "resume=auto", "logger=csv",
    "trainer.log_every_n_steps=1", "data.augment=pad_crop", "+callbacks.checkpoint.every_n_steps=1",
)  # fmt: skip
MIXUP, RANDAUGMENT = "data.mixup_alpha=0.4", "data.policy=randaugment"
EMA = ("averaging=ema", "averaging.decay=0.5")


def command(folder: Path, verb: str, *options: str) -> tuple[int, str]:
    environment = clean_environ(PYTHONPATH=PROBES, XDG_CACHE_HOME=str(folder / "cache"))
    done = forked_commands.run(f"imagenet_ddp.{verb}", *options, folder=folder, environment=environment)
    return done.returncode, done.stdout + done.stderr


# ---- sources


def packed(tree: Path, folder: Path) -> list[str]:
    pack = ["prepare=pack", "data=imagefolder", f"data.root={tree}", "out=pack", "prepare.num_workers=1"]
    code, printed = command(folder, "prepare", *pack)
    assert code == 0, printed
    return ["data=packed", f"data.root={folder / 'pack'}"]


def streamed(tree: Path, folder: Path) -> list[str]:
    return ["data=streamed", packed(tree, folder)[1].replace("root=", "root=file://"), "data.exif_orientation=true"]


def files(tree: Path, folder: Path) -> list[str]:
    return [f"data.root={tree}"]


# ---- cases


class Case(NamedTuple):
    source: Callable[[Path, Path], list[str]]
    ranks: int
    workers: int
    step: int  # after which the last rank is killed
    more: tuple[str, ...]
    in_validation: bool = False


CASES = {
    "in mid-accumulation": Case(
        files, 1, 2, 13, ("trainer.accumulate_grad_batches=3", "trainer.precision=64-true", MIXUP, *EMA)
    ),
    "in mid-validation": Case(packed, 3, 2, 2, ("trainer.val_check_interval=2", RANDAUGMENT, *EMA), True),
    "streamed": Case(streamed, 2, 2, 8, ("trainer.accumulate_grad_batches=2", *EMA), True),
}


@pytest.mark.parametrize("name", CASES)
def test_a_killed_run_ends_as_one_that_was_not(name: str, tree: Path, tmp_path: Path) -> None:
    case: Any = CASES[name]
    options = [*COMMON, f"trainer.devices={case.ranks}", *case.source(tree, tmp_path), *case.more]
    code, printed = command(tmp_path, "train", *options, "data.num_workers=0", "hydra.run.dir=whole")
    assert code == 0, printed
    options += [f"data.num_workers={case.workers}", "hydra.run.dir=parts"]
    trouble = {"_target_": "probe.Probe", "folder": "p", "what": "kill", "rank": case.ranks - 1, "step": case.step,
               "in_validation": case.in_validation, "slow_s": 0.1}  # fmt: skip
    code, printed = command(
        tmp_path, "train", *options, *(f"+callbacks.probe.{key}={value}" for key, value in trouble.items())
    )
    assert code not in (0, 2), printed
    assert (tmp_path / "parts/checkpoints/last.ckpt").exists(), "there is something to go on from"
    code, printed = command(tmp_path, "train", *options)
    assert code == 0, printed
    assert_same_runs(tmp_path / "whole", tmp_path / "parts")
    shutil.rmtree(tmp_path)
