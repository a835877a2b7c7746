"""The images are looked at once, by the command, and not again by the processes that it starts."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL

from imagenet_ddp.cli import parse
from imagenet_ddp.config.schema.run import RunConfig
from imagenet_ddp.config.section import typed_config
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.launch.job import Job
from imagenet_ddp.launch.processes import run_ranks


def open_without_listing(place: Place, job: Job, facts: Any) -> int:
    def refuse(path: Any) -> Any:
        raise AssertionError(f"{path} is listed again")

    os.scandir = refuse
    train = open_source(job.config.data, job.config.seed, found=job.scan).train
    return -1 if train is None else len(train)


def test_each_folder_is_listed_once(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    listed, scandir = Counter[str](), os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (listed.update([os.path.normpath(path)]), scandir(path))[1])
    options = [*SMALL, f"data.root={tree}", "trainer.accelerator=cpu"]
    request = parse.command_line("train", options, {"HOME": str(tmp_path)})
    below = {path: number for path, number in listed.items() if path.startswith(str(tree))}
    folders = {str(tree / split / name) for split in ("train", "val") for name in ("", "cat", "dog", "owl")}
    assert below == dict.fromkeys(map(os.path.normpath, folders), 1)
    config = typed_config(request.config, RunConfig)
    job = Job(config, tmp_path, scan=request.scan)
    assert run_ranks(open_without_listing, job, config, Place(is_node=True), None, own_processes=True) == 29


def test_options_that_the_checks_refuse_list_no_class_twice(tree: Path):
    """An image of each class is enough to find the other mistakes."""
    with pytest.raises(parse.RefusedError) as caught:
        parse.command_line("train", [*SMALL, f"data.root={tree}", "data.val_fraction=2"], {})
    assert {key for mistake in caught.value.mistakes for key in mistake.keys} >= {"data.val_fraction"}
    assert caught.value.request.scan is None
