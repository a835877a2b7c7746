"""Values of text keys keep the characters that were typed."""

import shlex
import subprocess
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from imagenet_ddp.cli import command
from imagenet_ddp.cli.parse import command_line
from imagenet_ddp.config.schema.trainer import DEVICES
from imagenet_ddp.errors import ConfigError

NAMES = ("2024_11_26", "1.10", "1e5", "0x10", "007", "-5", "inf", "true", "No", "1_0", "٣", "12:30", "a=b", "café")
ODD = ("in,out", "a=b", "[x]", "(1)", "two words", " lead", "$x", "{a}", "it's", 'a"b', "x\\y", "a\\,b", "choice(a,b)")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)


def read(key: str, *argv: str, verb: str = "train") -> list:
    """Return the key's value in each job."""
    configs = command_line(verb, list(argv), {"HOME": "/home/ann"}, compose_only=True).configs
    return [OmegaConf.select(config, key) for config in configs]


@pytest.mark.parametrize("text", [*NAMES, "NULL"])
def test_text_keeps_its_characters(text: str):
    for key in ("name", "model.name"):
        assert read(key, f"{key}={text}") == [text]
    request = command_line("train", [f"hydra.run.dir={text}", f"data.val_dir={text}"], {}, compose_only=True)
    assert (request.hydra.run.dir, request.configs[0].data.val_dir) == (text, text)
    assert read("images", "checkpoint=x", f"images={text}", verb="predict") == [text]


@pytest.mark.parametrize("text", [name for name in NAMES if name.isascii() and "=" not in name])
def test_column_names_of_a_table_keep_their_characters(text: str):
    """The arguments of another source may be numbers."""
    assert read("data.args.label", "data=table", f"+data.args.label={text}") == [text]
    assert read("data.args.label", "data=imagefolder", "+data.args.label=1_0") == [10]


def test_texts_in_a_list_keep_their_characters():
    texts = [name for name in (*NAMES, "null") if name.isascii() and not set(name) & set("=:")]
    assert read("allow_targets", f"allow_targets=[{','.join(texts)}]") == [texts]


def test_null_and_quotes_keep_their_meaning():
    assert read("data.root", "data.root=null") == [None]
    assert read("name", "name=null") == ["null"]
    assert read("name", "name='1.10'") == ["1.10"]
    assert read("name", "name=${seed}_1_0", "seed=1_0") == ["10_1_0"]
    assert command_line("train", ["hydra.output_subdir=null"], {}).hydra.output_subdir is None


def test_jobs_of_a_sweep_keep_their_characters(monkeypatch: pytest.MonkeyPatch):
    """Hydra composes each job again."""
    argv = ["-m", "name=1.10,2_0,'3_0',x", "seed=1_0,7"]
    assert read("name", *argv) == [name for name in ("1.10", "2_0", "3_0", "x") for _ in range(2)]
    request, found = command_line("train", argv, {}, compose_only=True), []

    def task(config):
        found.append((HydraConfig.get().job.num, config.name, config.seed))

    monkeypatch.setattr("sys.argv", ["train"])
    command.with_hydra("train", [*request.argv, "hydra.sweep.dir=jobs"], task)
    assert found[0] == (0, "1.10", 10)
    assert found[5] == (5, "3_0", 7)


@pytest.mark.parametrize("text", ODD)
def test_an_existing_path_is_that_path(text: str, tmp_path: Path):
    Path(text).mkdir()
    for key, verb in (("data.root", "train"), ("resume", "train"), ("checkpoint", "evaluate"), ("images", "predict")):
        needed = ["checkpoint=x"] if verb == "predict" else ["data=imagefolder"]
        assert read(key, *needed, f"{key}={text}", verb=verb) == [text]
    assert read("data.root", "-m", "data=imagefolder", f"data.root={text}", "seed=1,2") == [text, text]


@pytest.mark.parametrize(("verb", "key"), [("train", "data.root"), ("predict", "images"), ("evaluate", "checkpoint")])
@pytest.mark.parametrize(
    "text", [name for name in ODD if name not in ("a=b", "two words", " lead", "$x", "x\\y", "a\\,b")]
)
def test_the_quoted_form_is_shown_and_works_in_a_shell(verb: str, key: str, text: str):
    needed = (
        ["checkpoint=x", "images=x"]
        if verb == "predict"
        else ["checkpoint=x"]
        if verb == "evaluate"
        else ["data=imagefolder"]
    )
    needed = [option for option in needed if not option.startswith(key)]
    with pytest.raises(ConfigError) as caught:
        read(key, *needed, f"{key}={text}", verb=verb)
    (mistake,) = caught.value.mistakes
    assert ("add -m" in mistake) == (verb == "train" and text in ("in,out", "choice(a,b)"))
    typed = mistake.partition("`")[2].rpartition("`")[0]
    shown = subprocess.run(["bash", "-c", f"printf %s {typed}"], capture_output=True, text=True, check=True).stdout
    assert shown == shlex.split(typed)[0]
    assert read(key, *needed, shown, verb=verb) == [text]


@pytest.mark.parametrize("verb", ["predict", "evaluate", "export", "demo"])
def test_m_is_refused_where_one_job_runs(verb: str):
    with pytest.raises(ConfigError, match=f"-m starts several jobs, but {verb} runs one"):
        read("checkpoint", "-m", "checkpoint=a,b", *(["images=x"] if verb == "predict" else []), verb=verb)


@pytest.mark.parametrize("text", ["0", "00", "0 ", "-2", "1,1", "0,00", "٢", "cuda:0", "0-3", ",", ""])
def test_text_that_names_no_devices_is_refused_with_what_to_type(text: str):
    with pytest.raises(ConfigError) as caught:
        command_line("train", [f"trainer.devices='{text}'", "seed=-1"], {})
    devices, seed = sorted(caught.value.mistakes, reverse=True)
    assert devices.startswith("trainer.devices must be auto, an integer ≥ 1,") and seed.startswith("seed must be")
    assert "Hint: set trainer.devices=1 for one device, 'trainer.devices=[0]' for GPU 0, or auto." in devices


@pytest.mark.parametrize("text", ["2", "0,", "0,3", "-1", "auto"])
def test_text_that_names_devices_is_accepted(text: str):
    assert DEVICES.accepts(text)
