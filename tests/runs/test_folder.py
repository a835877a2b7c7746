"""Run folders: made once, found again."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from imagenet_ddp.distributed.spawn import WorkersFailedError
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs import folder
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.runs.folder import is_locked, lock, make_given, make_new, remove_refused


def test_many_at_once_have_one_each(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: make_new(tmp_path / "runs/n/12-00-00"), range(20)))
    assert len(set(folders)) == 20
    assert all(folder.is_dir() for folder in folders)


def test_a_named_folder_is_free_until_it_holds_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, header = tmp_path / "mine", "epoch,step\n"
    (folder / "checkpoints").mkdir(parents=True)
    for name in ("notes.txt", "config.yaml", "logger_wandb.json"):  # of a run that ended before its first epoch
        (folder / name).touch()
    (folder / "metrics.csv").write_text(header)
    assert make_given(folder) == folder
    for name in ("checkpoints/last.ckpt", "checkpoints/mine/epoch=1.ckpt", "summary.json", "metrics.csv"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"{header}1,8\n")
        with pytest.raises(
            ConfigError, match=r"^hydra\.run\.dir=\S+ must .* holds a run\. Hint: set hydra\.run\.dir=\S+2"
        ):
            make_given(folder)
        assert make_given(folder, again=True) == folder
        with monkeypatch.context() as inside:
            inside.chdir(folder)
            with pytest.raises(ConfigError, match=rf"Hint: set hydra\.run\.dir={folder}2"):
                make_given(Path())
        (folder / name).unlink()


def test_a_refusal_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = make_new(Path("runs/n/1"))
    (folder / "logs").mkdir()
    (folder / "logs/rank0.log").touch()
    remove_refused(folder.resolve(), WorkersFailedError(1))
    assert folder.is_dir(), "failed, not refused"
    remove_refused(folder, ConfigError("x"))
    assert list(tmp_path.iterdir()) == []
    make_new(Path("runs/n/1"))
    remove_refused(make_new(Path("runs/n/2")).resolve(), WorkersFailedError(2))
    assert [path.name for path in (tmp_path / "runs/n").iterdir()] == ["1"]


def test_one_training_at_a_time_in_a_folder(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    assert list(tmp_path.iterdir()) == [], "asking makes nothing"
    with lock(tmp_path):
        assert is_locked(tmp_path)
        with pytest.raises(ConfigError, match="another process trains in it") as caught:
            lock(tmp_path)
        remove_refused(tmp_path, caught.value)
        assert is_locked(tmp_path), "the folder of the process that trains there stays, also before it has written"
    assert not is_locked(tmp_path)
    with pytest.raises(ConfigError, match="must be a writable folder, but is not: no such file"):
        lock(tmp_path / "gone")
    lock(tmp_path).close()


def test_each_run_of_one_job_finds_its_own_folder(tmp_path: Path) -> None:
    """A batch script of three commands, which SLURM starts again."""
    wanted, runs = tmp_path / "slurm_4", (["optim.lr=0.1"], ["optim.lr=0.2"], ["optim.lr=0.2"])
    made = [folder.make_new(wanted, options=options) for options in runs]
    assert [path.name for path in made] == ["slurm_4", "slurm_4-1", "slurm_4-2"]
    (made[1] / "later").touch()
    assert folder.make_new(wanted, again=True, options=runs[0]) == made[0]
    assert folder.make_new(wanted, again=True, options=runs[1]) in made[1:]
    assert folder.made_for(wanted, ["optim.lr=0.3"]) is None
    for other in ("{", "3", "[1]", "[" * 100_000, "\0"):
        (made[0] / folder.MADE_FOR).write_text(other)
        assert folder.options_of(made[0]) is None and folder.made_for(wanted, runs[0]) is None
    for path in made:
        folder.remove_refused(path, ConfigError(""))
    assert not made[0].exists() and made[1].exists()


def test_a_refused_run_leaves_no_link_to_another_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the link, the folder would look like that of a run, and refuse the corrected command."""
    monkeypatch.chdir(tmp_path)
    made = make_given(Path("r"))
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/mine.ckpt").touch()
    CheckpointStore.of_run(made).place(tmp_path / "disk")
    remove_refused(made, ConfigError("no room"))
    assert not made.exists()
    assert (tmp_path / "disk/mine.ckpt").exists()
