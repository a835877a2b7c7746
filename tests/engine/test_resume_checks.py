import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from conftest import PROBES, Run, small_run, write_images
from helpers import logged

from imagenet_ddp.config.schema.commands import CommonConfig
from imagenet_ddp.config.section import to_config, to_plain
from imagenet_ddp.engine.job import Job
from imagenet_ddp.engine.resume_checks import is_over, require_same_data
from imagenet_ddp.errors import ConfigError


def test_a_resumed_run_needs_what_reads_its_position(tmp_path: Path) -> None:
    """With callbacks.checkpoint=null the rest of the epoch would be trained on its first images again."""
    parts = cast(Any, SimpleNamespace(checkpoint_callback=None))
    with pytest.raises(ConfigError, match=r"callbacks.checkpoint must be set to resume .*last.ckpt"):
        require_same_data(parts, tmp_path / "last.ckpt", 3, tmp_path)


def test_what_a_callback_had_ended_is_over_unless_its_end_has_changed(tmp_path: Path) -> None:
    config = to_plain(to_config({"callbacks": {"stop": {"patience": 1}}, "trainer": {"max_epochs": 9}}, CommonConfig))
    stored: dict[str, Any] = {"config": config, "has_ended": False}

    def over(**changed: dict) -> bool:
        return is_over(Job(to_config({**config, **changed}, CommonConfig), tmp_path, tmp_path / "last.ckpt"), stored)

    assert not over(), "written before the end"
    stored["has_ended"] = True
    assert over() and over(optim={"lr": 0.2})
    assert not over(callbacks={"stop": None}) and not over(trainer={"max_epochs": 20})


# A net without batch norm and without randomness: its weights do not depend on how an update's images are split.
PLAIN = (*small_run("model.name=squeezenet1_1", "+model.args.dropout=0"), "trainer.max_epochs=3", "logger=csv",
         "trainer.log_every_n_steps=1", "optim.lr=0.05", "allow_targets=[probe]",
         "+callbacks.probe._target_=probe.Probe")  # fmt: skip


def test_another_number_of_ranks_keeps_the_update(run: Run, tmp_path: Path) -> None:
    """2 ranks, then 1, then 2 again, each stopped within an epoch: as if 2 ranks had trained without a stop."""
    write_images(tmp_path / "images/train", {"cat": 20, "dog": 12})
    write_images(tmp_path / "images/val", {"cat": 5, "dog": 4})
    options = [*PLAIN, f"data.root={tmp_path}/images"]

    def train(*more: str, code: int = 0) -> str:
        done = run("train", *options, *more, PYTHONPATH=PROBES)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    train("trainer.devices=2", "hydra.run.dir=whole", "+callbacks.probe.folder=p0")
    again = ["hydra.run.dir=r", "resume=auto", "+callbacks.probe.what=signal"]
    train(*again, "trainer.devices=2", "+callbacks.probe.folder=p1", "+callbacks.probe.step=2", code=143)
    # 4 forwards to the end of the first epoch; the second is left after 4, where the update is complete
    out = train(*again, "trainer.devices=1", "+callbacks.probe.folder=p2", "+callbacks.probe.step=7", code=143)
    assert "Batch: 4 per device × 1 device × 1 node × 2 accumulation = 8 images per step." in out
    assert "Reason for this batch: it keeps the 8 images per step from before the resume." in out
    out = train(*again, "trainer.devices=2", "+callbacks.probe.folder=p3")
    assert "Batch: 4 per device × 2 devices × 1 node × 1 accumulation = 8 images per step." in out
    assert "This batch" not in out

    counts: dict[int, Counter[int]] = {epoch: Counter() for epoch in range(3)}
    for path in tmp_path.glob("p[123]/seen*.jsonl"):
        for line in path.read_text().splitlines():
            epoch, _, images = json.loads(line)
            counts[epoch].update(images)
    assert counts == {epoch: Counter(range(32)) for epoch in range(3)}
    whole, parts = (
        torch.load(tmp_path / f"{name}/checkpoints/last.ckpt", weights_only=True) for name in ("whole", "r")
    )
    assert whole["global_step"] == parts["global_step"] == 12
    for name, weights in whole["state_dict"].items():
        torch.testing.assert_close(parts["state_dict"][name], weights, rtol=0, atol=1e-5)
    rates = [dict(logged.of_csv(tmp_path / name)["lr"]) for name in ("whole", "r")]
    assert rates[0] == pytest.approx(rates[1])
    assert len(rates[0]) == 12
    told = json.loads((tmp_path / "r/summary.json").read_text())
    assert told["global_batch_size"] == 8
    assert told["plan"]["batch"]["value"] == {"images_per_device": 4, "accumulation": 1}

    # what the command sets differently, it gets
    more = [
        "resume=r",
        "trainer.max_epochs=4",
        "+callbacks.probe.step=99",
        "trainer.devices=1",
        "data.batch_size=2",
        "+callbacks.probe.folder=p4",
    ]
    assert "The batch changed from 8 to 2 images per step (as set)" in train(*more)

    parts["callbacks"]["History"] = {"other": 1}
    torch.save(parts, tmp_path / "other.ckpt")
    done = run("train", "resume=other.ckpt", "trainer.max_epochs=9", "callbacks=default", PYTHONPATH=PROBES)
    assert done.returncode == 2
    assert "other.ckpt must be a checkpoint that this run can continue from, but" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr and "KeyError, 'rows'" in done.stderr
