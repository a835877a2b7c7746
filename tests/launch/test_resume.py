"""Which run a command continues, and what may differ from it."""

import json
import os
import shutil
import signal
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from conftest import PROBES, SMALL, Run, clean_environ, small_run, write_images
from helpers import logged
from helpers.hints import options_of
from helpers.train_runs import probe, start, wait_for
from omegaconf import OmegaConf

from imagenet_ddp.config.schema.distributed import ClusterConfig
from imagenet_ddp.config.schema.run import RunConfig
from imagenet_ddp.config.section import to_config
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch.job import Job, after_loss, after_stop
from imagenet_ddp.launch.resume import Earlier, changes, find_earlier, is_finished, way_to_continue
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.runs.folder import new_folder

TRAINER = {"max_epochs": 2, "max_steps": -1, "max_time": None}


def saved(folder: Path, age: int, epochs: int | None, *options: str) -> Path:
    """Make a run folder with a checkpoint. epochs: None: not finished. Higher age: older. options: as typed."""
    new_folder(folder, is_typed=True, options=options, can_resume=True)
    checkpoint = CheckpointStore.of_run(folder).last
    checkpoint.parent.mkdir(parents=True)
    torch.save({"age": age}, checkpoint)
    os.utime(checkpoint, (1_000_000 - age, 1_000_000 - age))
    if epochs is not None:
        (folder / "summary.json").write_text(json.dumps({"finished": True, "epochs": epochs, "steps": 5}))
    return checkpoint


def find(wanted: Path, option: Path | str | None, *options: str, typed: bool = False, again: bool = False) -> Earlier:
    request: Any = SimpleNamespace(
        config=OmegaConf.create({"resume": option and str(option)}), again=again,
        hydra=OmegaConf.create({"run": {"dir": str(wanted)}}),
        typed=[*options], names_folder=typed,
    )  # fmt: skip
    return find_earlier(request, {}, None)


def test_auto_is_the_newest_unfinished_run(tmp_path: Path) -> None:
    runs, wanted = tmp_path / "runs/n", tmp_path / "runs/n/new"
    assert "has no unfinished one" in find(wanted, "auto").sentence
    done = saved(runs / "a", 1, 3)
    assert "has no unfinished one" in find(wanted, "auto").sentence
    saved(runs / "b", 30, None)
    newer = saved(runs / "c", 20, None)
    found = find(wanted, "auto")
    assert (found.run_dir, found.checkpoint) == (runs / "c", newer)
    assert "the newest unfinished run" in found.sentence
    assert find(runs / "a", "auto", typed=True).checkpoint == done
    assert find(tmp_path / "new", "auto", typed=True).checkpoint is None


def test_auto_continues_only_a_run_of_the_same_options(tmp_path: Path) -> None:
    """But for those that say where it runs, in any order."""
    runs, wanted = tmp_path / "runs/n", tmp_path / "runs/n/new"
    saved(runs / "a", 30, None, "optim.lr=0.01", "name=n", "trainer.devices=2")
    saved(runs / "b", 20, None, "optim.lr=0.02", "name=n")
    assert find(wanted, "auto", "name=n", "optim.lr=0.01", "resume=auto").run_dir == runs / "a"
    assert find(wanted, "auto", "name=n", "optim.lr=0.02", "cluster.timeout_s=3").run_dir == runs / "b"
    found = find(wanted, "auto", "name=n", "optim.lr=0.03")
    assert found.run_dir is None
    assert f"{runs}/b (optim.lr=0.02), {runs}/a (optim.lr=0.01)" in found.sentence
    assert find(wanted, "auto", "optim.lr=0.02", "name=n", "optim.lr=0.01").run_dir == runs / "a"  # the last counts
    assert f"{runs}/b (without seed=3)" in find(wanted, "auto", "name=n", "optim.lr=0.02", "seed=3").sentence
    assert f"To continue one, set resume={runs}/b." in found.sentence
    (runs / "b/.made_for").unlink()  # of an earlier version
    assert find(wanted, "auto", "name=n", "optim.lr=0.02").run_dir is None


