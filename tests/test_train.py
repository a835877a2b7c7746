"""python -m imagenet_ddp.train, evaluate: real processes, one to three ranks over Gloo."""

import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
from conftest import PROBES, SMALL, SMALL_DRAWN, Run, clean_environ, small_run, write_images
from helpers import forked_commands
from helpers.forked_commands import Command
from helpers.ports import free_port
from helpers.train_runs import assert_same_runs, probe, rows, seen, slow_disk, start, summary, wait_for


@pytest.mark.slow
def test_every_image_once_per_epoch_and_exact_evaluation(run: Run, tree: Path, tmp_path: Path) -> None:
    """29 and 11 images: neither the ranks nor the batch divide them."""
    ranks = 3
    options = [*SMALL, f"data.root={tree}", f"trainer.devices={ranks}", "hydra.run.dir=r", *probe(tmp_path / "seen")]
    options += ["optim.reference_batch=4", "optim.scaling=linear", "schedule.warmup_epochs=auto"]
    result = run("train", *options, PYTHONPATH=PROBES, code=0)
    assert "Warm-up: 0.2 epochs, because the learning rate is scaled up by a factor of 3; a tenth of" in result.stdout
    epochs = seen(tmp_path / "seen")
    assert {epoch: sorted(images) for epoch, images in epochs.items()} == {0: list(range(29)), 1: list(range(29))}
    assert epochs[0] != epochs[1], "each epoch has an order of its own"
    assert result.stdout.rstrip().endswith("11 of 11 validation images, each once.")
    assert "Warning" not in result.stdout + result.stderr
    found = summary(tmp_path / "r")
    assert (found["world_size"], found["num_train_images"], found["num_val_images"]) == (ranks, 29, 11)
    assert found["global_batch_size"] == 4 * ranks
    assert "val/top1" in found
    assert found["steps"] == 2 * -(-29 // (4 * ranks))
    assert sorted(path.name for path in (tmp_path / "r/logs").iterdir()) == [f"rank{rank}.log" for rank in range(ranks)]

    # from an epoch's first step to its last, no collective but the reducer's own, which is not called from Python
    lines = (tmp_path / "seen/collectives0.jsonl").read_text().splitlines()
    calls = [called for epoch, _, called in map(json.loads, lines) if epoch == 1]
    assert len(calls) > 1
    assert calls[0] == calls[-1], "Lightning alone broadcasts a flag in every step"
    assert calls[0], "between the epochs there are some: the count works"

    evaluated = {}
    checkpoint = f"checkpoint={tmp_path / 'r/checkpoints/last.ckpt'}"
    for world in {1, ranks}:
        result = run("evaluate", checkpoint, f"trainer.devices={world}", f"hydra.run.dir=e{world}", code=0)
        assert result.stdout.rstrip().endswith("11 of 11 validation images, each once.")
        evaluated[world] = json.loads((tmp_path / f"e{world}/evaluation.json").read_text())
        assert evaluated[world]["world_size"] == world
    for name in ("val/top1", "val/top5", "val/loss"):
        assert evaluated[ranks][name] == pytest.approx(evaluated[1][name], abs=1e-6)
        # and it is what training itself measured at its end
        assert evaluated[1][name] == pytest.approx(found[name], abs=1e-6)


@pytest.mark.slow
def test_same_seed_same_result_whatever_started_it(run: Run, tree: Path, tmp_path: Path) -> None:
    options = [*SMALL, f"data.root={tree}", "trainer.max_epochs=1"]
    threads = ["cluster.num_threads=2", *probe(tmp_path / "seen")]
    plain = run("train", *options, *threads, "trainer.devices=2", "hydra.run.dir=plain", PYTHONPATH=PROBES, code=0)
    assert "2 threads per process" in plain.stdout
    assert [json.loads(path.read_text())["threads"] for path in (tmp_path / "seen").glob("pid*.json")] == [2, 2]
    words = ["--nproc_per_node=2", "--standalone", "-m", "imagenet_ddp.train", *options, "cluster.num_threads=2"]
    result = forked_commands.run("torch.distributed.run", *words, folder=tmp_path, environment=clean_environ())
    assert result.returncode == 0, result.stdout + result.stderr
    (folder,) = (tmp_path / "runs/imagefolder_mobilenet_v2").iterdir()  # one, for both ranks
    assert str(folder.relative_to(tmp_path)) in result.stdout
    assert summary(folder)["world_size"] == 2
    assert_same_runs(tmp_path / "plain", folder)

    port = str(free_port())
    commands = [
        start(tmp_path, *options, "cluster.num_threads=2", "hydra.run.dir=env", RANK=rank, LOCAL_RANK=rank,
              WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        for rank in ("0", "1")
    ]  # fmt: skip
    for command in commands:
        out, err = command.communicate(timeout=240)
        assert command.returncode == 0, out + err
    assert_same_runs(tmp_path / "plain", tmp_path / "env")


@pytest.mark.slow
def test_a_stopped_run_goes_on_to_the_bit(run: Run, tree: Path, tmp_path: Path) -> None:
    """Stopped twice, in the middle of the second epoch and in the validation after it, with all that draws random
    numbers and an average of the weights."""
    ranks, parts = 2, tmp_path / "the parts"
    options = [
        *SMALL_DRAWN, f"data.root={tree}", f"trainer.devices={ranks}", "trainer.max_epochs=3",
        "data.augment=pad_crop", "data.policy=randaugment", "data.erasing=0.5", "data.blur=0.2",
        "data.mixup_alpha=0.4", "data.cutmix_alpha=1", "data.repeats=2", "averaging=ema", "averaging.decay=0.5",
    ]  # fmt: skip
    # the number of loader workers makes no difference, which is a part of the claim
    whole = tmp_path / "whole"
    run("train", *options, "hydra.run.dir=whole", *probe(tmp_path / "all"), PYTHONPATH=PROBES, code=0)
    images = seen(tmp_path / "all")[1]
    options.append("data.num_workers=1")
    steps = -(-29 // (4 * ranks))

    trouble = probe(tmp_path / "seen", what="signal", rank=ranks - 1, step=steps + 1, slow_s=0.5)
    result = run("train", *options, "hydra.run.dir=the parts", *trouble, PYTHONPATH=PROBES, code=143)
    (typed,) = re.findall(r"Continue with: python -m imagenet_ddp\.train (.*)", result.stderr)
    assert "Traceback" not in result.stderr
    before = seen(tmp_path / "seen")
    assert 0 < len(before[1]) < len(images), "in the middle of an epoch"
    by_rank = [path.read_text().count("\n") for path in (tmp_path / "seen").glob("seen*.jsonl")]
    assert len(set(by_rank)) == 1, "all ranks stopped at the same step"

    resume = shlex.split(typed)
    left = 2 * steps - by_rank[0]
    trouble = probe(tmp_path / "more", what="signal", step=left, in_validation=True, slow_s=0.3)
    run("train", *resume, *trouble, PYTHONPATH=PROBES, code=143)
    assert sorted(before[1] + seen(tmp_path / "more")[1]) == sorted(images), "the rest of the epoch, nothing twice"

    run("train", *resume, "callbacks=default", PYTHONPATH=PROBES, code=0)
    assert_same_runs(whole, parts)
    told = summary(parts)
    assert told["best/val/top1"] == summary(whole)["best/val/top1"]
    assert (
        "is finished: trainer.max_epochs=3 ended it after 3 epochs"
        in run("train", *resume, "callbacks=default", code=0).stdout
    )
    (parts / "summary.json").unlink()  # as if it had been killed before its end
    run("train", *resume, "callbacks=default", code=0)
    names = ("val/top1", "val/top5", "val/loss", "num_val_images", "best/val/top1", "best_epoch", "epochs", "steps")
    assert {name: summary(parts)[name] for name in names} == {name: told[name] for name in names}

    (parts / "summary.json").unlink()
    last = parts / "checkpoints/last.ckpt"
    last.write_bytes(last.read_bytes()[:-1000])
    again = run("train", *resume, "callbacks=default", code=0)
    assert "last.ckpt is damaged (" in again.stdout and "previous.ckpt" in again.stdout
    assert_same_runs(whole, parts)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("num_children", [0, 2])
def test_a_signal_while_it_starts_is_not_lost(tree: Path, tmp_path: Path, num_children: int) -> None:
    """Before the workers exist, or while they import."""
    process = start(
        tmp_path, *SMALL, f"data.root={tree}", "trainer.devices=2", "trainer.max_epochs=50", "hydra.run.dir=r",
        forked=False,
    )  # fmt: skip
    wait_for(lambda: handles(process.pid, signal.SIGTERM), process)
    wait_for(lambda: len(psutil.Process(process.pid).children()) >= num_children, process)
    os.kill(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 143, out + err
    assert "Traceback" not in err


def alive(pids: list[int]) -> list[int]:
    def lives(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    return [pid for pid in pids if lives(pid)]


def handles(pid: int, number: int) -> bool:
    caught = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").partition("SigCgt:\t")[2].split()[0]
    return bool(int(caught, 16) & 1 << (number - 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "whom", "ranks"),
    [(signal.SIGINT, "parent", 1), (signal.SIGTERM, "rank", 2)],
)
def test_a_stop_waits_for_no_disk(tree: Path, tmp_path: Path, number: int, whom: str, ranks: int) -> None:
    """One that hangs while its images are listed: there is nothing to save."""
    process = start(tmp_path, *SMALL, *slow_disk(tree, tmp_path, 600), f"trainer.devices={ranks}", "hydra.run.dir=r")
    wait_for(lambda: len(list(tmp_path.glob("mark.*"))) == ranks, process)
    time.sleep(0.3)
    pids = [int(path.suffix[1:]) for path in tmp_path.glob("mark.*")]
    os.kill(process.pid if whom == "parent" else pids[0], number)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 128 + number, out + err
    assert f"topped by {signal.Signals(number).name}" in err and "Traceback" not in err
    logged = "".join(log.read_text() for log in tmp_path.glob("r/logs/*"))
    assert f"Stopped by {signal.Signals(number).name}, with nothing to save yet." in logged
    wait_for(lambda: not alive(pids))


@pytest.mark.slow
def test_a_stop_that_asks_for_another_turn_waits_for_a_step(tree: Path, tmp_path: Path) -> None:
    process = start(tmp_path, *SMALL, *slow_disk(tree, tmp_path, 1), "hydra.run.dir=r")
    wait_for(lambda: any(tmp_path.glob("mark.*")), process)
    process.send_signal(signal.SIGUSR1)  # tests/slurm/ sends SIGUSR2
    out, err = process.communicate(timeout=240)
    assert process.returncode == 128 + signal.SIGUSR1, out + err
    assert "Stopped and saved after step 1, in epoch 1." in out


def test_a_root_that_is_probably_wrong_is_named_again_at_the_end(run: Run, tree: Path, tmp_path: Path) -> None:
    shutil.copytree(tree / "train", tmp_path / "all" / "photos")
    shutil.copytree(tree / "val" / "cat", tmp_path / "all" / "other")
    out = run("train", *SMALL, "data.root=all", "trainer.max_epochs=1", code=0).stdout
    begin, _, end = out.partition("epoch 1/1")
    words = "The images of the class photos are in its 3 sub-folders. Hint: set data.root=all/photos if"
    assert words in begin and words in end


@pytest.mark.slow
def test_resume_auto_and_what_may_not_change(run: Run, tree: Path, tmp_path: Path) -> None:
    tree = shutil.copytree(tree, tmp_path / tree.name)  # other tests use the images that are renamed here
    options = [*SMALL, f"data.root={tree}", "trainer.limit_train_batches=3"]
    result = run("train", *options, "experiment=quick", "resume=auto", "name=n", "trainer.max_epochs=1", code=0)
    assert "starting a new run, because runs/n has no unfinished one" in result.stdout
    (folder,) = (tmp_path / "runs/n").iterdir()
    result = run("train", *options, f"resume={folder}", "name=n", "trainer.max_epochs=2", code=0)
    assert "Changed: trainer.max_epochs was 1 and is now 2." in result.stdout
    assert [row["epoch"] for row in rows(folder)] == ["1", "2"]
    assert [path.name for path in (tmp_path / "runs/n").iterdir()] == [folder.name], "it went on in its own folder"
    assert summary(folder)["experiment"] == "quick", "as the first command said"
    assert summary(folder)["data"] == {"name": "imagefolder", "folder": tree.name}

    write_images(tmp_path / "other/train", {"cat": 3, "emu": 3})
    write_images(tmp_path / "other/val", {"cat": 1, "emu": 1})
    for typed, words in (
        (["hydra.run.dir=new"], ["because a resumed run continues in its own folder, got new"]),
        (["model.name=mobilenet_v3_small", "seed=3"],
         ["model.name was mobilenet_v2 and is now mobilenet_v3_small", "seed was 0 and is now 3"]),
        (["+model.args.dropout=0.5"],
         ["model.args.dropout was not set and is now 0.5, but a resumed run keeps its model, optimizer, data"]),
        (["data.root=other"], ["classes", "emu"]),
    ):  # fmt: skip
        result = run("train", f"resume={folder}", *typed, "trainer.max_epochs=4", code=2)
        assert all(each in " ".join(result.stderr.split()) for each in words), result.stderr
    assert not (tmp_path / "new").exists()
    image = next((tree / "train/cat").iterdir())
    image.rename(image.with_name("zzz.jpg"))  # as many images, in another order
    result = run("train", f"resume={folder}", "trainer.max_epochs=4", code=2)
    assert "or other names, labels or weights" in " ".join(result.stderr.split())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("number", "whom"),
    [(signal.SIGINT, "group"), (signal.SIGTERM, "everyone")],
)
def test_signals_from_outside(tree: Path, tmp_path: Path, number: int, whom: str) -> None:
    """Ctrl-C reaches the whole foreground group; service managers signal every process there is."""
    options = [*SMALL, f"data.root={tree}", "trainer.devices=2", "data.num_workers=1", "trainer.max_epochs=50"]
    process = start(tmp_path, *options, "hydra.run.dir=r", *probe(tmp_path / "seen", slow_s=0.05))
    wait_for(lambda: any((tmp_path / "seen").glob("seen0.jsonl")), process)
    pids = [process.pid, *(each.pid for each in psutil.Process(process.pid).children(recursive=True))]
    if whom == "group":
        os.killpg(process.pid, number)
    else:
        for pid in pids:
            os.kill(pid, number)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 128 + number, out + err
    assert "Stopped and saved after step" in out
    assert "Traceback" not in err
    wait_for(lambda: not alive(pids))
    assert torch.load(tmp_path / "r/checkpoints/last.ckpt", weights_only=True)["global_step"] > 0


@pytest.mark.slow
def test_the_third_ctrl_c_waits_for_no_step(tree: Path, tmp_path: Path) -> None:
    """The semaphores of its loader are removed without a warning."""
    options = [*SMALL, f"data.root={tree}", "data.num_workers=1", "hydra.run.dir=r"]
    process, sent = start(tmp_path, *options, *probe(tmp_path / "seen", slow_s=600)), 0
    wait_for(lambda: any((tmp_path / "seen").glob("seen0.jsonl")), process)
    while process.poll() is None and sent < 20:
        process.send_signal(signal.SIGINT)
        sent += 1
        time.sleep(0.7)
    _, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (130, "") and sent >= 3


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a new session takes its first terminal")
def test_a_closed_terminal_loses_no_epoch(tree: Path, tmp_path: Path) -> None:
    """The command receives SIGHUP, and can no longer write to the terminal."""
    ours, theirs = pty.openpty()
    options = [*SMALL, f"data.root={tree}", "trainer.devices=2", "trainer.max_epochs=50", "hydra.run.dir=r"]
    options += probe(tmp_path / "seen", slow_s=0.05)
    environment = clean_environ(PYTHONPATH=PROBES)
    process = Command("imagenet_ddp.train", *options, folder=tmp_path, environment=environment, terminal=theirs)
    os.close(theirs)
    threading.Thread(target=drain, args=(ours, tmp_path / "terminal"), daemon=True).start()
    wait_for(lambda: any((tmp_path / "seen").glob("seen0.jsonl")), process)
    pids = [process.pid, *(each.pid for each in psutil.Process(process.pid).children(recursive=True))]
    (tmp_path / "terminal").touch()
    assert process.wait(240) == 129
    assert torch.load(tmp_path / "r/checkpoints/last.ckpt", weights_only=True)["global_step"] > 0
    wait_for(lambda: not alive(pids))


def drain(terminal: int, is_closed: Path) -> None:
    """Read what is written to a terminal, and close it when the file exists."""
    while not is_closed.exists():
        if select.select([terminal], [], [], 0.05)[0]:
            os.read(terminal, 4096)
    os.close(terminal)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a worker learns of its parent's death by prctl")
def test_a_parent_that_is_killed_takes_its_workers_along(tree: Path, tmp_path: Path) -> None:
    """As from a shell without OMP_NUM_THREADS, for which Lightning's launcher would set a number of its own."""
    options = [*SMALL, f"data.root={tree}", "trainer.devices=2", "trainer.max_epochs=50", "hydra.run.dir=r"]
    options += ["cluster.num_threads=2", *probe(tmp_path / "seen", slow_s=0.05)]
    environment = clean_environ(PYTHONPATH=PROBES, OMP_NUM_THREADS=None)
    process = Command("imagenet_ddp.train", *options, folder=tmp_path, environment=environment)
    wait_for(lambda: any((tmp_path / "seen").glob("seen0.jsonl")), process)
    assert [json.loads(path.read_text())["threads"] for path in (tmp_path / "seen").glob("pid*.json")] == [2, 2]
    pids = [each.pid for each in psutil.Process(process.pid).children(recursive=True)]
    process.kill()
    process.communicate(timeout=30)
    wait_for(lambda: not alive(pids))


@pytest.mark.slow
def test_class_folders_alone_are_split_and_evaluated_on_the_same_share(run: Run, tree: Path, tmp_path: Path) -> None:
    """Two jobs, because Hydra composes those of a sweep on its own. The checkpoint keeps the transform."""
    options = [*small_run("model.name=resnet18"), "data.root=photos", "trainer.max_epochs=1", "data.fit=pad",
               "data.val_mirror=true", "hydra.sweep.dir=r"]  # fmt: skip
    options.remove("data.val_resize=32")
    (tmp_path / "photos").symlink_to(tree / "train")
    result = run("train", "-m", "seed=0,1", *options, code=0)
    assert result.stdout.count("20 % of each class of photos is kept for validation.") == 2

    def evaluated(job: str, *typed: str) -> float:
        folder = tmp_path / f"e{job}{len(typed)}"
        run("evaluate", f"checkpoint=r/{job}/checkpoints/last.ckpt", *typed, f"hydra.run.dir={folder}", code=0)
        found = json.loads((folder / "evaluation.json").read_text())
        assert found["num_val_images"] == 6  # 2 of each class
        return found["val/loss"]

    validated = [float(rows(tmp_path / "r" / job)[-1]["val/loss"]) for job in "01"]
    assert [evaluated(job) for job in "01"] == pytest.approx(validated, rel=1e-6)
    assert evaluated("0", "data.val_mirror=false") != pytest.approx(validated[0], rel=1e-6)
