"""nvidia-smi's answers, as texts."""

import pytest

from imagenet_ddp.distributed import nvidia_gpus
from imagenet_ddp.distributed.nvidia_gpus import Card, order_may_differ, read, visible

ANSWER = """\
0, GPU-aa11, NVIDIA A100-SXM4-80GB, 81920, 3, 8.0
1, GPU-ab22, NVIDIA A100-SXM4-80GB, 81920, 40000, 8.0
2, GPU-bb33, Tesla V100-SXM2-16GB, 16384, 0, 7.0
"""


def test_what_nvidia_smi_says():
    found = read(ANSWER)
    assert found[1] == Card(1, "GPU-ab22", "NVIDIA A100-SXM4-80GB", 81_920, 40_000, 8.0)
    assert [card.has_bf16 for card in found] == [True, True, False]


@pytest.mark.parametrize("text", ["", "No devices were found\n", "NVIDIA-SMI has failed because\nit could not\n"])
def test_no_answer_is_no_card(text: str):
    assert read(text) == []


def test_what_a_card_does_not_say_is_zero():
    assert read("0, GPU-aa11, NVIDIA H100, [N/A], [N/A], 9.0\n") == [Card(0, "GPU-aa11", "NVIDIA H100", 0, 0, 9.0)]


@pytest.mark.parametrize(
    ("variable", "numbers"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        ("GPU-bb", [2]),
        ("1, GPU-aa11", [1, 0]),
        ("", []),
        ("-1", []),
        ("0,7,1", [0]),  # CUDA stops at the first that is not there
        ("GPU-a", []),  # fits two
    ],
)
def test_visible_cards(variable: str | None, numbers: list[int]):
    environ = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    found = visible(read(ANSWER), environ)
    assert found is not None and [card.number for card in found] == numbers


def test_a_part_of_a_card_is_no_card():
    assert visible(read(ANSWER), {"CUDA_VISIBLE_DEVICES": "MIG-1234"}) is None


def test_different_cards_may_be_numbered_otherwise():
    assert order_may_differ(read(ANSWER), {})
    assert not order_may_differ(read(ANSWER), {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert not order_may_differ(read(ANSWER)[:2], {})


def test_without_nvidia_smi_there_are_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert nvidia_gpus.cards() == []
