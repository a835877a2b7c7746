"""`from imagenet_ddp import load` gives what the command predict gives."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import imagenet_ddp
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs.folder import lock


def test_a_run_folder_is_loaded_for_predictions(trained: Path, tree: Path, tmp_path: Path):
    model = imagenet_ddp.load(trained.parents[1])
    found = model.predict(tree / "val")
    assert found and all(each.label == Path(each.path).parent.name for each in found)
    paths = [each.path for each in found][:3]
    opened = [Image.open(path) for path in paths]
    mixed = model.predict([paths[0], opened[1], np.asarray(opened[2].convert("RGB"))], top_k=2)
    for one, other in zip(mixed, found, strict=False):
        assert one.label == other.label and len(one.top) == 2
        assert one.top[0][1] == pytest.approx(other.top[0][1], abs=1e-4)
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    (broken,) = model.predict(tmp_path / "broken.jpg")
    assert broken.label is None and broken.reason
    (only,) = model.predict(opened[0])
    assert only.label == found[0].label and only.path == ""


@pytest.mark.parametrize("turns", ["true", "false"])
def test_an_opened_photograph_is_read_as_its_file(trained: Path, tree: Path, tmp_path: Path, turns: str):
    """With or without the orientation in its EXIF data, and in each mode, such as that of a JPEG for printing."""
    model = imagenet_ddp.load(trained.parents[1], f"data.exif_orientation={turns}")
    photo = Image.open(next((tree / "val").rglob("*.*"))).convert("RGB").resize((40, 60))
    turned = Image.Exif()
    turned[0x0112] = 6
    for number, image in enumerate((photo, photo.convert("CMYK"), photo.convert("L"))):
        path = tmp_path / f"{number}.jpg"
        image.save(path, exif=turned)
        of_file, of_image = model.predict([path])[0], model.predict(Image.open(path))[0]
        assert of_file.label == of_image.label and of_file.top[0][1] == pytest.approx(of_image.top[0][1], abs=1e-4)
    for mode in ("P", "1", "HSV", "YCbCr", "RGBA"):
        assert model.predict(photo.convert(mode))[0].label, mode
    assert model.predict(Image.new("F", (40, 40), 0.5))[0].label


def test_a_training_that_goes_on_is_said_to(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run, new = tmp_path / "run", tmp_path / "new"
    shutil.copytree(trained.parents[1], run)
    new.mkdir()
    imagenet_ddp.load(run)
    assert "has not ended" not in capsys.readouterr().err
    with lock(run), lock(new):
        imagenet_ddp.load(run)
        assert (
            f"The training in {run} has not ended: these are its weights so far. Type this again"
            in capsys.readouterr().err
        )
        with pytest.raises(
            ConfigError, match=r"checkpoint must be a run that has saved .* has just begun\. Hint: wait"
        ):
            imagenet_ddp.load(new)


def test_what_cannot_be_loaded_is_one_error(tmp_path: Path):
    with pytest.raises(ConfigError, match="checkpoint must be a checkpoint file or a run folder"):
        imagenet_ddp.load(tmp_path)
    with pytest.raises(AttributeError, match="has no attribute 'lode'"):
        imagenet_ddp.lode  # noqa: B018
