import io
from typing import Any

import pytest
from PIL import Image

from imagenet_ddp.benchmark import chips, picture, result_tables
from imagenet_ddp.benchmark.harness import device_figures, row
from imagenet_ddp.benchmark.timing import ratio


def content() -> dict[str, Any]:
    rows = [
        row("Step", "bare loop", "ms per step", [2.0, 2.2, 1.9], 1.0, own=False),
        row("Step", "ours | *all*", "ms per step", [3.0, 3.3, 2.85], 1.5),
        row("Time", "aten::mm", "ms per step", [1234.5], None, share=0.25),
    ]
    return {
        "mode": "step", "rows": rows, "notes": ["A note."], "conclusion": "The bottleneck is the host.", "repeats": 3,
        "machine": {"cpu": "Some CPU", "num_cores": 2}, "versions": {"torch": "2.15.0", "lightning": "2.6.6"},
        "finished_at": "2026-11-23T01:00:00+0000", "command": "python -m imagenet_ddp.benchmark benchmark=step",
    }  # fmt: skip


def test_each_group_is_a_table():
    lines = result_tables.text(content()).splitlines()
    assert lines[0].split() == ["Step", "ms", "per", "step", "range", "ratio"]
    assert lines[2].split() == ["bare", "loop", "2", "1.9", "to", "2.2", "1.00"]
    assert lines[5].split() == ["Time", "ms", "per", "step", "share"]
    assert lines[7].split() == ["aten::mm", "1,234", "25.0", "%"]
    assert lines[-2:] == ["The bottleneck is the host.", ""] or lines[-1] == "The bottleneck is the host."


def test_the_page_gets_the_same_with_machine_and_command():
    text = result_tables.markdown(content())
    assert "| ours \\| \\*all\\* | 3 | 2.85 to 3.3 | 1.50 |" in text
    assert "- The bottleneck is the host." in text
    assert text.endswith(
        "Medians of 3; 2 cores of Some CPU, torch 2.15.0, lightning 2.6.6, 2026-11-23: "
        "`python -m imagenet_ddp.benchmark benchmark=step`"
    )


def test_the_picture_grows_with_the_rows():
    heights = []
    for times in (1, 4):
        one = content()
        with Image.open(io.BytesIO(picture.draw({**one, "rows": one["rows"][:2] * times}))) as image:
            heights.append(image.height)
    assert heights[1] > heights[0] + 200


def test_a_ratio_is_the_median_of_the_turns():
    assert ratio([2, 9, 4], [1, 3, 1]) == 3  # 2, 3, 4: not the ratio of medians, 4


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H200", "bf16-mixed", 989),
        ("NVIDIA H100 80GB HBM3", "bf16-mixed", 989),
        ("NVIDIA H100 PCIe", "bf16-mixed", 756),
        ("NVIDIA A100-SXM4-80GB", "bf16-mixed", 312),
        ("NVIDIA A100-SXM4-80GB", "32-true", 156),
        ("NVIDIA A10", "16-mixed", 125),
        ("NVIDIA A10G", "16-mixed", None),
        ("NVIDIA L4", "bf16-mixed", 121),
        ("NVIDIA L40S", "bf16-mixed", 362),
        ("Tesla V100-SXM2-16GB", "16-mixed", 125),
        ("Tesla T4", "16-mixed", 65),
        ("NVIDIA GeForce RTX 3090", "bf16-mixed", 71),
        ("NVIDIA GeForce RTX 3090 Ti", "bf16-mixed", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16-mixed", None),
        ("NVIDIA H200", "64-true", None),
        ("Some future GPU", "bf16-mixed", None),
    ],
)
def test_peaks_by_the_name_that_torch_gives(name: str, precision: str, peak: float | None):
    assert chips.peak_tflops(name, precision) == peak


def test_operations_of_a_training_step_are_counted_without_computing():
    from torch import nn

    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    forward = 2 * 8 * 3 * 9 * 16 * 16
    assert chips.flops_per_image(net, 16) == 2 * forward  # the images need no gradients

    class Refusing(nn.Module):
        def forward(self, images: Any) -> Any:
            raise RuntimeError("not on meta")

    assert chips.flops_per_image(Refusing(), 16) is None


@pytest.mark.parametrize(
    ("device", "peak", "said"),
    [
        ("cpu", None, "cpu, bf16-mixed: 100 images/s, 1 Tflop/s, 5 MiB"),
        ("NVIDIA H200", 989.0, "1 Tflop/s (0.1% of the chip's peak), 5 MiB"),
        ("Some GPU", None, "(the chip's peak is unknown)"),
    ],
)
def test_the_share_of_the_peak(device: str, peak: float | None, said: str):
    found = {
        "device": device, "peak_tflops": peak, "flops_per_image": 10_000_000_000, "precision": "bf16-mixed",
        "clocks": None, "first_step_s": 1.0, "peak_memory_mib": 5.0,
    }  # fmt: skip
    figures, line = device_figures(found, 100.0)
    assert said in line
    assert figures["share_of_peak"] == (None if peak is None else pytest.approx(1 / 989, abs=1e-4))
