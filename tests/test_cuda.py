"""What only a GPU can show. scripts/gpu_check.sh runs these tests where one is."""

from pathlib import Path

import pytest
import torch
from conftest import SMALL, Run
from helpers.train_runs import summary

from imagenet_ddp.config.schema.trainer import TrainerConfig
from imagenet_ddp.data.transforms import normalise
from imagenet_ddp.launch import devices

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
GPU = ("trainer.accelerator=gpu", "trainer.devices=1", "trainer.deterministic=warn")


@pytest.mark.parametrize("channels_last", [True, False])
def test_images_are_normalised_as_on_a_cpu(channels_last: bool) -> None:
    images = torch.randint(0, 256, (4, 3, 33, 35), dtype=torch.uint8)
    flip = torch.tensor([True, False, True, False])
    values = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), channels_last
    wanted, found = normalise(images, *values, flip), normalise(images.cuda(), *values, flip.cuda())
    torch.testing.assert_close(found.cpu(), wanted, rtol=0, atol=1e-5)
    assert found.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


def test_a_process_sets_its_own_gpu() -> None:
    """The last one, where there are several."""
    last = torch.cuda.device_count() - 1
    device = devices.use_device(TrainerConfig(devices=[last]))
    assert device.index == torch.cuda.current_device() == torch.zeros(1, device="cuda").device.index == last


def test_a_training_on_a_gpu_learns_as_on_a_cpu(run: Run, tree: Path, tmp_path: Path) -> None:
    losses: list[float] = []
    for name, own in (("cpu", ()), ("gpu", GPU)):
        run("train", *SMALL, f"data.root={tree}", f"hydra.run.dir={name}", *own, code=0)
        losses.append(summary(tmp_path / name)["val/loss"])
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
