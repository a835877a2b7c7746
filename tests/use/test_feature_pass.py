"""The pass over photographs: its file, what is reused, several processes, and the probe that starts from it."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from conftest import SMALL, SMALL_ARGS, Run, write_images
from PIL import Image
from torch import Tensor, nn

from imagenet_ddp.cli.other_command import REASON
from imagenet_ddp.config.schema.learning import ModelConfig
from imagenet_ddp.curation.features import Features, read_features, write_features
from imagenet_ddp.curation.unknown import read as read_reference
from imagenet_ddp.data.module import ImageDataModule
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.image_files import list_images
from imagenet_ddp.errors import RunError
from imagenet_ddp.models.factory import create_model
from imagenet_ddp.models.head import compute_features
from imagenet_ddp.use import feature_collector, feature_pass
from imagenet_ddp.use.feature_collector import Collect

NET = [option for option in SMALL if option.startswith(("data", "model.", "+model.", "trainer.accel", "trainer.prec"))]
NET += ["cluster.num_threads=1"]


def stored(folder: Path) -> Features:
    (file,) = (folder / "runs/features").glob("*/features.npz")
    return read_features(file)


@pytest.mark.slow(6)
def test_each_image_has_its_features_once_and_only_new_images_are_computed(
    run: Run, tmp_path: Path, seven_class_weights: Path
):
    data = tmp_path / "data"
    write_images(data / "train", {"cat": 5, "dog": 4})
    write_images(data / "val", {"cat": 3, "dog": 2}, seed=1)
    (data / "train/cat/broken.jpg").write_bytes(b"no image")
    options = ["features", *NET, f"data.root={data}", f"model.weights={seven_class_weights}"]
    first = run(*options, "out=copy/f.npz", code=0)
    assert first.stdout.startswith(f"Computing features with mobilenet_v2 on {data}. Loading PyTorch.\n")
    assert "are known" not in first.stdout and "1 image cannot be read" in first.stdout, first.stdout
    found = stored(tmp_path)
    assert (len(found), int(found.is_val.sum()), found.classes) == (14, 5, ["cat", "dog"])
    assert [Path(path).name for path, _ in found.unreadable] == ["broken.jpg"]
    assert read_features(tmp_path / "copy/f.npz").digest == found.digest

    module = ImageDataModule.from_options("imagefolder", data, image_size=32, val_resize=32, num_workers=0)
    net = create_model(ModelConfig(name="mobilenet_v2", args=SMALL_ARGS), 2, 5, 32).eval()
    weights = {name: each for name, each in torch.load(seven_class_weights).items() if "classifier" not in name}
    net.load_state_dict(weights, strict=False)
    (batch,) = (module.finish(batch, training=False) for batch in module.val_dataloader())
    expected = compute_features(net, "classifier.1", batch["image"])[0].numpy()
    np.testing.assert_allclose(found.vectors[found.is_val], expected, rtol=1e-4, atol=1e-5)
    assert found.targets[found.is_val].tolist() == batch["target"].tolist()

    again = run(*options, code=0, **{REASON: str(tmp_path / "reason")})  # as started by a check, which has said it
    assert "Loading PyTorch" not in again.stdout
    assert "1 image cannot be read" in again.stdout and len(stored(tmp_path)) == 14
    shutil.copy(data / "val/cat/000.jpg", data / "train/dog/new.jpg")
    (data / "train/cat/000.jpg").unlink()
    again = run(*options, code=0)
    # new and broken, and one that can be read
    assert "features of 3 images" in again.stdout and "those of 12 are known" in again.stdout
    now = stored(tmp_path)
    assert len(now) == 14
    np.testing.assert_array_equal(now.vectors[now.is_val], found.vectors[found.is_val])
    (new,) = (row for row, path in enumerate(now.paths) if path.endswith("new.jpg"))
    np.testing.assert_allclose(now.vectors[new], now.vectors[now.is_val][0], rtol=1e-4, atol=1e-5)

    probe = [*NET, f"data.root={data}", f"model.weights={seven_class_weights}", "model.head=regression"]
    probed = run("train", *probe, "trainer.max_epochs=0", "hydra.run.dir=p", "data.bad_image_limit=2", code=0)
    assert "features of the training images are read from runs/features" in probed.stdout
    said = probed.stdout.partition("What accuracy to expect on new images like these")[2].splitlines()[1:]
    assert re.match(r"1\. [\d.]+ % \(.*\): all 9 training images", said[0]) and "this net, on" in said[1], probed.stdout
    for word in ("ptimizer", "Learning rate", "epoch", "per update"):
        assert word not in probed.stdout, "nothing of it was used"
    expected = json.loads((tmp_path / "p/summary.json").read_text())["expected"]
    assert expected["num_images"] == 9 and len(expected["top1_interval"]) == 2
    assert "Written to p/known.npz" in probed.stdout and "Always answering" not in probed.stdout
    used = run("predict", "checkpoint=p", f"images={data / 'val/cat/000.jpg'}", "top_k=1", code=0)
    assert used.stdout.startswith("path,class_1,probability_1,known,familiarity,error\n"), used.stderr
    reference = read_reference(tmp_path / "p/known.npz")
    run("features", "checkpoint=p", code=0)  # of the same net, with the features of the validation images, too
    after = read_reference(tmp_path / "p/known.npz")
    assert after.digest == reference.digest and len(after.images) == len(reference.images)


@pytest.mark.slow(20)
def test_two_processes_give_what_one_gives_and_what_was_interrupted_goes_on(
    run: Run, tree: Path, tmp_path: Path, seven_class_weights: Path
):
    options = ["features", *NET, f"data.root={tree}", f"model.weights={seven_class_weights}"]
    same = [*options, "data.val_batch_size=2"]  # batches of one size, with one thread: equal to the bit
    run(*same, code=0)
    one = stored(tmp_path)
    assert len(one) % 4 == 0, "of which each rank has whole batches"
    shutil.rmtree(tmp_path / "runs/features")
    run(*same, "trainer.devices=2", code=0)
    two = stored(tmp_path)
    assert two.paths == one.paths and two.digest == one.digest
    np.testing.assert_array_equal(two.vectors, one.vectors)

    # what a rank had stored when it was stopped is not computed again
    (file,) = (tmp_path / "runs/features").glob("*/features.npz")
    (file.parent / "parts").mkdir()
    some = one.rows(np.arange(7))
    write_features(file.parent / "parts/0.npz", Features.bare(some.vectors, some.stamps, some.digest))
    file.unlink()
    result = run(*options, "trainer.devices=2", code=0)  # batches of another size
    assert f"features of {len(one) - 6} images" in result.stdout and "those of 6 are known" in result.stdout
    np.testing.assert_allclose(stored(tmp_path).vectors, one.vectors, rtol=1e-5, atol=1e-5)
    assert not (file.parent / "parts").exists()

    other = run(*options, "data.val_resize=40", code=0)  # another preprocessing
    assert "are known" not in other.stdout


class Trainer:
    """What Collect asks of Lightning's trainer, on one of two ranks."""

    world_size, is_global_zero, global_rank, precision = 2, True, 0, "bf16-mixed"

    def __init__(self, images: Images | None = None):
        self.datamodule = SimpleNamespace(val_images=images)


