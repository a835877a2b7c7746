"""Which run folders are found, and in which order."""

from pathlib import Path

from imagenet_ddp.report.run import find_runs


def mark(folder: Path, name: str = "metrics.csv") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).touch()
    return folder


def test_a_run_and_all_runs_below_in_natural_order(tmp_path: Path):
    made = [mark(tmp_path / "sweep" / str(number)) for number in range(12)]
    made += [mark(tmp_path / "study/trials/3", "config.yaml"), mark(tmp_path / "z", "summary.json")]
    assert find_runs(made[3]) == [made[3]]
    assert find_runs(tmp_path / "sweep") == made[:12]
    found = find_runs(tmp_path)
    assert found == [made[12], *made[:12], made[13]]


def test_subfolders_of_a_run_and_links_are_not_entered(tmp_path: Path):
    run = mark(tmp_path / "run")
    for name in ("checkpoints", "logs", ".hydra", "csv", "evaluation"):
        mark(run / name)
    (tmp_path / "latest").symlink_to(run)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "config.yaml").mkdir()  # a folder of that name marks nothing
    assert find_runs(tmp_path) == [run]
    assert find_runs(tmp_path / "latest") == [run], "a link that is named is followed"
