"""What a stored run means does not depend on the folder in which a command is typed, nor on what lies there today."""

import csv
import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from conftest import PROBES, SMALL, clean_environ, small_run, write_images
from helpers import forked_commands
from helpers.train_runs import probe, rows, start, wait_for

pytestmark = pytest.mark.slow


def typed(folder: Path, verb: str, *options: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Type a command in a folder."""
    done = forked_commands.run(
        f"imagenet_ddp.{verb}", *options, folder=folder, environment=clean_environ(), timeout_s=240
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture
def projects(tmp_path: Path) -> tuple[Path, Path]:
    """Two projects with data/, whose classes are exchanged, and a run of the first, trained with data.root=data."""
    for name, classes in (("a", ("cat", "dog")), ("b", ("dog", "cat"))):
        for split, count in (("train", 12), ("val", 5)):
            write_images(tmp_path / name / "data" / split, dict.fromkeys(classes, count), seed=count)
    typed(tmp_path / "a", "train", *SMALL, "trainer.max_epochs=4", "optim.lr=0.05", "data.root=data", "hydra.run.dir=r")
    return tmp_path / "a", tmp_path / "b"


def test_relative_paths_are_those_of_the_folder_in_which_the_run_was_started(projects: tuple[Path, Path]):
    a, b = projects
    best = "checkpoint=../a/r/checkpoints/best.ckpt"
    done = typed(b, "evaluate", best, "hydra.run.dir=e")
    assert f"on 10 validation images of 2 classes in {a}/data/val " in done.stdout
    own = typed(a, "evaluate", "checkpoint=r/checkpoints/best.ckpt", "hydra.run.dir=e")
    top1 = [json.loads((folder / "e/evaluation.json").read_text())["val/top1"] for folder in projects]
    assert top1[0] == top1[1]
    assert f"in {a}/data/val " in own.stdout
    # a path typed now is relative to the current folder
    assert f"in {b}/data/val " in typed(b, "evaluate", best, "data.root=data", "hydra.run.dir=e2").stdout

    done = typed(b, "train", "resume=../a/r", "trainer.max_epochs=5")
    assert f"in {a}/data/train." in done.stdout and "Changed: data.root" not in done.stdout
    done = typed(a, "train", "resume=r", "trainer.max_epochs=6")  # back in its own folder
    assert f"in {a}/data/train." in done.stdout

    done = typed(b, "export", best, "format=safetensors", "out=m.safetensors")
    assert f"validation images in {a}/data/val: probabilities" in done.stdout
    done = typed(b, "report", "../a/r")
    assert "thumbnail" not in done.stdout and "no longer" not in done.stdout
    assert (a / "r/report.html").read_text().count("data:image/jpeg") > 5
    rows = (a / "r/evaluation/predictions.csv").read_text()
    assert f"{a}/data/val/cat/000.jpg,cat" in rows
    typed(a, "report", "r")  # its evaluation was started in b
    assert (a / "r/report.html").read_text().count("data:image/jpeg") > 5


def test_a_moved_project_says_where_its_images_were_looked_for(projects: tuple[Path, Path], tmp_path: Path):
    projects[0].rename(tmp_path / "moved")
    done = typed(tmp_path, "evaluate", "checkpoint=moved/r/checkpoints/best.ckpt", code=2)
    assert "such as" not in done.stderr
    for options in (["evaluate", "checkpoint=r/checkpoints/best.ckpt"], ["train", "resume=r", "trainer.max_epochs=5"]):
        done = typed(tmp_path / "moved", *options, code=2)
        message = " ".join(done.stderr.split())
        assert f"started in {tmp_path}/a with data.root=data, but {tmp_path}/a/data does not exist" in message
        assert "such as data.root=data, if its images are there" in message
        done = typed(tmp_path / "moved", *options, "data.root=data")
        assert f"in {tmp_path}/moved/data/" in done.stdout
    typed(tmp_path, "predict", "checkpoint=moved/r/checkpoints/best.ckpt", "images=b/data/val")


def typed_line(folder: Path, line: str, code: int = 0) -> str:
    """Type a line that a command has printed, as a shell would read it."""
    words = shlex.split(line)
    verb = words[words.index("-m") + 1].removeprefix("imagenet_ddp.")
    done = forked_commands.run(
        f"imagenet_ddp.{verb}", *words[words.index("-m") + 2 :], folder=folder, timeout_s=240,
        environment=clean_environ(PYTHONPATH=PROBES),
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_printed_commands_run_as_typed(tree: Path, tmp_path: Path):
    """With a folder that a shell splits, a callback and a net of the user's own."""
    options = [*small_run("model._target_=block_net.BlockNet"), f"data.root={tree}", "hydra.run.dir='my run, 1'",
               "allow_targets=[probe,block_net]", "+callbacks.probe._target_=probe.Probe", "+callbacks.probe.folder=p",
               "+callbacks.probe.step=2", "+callbacks.probe.what=signal"]  # fmt: skip
    stopped = typed_line(tmp_path, f"python -m imagenet_ddp.train {' '.join(map(shlex.quote, options))}", 143)
    again = typed_line(tmp_path, stopped.partition("Continue with: ")[2].splitlines()[0], 143)
    line = again.partition("Continue with: ")[2].splitlines()[0]
    ended = typed_line(tmp_path, f"{line} ++callbacks.probe=null")
    report = ended.partition("Make a report: `")[2].partition("`")[0]
    line = typed_line(tmp_path, report, 1).partition("then `")[2].partition("`")[0]
    typed_line(tmp_path, f"{line} allow_targets=[block_net.BlockNet]")
    assert "could not be evaluated" not in typed_line(tmp_path, report)


def test_an_image_size_is_enough(trained: Path, tree: Path, tmp_path: Path):
    """The stored data.val_resize belongs to the stored size; the share of the image in the crop stays."""
    for size in (64, 16):
        typed(tmp_path, "evaluate", f"checkpoint={trained}", f"data.image_size={size}", f"hydra.run.dir={size}")
        assert f"  val_resize: {size}\n" in (tmp_path / f"{size}/config.yaml").read_text(encoding="utf-8")
    shutil.copytree(trained.parent.parent, tmp_path / "r")
    typed(tmp_path, "train", "resume=r", "data.image_size=40", "trainer.max_epochs=7")
    assert "  val_resize: 40\n" in (tmp_path / "r/config.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("lost", ["r", "r/checkpoints/best.ckpt"])
def test_a_folder_that_is_removed_during_the_training(lost: str, tree: Path, tmp_path: Path):
    """After the best epoch, whose weights cannot be written again."""
    options = [*SMALL, f"data.root={tree}", "hydra.run.dir=r", "trainer.max_epochs=30", "optim.lr=0.05",
               "data.augment=none"]  # fmt: skip
    process = start(tmp_path, *options, *probe(tmp_path / "seen", slow_s=0.02))
    wait_for(lambda: (tmp_path / "r/metrics.csv").exists() and rows(tmp_path / "r")[-1:])
    wait_for(lambda: float(rows(tmp_path / "r")[-1]["best/val/top1"]) == 1)
    wait_for(lambda: len(rows(tmp_path / "r")) > 1 and float(rows(tmp_path / "r")[-2]["best/val/top1"]) == 1)
    path = tmp_path / lost
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
    out, err = process.communicate(timeout=240)
    assert process.returncode == 1, out + err
    assert "must keep its files until the run ends, but" in err and "checkpoints/best.ckpt w" in err
    assert (tmp_path / "r/checkpoints/last.ckpt").exists() and (tmp_path / "r/config.yaml").exists()


def test_two_reports_at_once_share_one_evaluation(trained: Path, tmp_path: Path):
    shutil.copytree(trained.parent.parent, tmp_path / "r")
    both = [
        forked_commands.start(
            "imagenet_ddp.report", "r", f"out=o{n}", "maps=false", folder=tmp_path, environment=clean_environ()
        )
        for n in range(2)
    ]
    output = [process.communicate(timeout=240) for process in both]
    assert [process.returncode for process in both] == [0, 0], output
    assert sum("Evaluating" in err for _, err in output) == 1
    assert all((tmp_path / f"o{n}/report.html").read_bytes().count(b"data:image/jpeg") > 5 for n in range(2))


# ---- held-out images -------------------------------------------------------------------------------------------------

SHARE = ("data.root=grow", "data.train_dir=.", "data.val_fraction=0.25", "trainer.max_epochs=1", "hydra.run.dir=r")
BEST = "checkpoint=r/checkpoints/best.ckpt"


def scored(folder: Path) -> set[bytes]:
    with (folder / "predictions.csv").open(encoding="utf-8") as file:
        return {(folder.parent / row["path"]).read_bytes() for row in csv.DictReader(file)}


def test_images_stay_held_out_under_other_names_and_beside_others(tmp_path: Path):
    write_images(tmp_path / "grow", {"cat": 20, "dog": 20})
    typed(tmp_path, "train", *SMALL, *SHARE)
    done = typed(tmp_path, "evaluate", BEST, "hydra.run.dir=e0")
    assert "10 of 10 validation images (a share of the 40 images of grow, " in done.stdout
    assert "Left out" not in done.stdout
    held_out = scored(tmp_path / "e0")
    for path in list((tmp_path / "grow").glob("*/*.jpg")):
        path.rename(path.with_name(f"IMG_{path.name}"))
    done = typed(tmp_path, "evaluate", BEST, "hydra.run.dir=e1")
    assert scored(tmp_path / "e1") == held_out
    assert "Scored: the 10 that it held out, recognised by their content." in done.stdout
    assert "Left out: 30 images that it trained on, and 0 that its checkpoint does not list." in done.stdout
    assert "10 of 10 validation images (a share of the 40 images of grow, " in done.stdout

    write_images(tmp_path / "new", {"cat": 3, "dog": 3}, seed=9)
    for path in (tmp_path / "new").glob("*/*.jpg"):
        shutil.copy(path, tmp_path / "grow" / path.parent.name / f"more{path.name}")
    done = typed(tmp_path, "evaluate", BEST, "hydra.run.dir=e2")
    assert scored(tmp_path / "e2") == held_out
    assert "Left out: 30 images that it trained on, and 6 that its checkpoint does not list." in done.stdout
    done = typed(tmp_path, "export", BEST, "format=safetensors", "out=m.safetensors")
    assert "checkpoint on 10 validation images" in done.stdout
    done = typed(tmp_path, "report", "r")
    assert "Left out: 30 images that it trained on, and 6 that its checkpoint does not list." in done.stdout
    assert (tmp_path / "r/report.html").read_text(encoding="utf-8").count("data:image/jpeg") > 5

    shutil.copytree(tmp_path / "grow", tmp_path / "copy")  # another folder, in which all that it has not seen counts
    done = typed(tmp_path, "evaluate", BEST, "data.root=copy", "hydra.run.dir=e3")
    assert f"30 of the 46 images in {tmp_path}/copy are left out, because the checkpoint was trained on" in done.stdout
    assert held_out < scored(tmp_path / "e3") and len(scored(tmp_path / "e3")) == 16
    done = typed(tmp_path, "evaluate", BEST, "data.val_fraction=null", "data.val_dir=.", "hydra.run.dir=e4")
    assert f"30 of the 46 images in {tmp_path}/grow were trained on." in done.stdout
    assert "46 of 46 validation images" in done.stdout

    for path in (tmp_path / "grow").glob("*/*.jpg"):  # all of them edited and renamed: nothing is known of any
        path.write_bytes(path.read_bytes() + b"edited")
        path.rename(path.with_name(f"x{path.name}"))
    done = typed(tmp_path, "evaluate", BEST, code=2)
    assert "none of the 46" in done.stderr

    # weights of last week, of which some images are now held out, because all names are others
    shutil.rmtree(tmp_path / "grow")
    (tmp_path / "copy").rename(tmp_path / "grow")
    done = typed(tmp_path, "train", *SMALL, *SHARE[:-1], "model.weights=r/checkpoints/best.ckpt", "hydra.run.dir=r2")
    held_out = torch.load(tmp_path / "r2/checkpoints/last.ckpt", weights_only=True)["imagenet_ddp"]["image_keys"]
    trained = torch.load(tmp_path / "r/checkpoints/last.ckpt", weights_only=True)["imagenet_ddp"]["image_keys"]
    number = len(set(held_out["held_out"].tolist()) & set(trained["trained"].tolist()))
    assert number > 4
    assert f"best.ckpt was trained on {number} of the 12 validation images, so val top-1 is too high" in done.stdout


def test_an_earlier_checkpoint_says_that_it_cannot_tell(tmp_path: Path):
    write_images(tmp_path / "grow", {"cat": 8, "dog": 8})
    typed(tmp_path, "train", *SMALL, *SHARE)
    stored = torch.load(tmp_path / "r/checkpoints/best.ckpt", weights_only=True)
    del stored["imagenet_ddp"]["image_keys"], stored["imagenet_ddp"]["folder"]
    torch.save(stored, tmp_path / "r/checkpoints/best.ckpt")
    assert "4 of 4 validation images" in typed(tmp_path, "evaluate", BEST, "hydra.run.dir=e0").stdout
    write_images(tmp_path / "grow/dog", {"more": 4})
    done = typed(tmp_path, "evaluate", BEST, "hydra.run.dir=e1")
    assert "all 5 validation images may have been trained on" in done.stdout