def collect(trainer: Trainer, vectors: Tensor, indices: Sequence[Sequence[int]], folder: Path) -> Collect:
    """Let a net whose last layer receives these vectors validate images in these batches."""
    net = nn.ModuleDict({"head": nn.Identity()})
    collected = Collect("head", np.arange(len(vectors), dtype=np.uint64) + 100, "digest", folder)
    collected.on_validation_start(cast("Any", trainer), SimpleNamespace(net=net))
    for step, index in enumerate(indices):
        if index:  # else nothing of the batch counts on this rank, and the net is not called
            net["head"](vectors[list(index)])
        batch = {"index": torch.tensor(index, dtype=torch.int64), "num_counted": len(index), "step_images": 4}
        collected.on_validation_batch_end(cast("Any", trainer), None, None, batch, step)
    collected.on_validation_end(cast("Any", trainer), None)
    return collected


def test_features_are_gathered_a_few_steps_at_a_time_and_ranks_may_lack_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    vectors, sent = torch.arange(24.0).reshape(8, 3), list[int]()

    def gather(mine: list[Any], world_size: int) -> list[list[Any]]:
        sent.append(len(mine))
        other = [(np.array([7]), vectors[7:].numpy())] if len(sent) == 1 else [None]
        return [mine, other]

    monkeypatch.setattr(feature_collector, "GATHERED", 2)
    monkeypatch.setattr(feature_collector, "gather_on_first", gather)
    found = collect(Trainer(), vectors, [[0, 1], [2, 3], [], [4, 5, 6], []], tmp_path).result
    assert sent == [2, 2, 1] and sorted(found) == [*range(100, 108)]
    for number in range(8):
        np.testing.assert_array_equal(found[100 + number], vectors[number])


def test_features_of_another_net_count_for_nothing(tmp_path: Path):
    """Another number of them, too, which the digest does not show."""
    write_features(
        tmp_path / "features.npz", Features.bare(np.ones((2, 5), np.float32), np.arange(2, dtype=np.uint64), "d")
    )
    found = [len(feature_pass._known(tmp_path, digest, width)) for digest, width in (("d", 5), ("d", 4), ("e", 5))]
    assert found == [2, 0, 0]


