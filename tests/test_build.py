from pathlib import Path

import pytest
from conftest import write_images

from imagenet_ddp.build import World, make_data
from imagenet_ddp.check import command_line
from imagenet_ddp.distributed.facts import differences
from imagenet_ddp.distributed.place import Place


def test_ranks_that_list_other_images_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each rank walks the folders itself: as many images under other names would be another order."""
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "train", {"cat": 2, "dog": 2})
    write_images(tmp_path / "val", {"cat": 1, "dog": 1})
    config = command_line("train", ["data=imagefolder", f"data.root={tmp_path}", "trainer.accelerator=cpu"], {})
    found = []
    monkeypatch.setattr(World, "compare", lambda world, key, facts, timeout_s: found.append(facts))

    def facts():
        make_data(config.configs[0], World(Place()), print)
        return found[-1]

    first = facts()
    assert differences([first, facts()], "rank") == []
    next((tmp_path / "train" / "cat").iterdir()).rename(tmp_path / "train" / "cat" / "renamed.png")
    (mistake,) = differences([first, facts()], "rank")
    assert mistake.startswith("the ranks disagree on the names of the images: ")
