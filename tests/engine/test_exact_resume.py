"""A run that streams its images is killed within a validation, and goes on to the bit. tests/faults/test_kill.py kills
runs on files at random moments; tests/callbacks/test_exact_resume.py stops at each kind of step."""

from pathlib import Path

import pytest
from conftest import PROBES, clean_environ, small_run
from helpers import forked_commands
from helpers.run_asserts import assert_same_runs

OPTIONS = (
    *small_run("model._target_=block_net.BlockNet"), "allow_targets=[block_net,probe]", "resume=auto", "logger=csv",
    "trainer.log_every_n_steps=1", "data.augment=pad_crop", "+callbacks.checkpoint.every_n_steps=1", "data=streamed",
    "trainer.devices=2", "trainer.accumulate_grad_batches=2", "averaging=ema", "averaging.decay=0.5",
)  # fmt: skip


@pytest.mark.slow
def test_a_killed_run_ends_as_one_that_was_not(tree: Path, tmp_path: Path) -> None:
    def command(verb: str, *options: str) -> tuple[int, str]:
        environment = clean_environ(PYTHONPATH=PROBES, XDG_CACHE_HOME=str(tmp_path / "cache"))
        done = forked_commands.run(f"imagenet_ddp.{verb}", *options, folder=tmp_path, environment=environment)
        return done.returncode, done.stdout + done.stderr

    pack = ["prepare=pack", "data=imagefolder", f"data.root={tree}", "out=pack", "prepare.num_workers=1"]
    code, printed = command("prepare", *pack)
    assert code == 0, printed
    options = [*OPTIONS, f"data.root=file://{tmp_path}/pack"]
    code, printed = command("train", *options, "data.num_workers=0", "hydra.run.dir=whole")
    assert code == 0, printed
    options += ["data.num_workers=2", "hydra.run.dir=parts"]
    probe = "{_target_:probe.Probe,folder:p,what:kill,rank:1,step:8,in_validation:true,slow_s:0.1}"
    code, printed = command("train", *options, f"+callbacks.probe={probe}")
    assert code not in (0, 2), printed
    assert (tmp_path / "parts/checkpoints/last.ckpt").exists(), "there is something to go on from"
    code, printed = command("train", *options)
    assert code == 0, printed
    assert_same_runs(tmp_path / "whole", tmp_path / "parts")