def test_features_with_nan_end_the_pass_with_the_name_of_the_image(tmp_path: Path):
    """They were written once, and refused by every command that reads them."""
    write_images(tmp_path / "data", {"cat": 3})
    vectors = torch.ones(3, 4)
    vectors[1, 2] = float("inf")
    images = list_images(tmp_path / "data", ["cat"])
    with pytest.raises(RunError, match=r"those of .*cat/001\.jpg hold NaN or inf at precision bf16-mixed\. Hint: set"):
        collect(Trainer(images), vectors, [[0, 1], [2]], tmp_path)


def test_features_in_half_precision_are_used_and_groups_are_held_out_together(
    run: Run, tmp_path: Path, seven_class_weights: Path
):
    """The strategy converts the net before the run reads the file. If each class is one group, no fold says how the
    others are recognised."""
    write_images(tmp_path / "data", {"cat": 6, "dog": 6})
    rows = [f"{name}/{number:03}.jpg,{name}{number // 3}" for name in ("cat", "dog") for number in range(6)]
    (tmp_path / "groups.csv").write_text("\n".join(["path,group", *rows]))
    options = [*NET, "trainer.precision=bf16-true", f"data.root={tmp_path / 'data'}", "data.val_fraction=0.2"]
    options += ["data.groups=groups.csv", f"model.weights={seven_class_weights}"]
    run("features", *options, code=0)
    probed = run("train", *options, "model.head=regression", "trainer.max_epochs=0", "hydra.run.dir=p", code=0)
    assert "features of the training images are read from runs/features" in probed.stdout, probed.stdout
    assert re.search(r"counts \d images, but these are of \d groups?: new groups may differ", probed.stdout)
    assert "What accuracy to expect needs" in probed.stdout and "Expected accuracy" not in probed.stdout, probed.stdout
    # a net with a layer for these classes, which was kept, so that nothing was trained
    again = run("train", *options[:-1], "model.weights=p", "model.head=regression", "trainer.max_epochs=0",
                "hydra.run.dir=q", code=0)  # fmt: skip
    assert "Computing the features of" in again.stdout and "Nothing was trained" not in again.stdout, again.stdout


@pytest.mark.slow(20)
def test_of_uneven_classes_each_command_says_what_a_guess_reaches(run: Run, tmp_path: Path, seven_class_weights: Path):
    """Where the images tell nothing, the accuracy is that of always answering the most frequent class."""
    generator = np.random.default_rng(0)
    for name, number in (("healthy", 45), ("ill", 5)):
        for index in range(number):
            path = tmp_path / "data" / name / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(generator.integers(0, 256, (32, 32, 3), np.uint8)).save(path)
    options = [*NET, "data.root=data", "data.val_fraction=0.2", f"model.weights={seven_class_weights}"]
    probe = ["train", *options, "model.head=regression", "trainer.max_epochs=0", "hydra.run.dir=p"]
    of_guess = "Always answering healthy would be right for 90.0 %"
    mean = rf"{of_guess}: judge by the mean accuracy of the classes \(balanced accuracy\), ([\d.]+) %, which is 50.0 % "
    rough = "for such a guess. It is rough, because ill has "
    for command, number in (
        (["prepare", "prepare=check", *options, "out=c"], "5 images"),
        (probe, "4 images"),
        (["evaluate", "checkpoint=p", "metrics=[recall]", "hydra.run.dir=e"], "1 image"),
        (["report", "p"], "1 image"),
    ):
        done = run(*command)
        said = re.search(mean + re.escape(f"{rough}{number}."), done.stdout)
        assert said is not None, done.stdout + done.stderr
    assert f"{100 * json.loads((tmp_path / 'e/evaluation.json').read_text())['metrics']['recall']:.1f}" == said[1]
    assert all(of_guess in (tmp_path / page).read_text() for page in ("c/check.html", "p/report.html"))
    trained = run("train", *options, "trainer.max_epochs=1", "hydra.run.dir=t", code=0)
    assert f"{of_guess}: look at the accuracy of each class, in the report." in trained.stdout


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["data=imagefolder", "data.root=TREE"], "checkpoint is required, but not set"),
        (["model.weights=WEIGHTS"], "data must be set"),
        (["data=imagefolder", "data.root=TREE", "model.weights=WEIGHTS", "out=f.csv"], "out must be a file that ends"),
        (["data=imagefolder", "data.root=TREE", "model.weights=WEIGHTS", "trainer.limit_val_batches=1"], "all images"),
        (["data=table", "data.root=T.csv", "model.weights=WEIGHTS", "data.labels=several"], "data.labels must be one"),
    ],
)
def test_what_is_missing_is_said(
    run: Run, tree: Path, seven_class_weights: Path, typed: list[str], words: str, tmp_path: Path
):
    line = [word.replace("TREE", str(tree)).replace("WEIGHTS", str(seven_class_weights)) for word in typed]
    result = run("features", *line, code=2)
    assert words in result.stderr and "Traceback" not in result.stderr
    assert not (tmp_path / "runs").exists()
