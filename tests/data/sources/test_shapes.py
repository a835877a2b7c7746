from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from imagenet_ddp.data.sources import shapes
from imagenet_ddp.errors import ConfigError


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "NUM_PER_CLASS", {"train": 3, "val": 2})


def environ(folder: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(folder)}


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("few")
def test_tree_has_every_class_and_readable_jpegs(tmp_path: Path):
    folder = shapes.ensure(7, environ(tmp_path))
    assert folder == tmp_path / "imagenet_ddp" / "shapes-v2-seed7"
    for part, num_images in (("train", 3), ("val", 2)):
        assert tuple(sorted(path.name for path in (folder / part).iterdir())) == shapes.CLASSES
        for name in shapes.CLASSES:
            files = list((folder / part / name).glob("*.jpg"))
            assert len(files) == num_images
            for file in files:
                with Image.open(file) as image:
                    assert image.format == "JPEG"
                    assert image.mode == "RGB"
                    assert 72 <= min(image.size) <= max(image.size) <= 96
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]  # no draft is left


@pytest.mark.usefixtures("few")
def test_same_seed_same_bytes_and_another_seed_other_images(tmp_path: Path):
    first, again, other = (
        tree(shapes.ensure(seed, environ(tmp_path / name))) for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert first == again
    images = {name: data for name, data in first.items() if name.endswith(".jpg")}
    assert len(set(images.values())) == len(images) == 50  # no image twice, neither within nor across train and val
    assert not set(images.values()) & set(other.values())


def test_a_cache_that_cannot_be_written_is_said_with_a_hint(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"can be written.*Hint: put XDG_CACHE_HOME=FOLDER"):
        shapes.ensure(0, {"XDG_CACHE_HOME": str(tmp_path / "file")})


def softmax_accuracy(x: np.ndarray, y: np.ndarray, x_val: np.ndarray, y_val: np.ndarray) -> float:
    """Top-1 on the second pair of a linear softmax model fitted to the first by gradient descent."""
    mean, std = x.mean(0), x.std(0)
    x, x_val = (np.column_stack([(a - mean) / std, np.ones(len(a))]) for a in (x, x_val))
    weight, target = np.zeros((x.shape[1], len(shapes.CLASSES))), np.eye(len(shapes.CLASSES))[y]
    for _ in range(2000):
        score = np.exp(x @ weight)
        weight -= 0.5 * x.T @ (score / score.sum(1, keepdims=True) - target) / len(x)
    return float(((x_val @ weight).argmax(1) == y_val).mean())


def test_classes_are_not_separable_by_mean_colour():
    def mean_colours(part: str, num_images: int) -> tuple[np.ndarray, np.ndarray]:
        drawn = [(label, i) for label in range(len(shapes.CLASSES)) for i in range(num_images)]
        colours = [shapes.draw(part, shapes.CLASSES[label], i, seed=0)[0].mean((0, 1)) / 255 for label, i in drawn]
        return np.array(colours), np.array([label for label, _ in drawn])

    train, val = mean_colours("train", 80), mean_colours("val", 40)
    assert softmax_accuracy(*train, *val) < 0.25
    leaky = [(x + np.eye(10)[y][:, :3] + np.outer(y, [0.1, 0.2, -0.1]), y) for x, y in (train, val)]
    assert softmax_accuracy(*leaky[0], *leaky[1]) > 0.4  # the model itself finds a colour that tells the class