def test_a_restarted_job_and_a_path(tmp_path: Path) -> None:
    assert find(tmp_path / "r", None, typed=True, again=True) == Earlier()
    last = saved(tmp_path / "r", 0, None)
    found = find(tmp_path / "r", None, typed=True, again=True)
    assert found == Earlier(tmp_path / "r", last, f"Restarted: continuing from {last}.")
    for asked in (tmp_path / "r", last):
        found = find(tmp_path / "new", asked)
        assert (found.run_dir, found.checkpoint) == (tmp_path / "r", last)
    with pytest.raises(ConfigError, match="is not a file"):
        find(tmp_path / "new", tmp_path)


PATIENCE, TIME = "callbacks.early_stopping.patience", "00:00:00:10"


@pytest.mark.parametrize(
    ("ended_by", "before", "now", "finished"),
    [
        ("trainer.max_epochs", {}, {}, True),
        ("trainer.max_epochs", {}, {"trainer.max_epochs": 3}, False),
        ("trainer.max_epochs", {}, {"trainer.max_time": "00:01:00:00"}, True),
        ("trainer.max_steps", {"trainer.max_epochs": 9, "trainer.max_steps": 5}, {"trainer.max_epochs": 10}, True),
        ("trainer.max_steps", {"trainer.max_epochs": 9, "trainer.max_steps": 5}, {"trainer.max_steps": -1}, False),
        ("trainer.max_time", {"trainer.max_epochs": 9, "trainer.max_time": TIME}, {"trainer.max_epochs": 10}, True),
        ("trainer.max_time", {"trainer.max_epochs": 9, "trainer.max_time": TIME}, {"trainer.max_time": None}, False),
        (PATIENCE, {"trainer.max_epochs": 9, PATIENCE: 1}, {"callbacks.progress._target_": "x.Y"}, True),
        (PATIENCE, {"trainer.max_epochs": 9, PATIENCE: 1}, {PATIENCE: 3}, False),
        ("budget_min", {"trainer.max_epochs": 9, "budget_min": 1.0}, {"trainer.max_epochs": 10}, False),
        ("callbacks", {"trainer.max_epochs": 9}, {"callbacks.mine._target_": "x.Y"}, False),
    ],
)
def test_a_finished_run_is_prolonged_by_what_ended_it(
    ended_by: str, before: dict[str, Any], now: dict[str, Any], finished: bool, tmp_path: Path
) -> None:
    """And the message names that option, with a value that prolongs it."""
    saved(tmp_path, 0, 2)
    summary = {"finished": True, "epochs": 2, "steps": 5, "ended_by": ended_by}
    (tmp_path / "summary.json").write_text(json.dumps(summary))

    def plain(options: dict[str, Any]) -> dict[str, Any]:
        nested = OmegaConf.create({"trainer": TRAINER})
        for key, value in options.items():
            OmegaConf.update(nested, key, value)
        return OmegaConf.to_container(nested)  # type: ignore[return-value]

    def is_over(options: dict[str, Any]) -> bool:
        return is_finished(
            tmp_path, to_config(plain(options), RunConfig), changes(plain(before), plain(before | options))
        )

    assert is_over(before | now) == finished
    to_set = options_of(way_to_continue(tmp_path, plain(before)))
    assert (to_set == []) == (ended_by == "callbacks")
    for key, _, value in (option.partition("=") for option in to_set):
        assert key == ended_by
        assert not is_over(before | {key: parse(value)})
    (tmp_path / "summary.json").unlink()
    assert not is_over(before | now)


