"""A job arrives on another machine as it was sent, and is not trusted there."""

import copy
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from imagenet_ddp.cli import parse
from imagenet_ddp.config.schema.keys import declared
from imagenet_ddp.config.schema.run import RunConfig
from imagenet_ddp.config.section import to_plain, typed_config
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch.job import Job
from imagenet_ddp.launch.job_message import from_message, to_message

RUNS = "torch.utils.collect_env.run"  # runs a shell command, and is none of Hydra's own block list
OF_ONE_MACHINE = ("begin_s", "in_sweep", "scan")


@pytest.fixture(scope="module")
def job() -> Job:
    """A job of which no field that is sent has its default."""
    config = typed_config(parse.command_line("train", ["data=shapes", "optim.lr=0.3"], {}).config, RunConfig)
    return Job(
        config, Path("/runs/a"), Path("/runs/a/last.ckpt"), ("a", "b"), finished=True, command="c", experiment="e",
        global_batch_size_before=8, keep_global_batch_size=False, threads_before=(1, 2), begin_s=1.0, in_sweep=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def sent(job: Job) -> dict[str, Any]:
    return json.loads(json.dumps(to_message(job)))


def test_a_job_arrives_as_it_was_sent(job: Job, sent: dict[str, Any]) -> None:
    there, bare = from_message(sent, parse.command_line("train", ["data=shapes"], {})), Job(job.config, Path())
    for name in {each.name for each in fields(Job)} - {*OF_ONE_MACHINE, "config"}:
        assert getattr(there, name) == getattr(job, name) != getattr(bare, name), name
    assert to_plain(there.config) == to_plain(job.config)
    assert (Path.cwd() / sent["relative"]).resolve() == job.run_dir


@pytest.mark.parametrize("value", [None, 3, [1], {"a": 1}, "x", True, float("nan")])
@pytest.mark.parametrize("name", ["run_dir", "messages", "finished", "config", "global_batch_size_before", "more"])
def test_a_job_with_fields_of_wrong_types_is_refused(name: str, value: Any, sent: dict[str, Any]) -> None:
    request = parse.command_line("train", ["data=shapes"], {})
    if name in sent and type(value) is type(sent[name]) and name != "config":
        return
    if name == "global_batch_size_before" and value is None:
        return
    if name == "config" and isinstance(value, dict):
        return
    with pytest.raises(ConfigError, match="node 0"):
        from_message({**sent, name: value}, request)


@pytest.mark.parametrize("resumed", [False, True])
def test_each_machine_keeps_what_it_sets_for_itself(tree: Path, sent: dict[str, Any], resumed: bool) -> None:
    """Every key that is marked so; a resumed run has the checkpoint's for what is not typed here."""
    images = ["data=imagefolder", f"data.root={tree}"]
    config = typed_config(parse.command_line("train", images, {}).config, RunConfig)
    content = {**sent, "config": copy.deepcopy(to_plain(config))}
    content["checkpoint"] = "/runs/a/last.ckpt" if resumed else None
    theirs = content["config"]
    theirs["data"]["root"] = theirs["cluster"]["secret_file"] = theirs["cluster"]["address"] = "/theirs"
    theirs["nccl"]["env"] = {"NCCL_SOCKET_IFNAME": "theirs0", "GLOO_SOCKET_IFNAME": "theirs0", "NCCL_DEBUG": "INFO"}
    of_node = ["trainer.num_nodes=2", "cluster.address=own:1", "cluster.node_rank=1"]
    request = parse.command_line("train", [*images, *of_node], {})
    request.config.nccl.env["GLOO_SOCKET_IFNAME"] = "own0"  # typed, it must be that of a card of this machine
    marked = {path for path, key in declared("train").items() if key.per_machine}
    assert marked > {"data.root", "data.val_dir", "cluster.rank", "cluster.address", "resume", "nccl.env"}
    config = from_message(content, request).config
    assert (config.data.root, config.cluster.address, config.cluster.node_rank) == (str(tree), "own:1", 1)
    assert config.cluster.secret_file == ("/theirs" if resumed else None)
    kept = {"NCCL_SOCKET_IFNAME": "theirs0"} if resumed else {}
    assert config.nccl.env == {**kept, "GLOO_SOCKET_IFNAME": "own0", "NCCL_DEBUG": "INFO"}


def test_a_job_is_checked_like_a_stored_config(sent: dict[str, Any]) -> None:
    request = parse.command_line("train", ["data=shapes"], {})
    for group, change in (
        ("model", {"_target_": RUNS, "args": {"command": "true"}}),
        ("callbacks", {"x": {"_target_": RUNS, "command": "true"}}),
        ("data", {"root": "http://10.0.0.1/x"}),
        ("data", {"batch_size": -1}),
    ):
        content = copy.deepcopy(sent)
        content["config"][group] |= change
        with pytest.raises(ConfigError):
            from_message(content, request)
    job = from_message({**sent, "messages": ["\x1b[2J"]}, request)
    assert job.messages == ("\\x1b[2J",)
