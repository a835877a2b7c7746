"""A job runs as hydra.main would run it, with the config that was checked."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose
from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_original_cwd
from omegaconf import OmegaConf

from imagenet_ddp.cli import command
from imagenet_ddp.cli.parse import command_line
from imagenet_ddp.errors import ConfigError

OPTIONS = (
    "seed=7", "optim=adamw", "allow_targets=[hydra_calls]", "hydra.output_subdir=.hydra",
    "+hydra.job.env_set.JOB_VARIABLE=${hydra.runtime.output_dir}", "+hydra.callbacks.calls._target_=hydra_calls.Calls",
)  # fmt: skip


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)  # an earlier test's `--cfg --resolve` has set it
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "helpers" / "probes")
    import hydra_calls  # pyright: ignore[reportMissingImports]

    hydra_calls.CALLS.clear()
    return hydra_calls.CALLS


def test_hydra_surrounds_the_task(tmp_path: Path, calls: list[tuple[str, Any]]) -> None:
    def task() -> None:
        assert os.environ["JOB_VARIABLE"] == HydraConfig.get().runtime.output_dir == str(tmp_path / "a b")
        assert (HydraConfig.get().job.name, get_original_cwd()) == ("train", str(Path.cwd()))
        assert compose("own").mine == 5  # from --config-dir
        calls.append(("task", None))

    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/own.yaml").write_text("mine: 5")
    request = command_line("train", [*OPTIONS, "--config-dir", str(tmp_path / "conf")], {})
    with command.hydra_job(request, tmp_path / "a b") as done:
        task()
        done.return_value = 0.5
    assert done.return_value == 0.5
    assert [name for name, _ in calls] == ["on_run_start", "on_job_start", "task", "on_job_end", "on_run_end"]
    assert calls[3][1].name == "COMPLETED"
    written = {path.name: path.read_text() for path in (tmp_path / "a b/.hydra").iterdir()}
    assert "seed: 7" in written["config.yaml"]
    assert written["overrides.yaml"].splitlines() == ["- seed=7", "- optim=adamw", "- allow_targets=[hydra_calls]"]
    hydra = OmegaConf.create(written["hydra.yaml"]).hydra
    assert hydra.run.dir == str(tmp_path / "a b")
    assert hydra.job.override_dirname == "allow_targets=[hydra_calls],optim=adamw,seed=7"
    assert OPTIONS[4] in yaml.safe_load(written["hydra.yaml"])["hydra"]["overrides"]["hydra"]
    assert "JOB_VARIABLE" not in os.environ and not HydraConfig.initialized()
    assert "hydra" not in request.configs[0], "the request itself is not changed"


def test_the_error_of_a_task_is_raised_as_it_is(tmp_path: Path, calls: list[tuple[str, Any]]) -> None:
    with (
        pytest.raises(OverflowError, match="of the task"),
        command.hydra_job(command_line("train", OPTIONS, {}), tmp_path / "r"),
    ):
        raise OverflowError("of the task")
    assert [name for name, _ in calls][-2:] == ["on_job_end", "on_run_end"]
    assert calls[-2][1].name == "FAILED"


def test_a_callback_that_cannot_be_created_is_a_mistake(tmp_path: Path, calls: list[tuple[str, Any]]) -> None:
    request = command_line("train", [*OPTIONS, "+hydra.callbacks.calls.unknown=1"], {})
    wrong = r"^hydra\.callbacks must name classes .*hydra_calls\.Calls.* Hint: "
    with pytest.raises(ConfigError, match=wrong), command.hydra_job(request, tmp_path / "r"):
        pytest.fail("not started")
    with pytest.raises(ConfigError, match=r"hydra\.job\.chdir must be false"):
        command_line("train", ["hydra.job.chdir=true"], {})


@pytest.mark.parametrize("option", ["--help", "--cfg=job"])
def test_a_command_that_only_prints_has_no_plan(
    option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["doctor"])
    with pytest.raises(SystemExit) as ended:
        command.planned("doctor", ["--local-rank=0", option], lambda argv, environ: pytest.fail("reads a plan"))
    assert ended.value.code == 0
    assert "data.root" in capsys.readouterr().out or option != "--help"