@pytest.mark.parametrize("ended_by", ["trainer.max_steps", "trainer.max_time", PATIENCE, "budget_min", "callbacks"])
def test_a_limit_that_a_finished_run_has_reached_is_named_after_what_ended_it_was_changed(
    ended_by: str, tmp_path: Path
) -> None:
    saved(tmp_path, 0, 2)
    summary = {"finished": True, "epochs": 2, "steps": 5, "ended_by": ended_by}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    text = way_to_continue(tmp_path, {"trainer": {**TRAINER, "max_steps": 9}})
    assert "trainer.max_epochs=2 ended it after 2 epochs and 5 steps. Hint: set trainer.max_epochs=4 " in text


def parse(text: str) -> Any:
    return text if ":" in text else yaml.safe_load(text)


def test_only_a_run_that_can_resume_is_requeued(tmp_path: Path, scontrol: Any, capsys: Any) -> None:
    def stopped(number: int, *, requeue: bool = True, restarts: int = 0, preempted: str = "None") -> tuple[bool, str]:
        """Whether SLURM starts the job again, and which of the two things is said."""
        scontrol(f"JobId=7 JobState=RUNNING Restarts={restarts} PreemptTime={preempted}")
        job = Job(RunConfig(cluster=ClusterConfig(requeue=requeue)), tmp_path)
        again = after_stop(job, Place(), number, {"SLURM_JOB_ID": "7"})
        said = "".join(capsys.readouterr())
        return again, " and ".join(word for word in ("Asking SLURM", "Continue with") if word in said)

    now = "2026-11-30T05:24:43"
    assert stopped(signal.SIGUSR2) == (False, "")  # it would start over
    assert stopped(signal.SIGTERM, preempted=now) == (True, "Asking SLURM")  # as SLURM itself does without GraceTime
    store = CheckpointStore.of_run(tmp_path)
    store.place(tmp_path / "disk")
    store.last.touch()
    assert stopped(signal.SIGUSR2) == stopped(signal.SIGUSR1) == (True, "Asking SLURM")
    assert stopped(signal.SIGTERM) == stopped(signal.SIGINT, preempted=now) == (False, "Continue with")
    assert stopped(signal.SIGUSR2, requeue=False) == (False, "Continue with")
    assert stopped(signal.SIGTERM, restarts=1) == (True, "")  # SLURM has requeued it
    scontrol("JobId=7 JobState=RUNNING Restarts=0", 1, "Job is held")
    assert not after_stop(Job(RunConfig(), tmp_path), Place(), signal.SIGUSR2, {"SLURM_JOB_ID": "7"})
    assert "does not requeue job 7: Job is held.\nContinue with: " in capsys.readouterr().err
    assert not after_stop(Job(RunConfig(), tmp_path), Place(), signal.SIGUSR2, {})
    capsys.readouterr()
    for restarts in (1, 0):  # the rank of a node that failed, for which SLURM has requeued the job or has not
        scontrol(f"JobId=7 JobState=RUNNING Restarts={restarts}")
        after_loss(Job(RunConfig(), tmp_path), Place(), {"SLURM_JOB_ID": "7"})
        assert ("Continue with: " in capsys.readouterr().err) == (restarts == 0)


