"""Hydra's part of a command: what a job finds set up, and what only prints."""

import os
import subprocess
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from imagenet_ddp.cli import command
from imagenet_ddp.cli.other_command import run_other
from imagenet_ddp.cli.parse import command_line, composed
from imagenet_ddp.config.schema.optimizers import SGD
from imagenet_ddp.distributed.spawn import WorkersFailedError
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.system.console import exit_on_closed_pipe


def test_a_job_has_hydras_config_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)  # an earlier test's `--cfg --resolve` has set it
    request = command_line("train", ["seed=7"], {})
    with command.hydra_job(request, tmp_path / "a b"):
        assert HydraConfig.get().runtime.output_dir == HydraConfig.get().run.dir == str(tmp_path / "a b")
        assert (HydraConfig.get().job.name, [*HydraConfig.get().overrides.task]) == ("train", ["seed=7"])
    assert not HydraConfig.initialized() and "hydra" not in request.config


@pytest.mark.parametrize("option", ["--help", "--cfg=job"])
def test_a_command_that_only_prints_has_no_plan(
    option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["doctor"])
    with pytest.raises(SystemExit) as ended:
        command.planned("doctor", ["--local-rank=0", option], lambda argv, environ: pytest.fail("reads a plan"))
    assert ended.value.code == 0
    assert "data.root" in capsys.readouterr().out or option != "--help"


def test_what_is_shown_is_what_is_composed_and_read(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["experiment=fast", "optim=sgd", "--cfg", "job"]
    with pytest.raises(SystemExit):
        command.request("train", argv)
    (config,) = composed("train", argv[:2]).configs
    shown = OmegaConf.create(capsys.readouterr().out).optim
    assert shown == OmegaConf.masked_copy(config.optim, [*SGD()]) and "betas" in config.optim


def test_a_full_disk_behind_the_output_is_one_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", full)
        with pytest.raises(SystemExit) as ended, exit_on_closed_pipe():
            print("a row", flush=True)
    assert (ended.value.code, capsys.readouterr().err.count("its disk is full")) == (1, 1)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConfigError(["a must be b", "c must be d."]), "a must be b. c must be d."),
        (RunError("the disk\nis full."), "the disk is full."),
        (WorkersFailedError(1, "rank 1 has ended."), "rank 1 has ended."),
        (SystemExit(3), "features ended with exit code 3; its message is above."),
        (None, ""),
    ],
)
def test_a_command_that_starts_another_learns_why_it_failed(
    error: BaseException | None, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And prints it, so that the other one does not."""

    def run(words: list[str], *, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        with monkeypatch.context() as patch:
            patch.setattr(os, "environ", env)
            try:
                with command.exit_codes("features"):
                    if error is not None:
                        raise error
            except SystemExit as ended:
                return subprocess.CompletedProcess(words, int(str(ended)))
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(subprocess, "run", run)
    assert (run_other("features", []), capsys.readouterr().err) == (said, "")