# ---- checkpoints on another disk -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_run_continues_from_its_checkpoints_on_another_disk(run: Run, tree: Path, tmp_path: Path) -> None:
    """SIGKILL, then resume=; a launcher's restart; evaluate; a second run in the same place is refused."""
    where, done = "+callbacks.checkpoint.dirpath=disk/mine", tmp_path / "disk/mine"
    options = [*SMALL, f"data.root={tree}", "name=n", where]
    process = start(tmp_path, *options, "trainer.max_epochs=99", *probe(tmp_path / "seen", slow_s=0.05))
    wait_for(lambda: (done / "previous.ckpt").exists())
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    (folder,) = (tmp_path / "runs/n").iterdir()
    assert (folder / "checkpoints").resolve() == done
    epoch = torch.load(done / "last.ckpt", weights_only=True)["epoch"]

    more = [*options, "++callbacks.probe=null", f"trainer.max_epochs={epoch + 2}"]
    again = run("train", *more, f"resume={Path('runs/n', folder.name)}", PYTHONPATH=PROBES, code=0)
    assert f"Resuming from {Path('runs/n', folder.name)}/checkpoints/last.ckpt" in again.stdout
    assert torch.load(done / "last.ckpt", weights_only=True)["epoch"] == epoch + 1

    more[-1] = f"trainer.max_epochs={epoch + 3}"
    again = run("train", *more, f"hydra.run.dir={folder}", **clean_environ(SLURM_RESTART_COUNT="1"))
    assert again.returncode == 0 and "Restarted: continuing from" in again.stdout, again.stdout + again.stderr
    assert {path.name for path in done.iterdir()} == {"last.ckpt", "previous.ckpt", "best.ckpt"}

    shutil.copy(done / "last.ckpt", tmp_path / "x.ckpt")
    ended = run("train", "resume=x.ckpt", "hydra.run.dir=x", "++callbacks.checkpoint.dirpath=x.d", code=0)
    assert "No epoch was left to train" in ended.stdout

    run("evaluate", f"checkpoint={folder}/checkpoints/best.ckpt", "hydra.run.dir=e", code=0)
    none = run("evaluate", "checkpoint=x.ckpt", "trainer.limit_val_batches=0", "hydra.run.dir=e0", code=2)
    assert "limit_val_batches must be more than 0" in none.stderr

    moved = run("train", f"resume={folder}", "++callbacks.checkpoint.dirpath=disk/other", "trainer.max_epochs=999")
    assert moved.returncode == 2 and "dirpath must be a folder for the" in moved.stderr
    other = run("train", *options, "hydra.run.dir=runs/n/other")
    assert other.returncode == 2 and "dirpath must be a folder for the" in other.stderr
    assert not (tmp_path / "runs/n/other").exists()


# A net without batch norm and without randomness: its weights do not depend on how an update's images are split.
PLAIN = (*small_run("model.name=squeezenet1_1", "+model.args.dropout=0"), "trainer.max_epochs=3", "logger=csv",
         "trainer.log_every_n_steps=1", "optim.lr=0.05", "allow_targets=[probe.Probe]",
         "+callbacks.probe._target_=probe.Probe")  # fmt: skip


@pytest.mark.slow
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
    again = ["hydra.run.dir=r", "resume=auto", "+callbacks.probe.what=signal_and_error"]
    train(*again, "trainer.devices=2", "+callbacks.probe.folder=p1", "+callbacks.probe.step=2", code=143)
    # 4 forwards to the end of the first epoch; the second is left after 4, where the update is complete
    out = train(*again, "trainer.devices=1", "+callbacks.probe.folder=p2", "+callbacks.probe.step=7", code=143)
    assert "Batch: 4 per device × 1 device × 1 node × 2 accumulation = 8 images per update." in out
    assert "Reason for this batch: it keeps the 8 images per update from before the resume." in out
    out = train(*again, "trainer.devices=2", "+callbacks.probe.folder=p3")
    assert "Batch: 4 per device × 2 devices × 1 node × 1 accumulation = 8 images per update." in out
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
    more = ["resume=r", "trainer.max_epochs=4", "+callbacks.probe.step=99", "trainer.devices=1", "data.batch_size=2"]
    assert "The batch changed from 8 to 2 images per update (as set)" in train(*more, "+callbacks.probe.folder=p4")


def test_a_finished_probe_names_what_trains_the_whole_net(tmp_path: Path) -> None:
    saved(tmp_path, 0, 0)
    (tmp_path / "summary.json").write_text(json.dumps({"finished": True, "epochs": 0, "steps": 0}))
    text = way_to_continue(tmp_path, {"trainer": {"max_epochs": 0}})
    assert "trainer.max_epochs=0 ended it" in text and "new run with experiment=finetune" in text
