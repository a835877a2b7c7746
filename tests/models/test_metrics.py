import torch

from imagenet_ddp.models.metrics import ImagesCounted

NONE = torch.tensor([], dtype=torch.int64)


def test_each_image_is_counted_as_often_as_it_came():
    metric = ImagesCounted(5)
    metric.update(NONE)
    assert metric.compute() == (0, 0)
    metric.update(torch.tensor([0, 3]))
    metric.update(torch.tensor([4]))
    assert metric.compute() == (3, 1)
    metric.update(torch.tensor([3, 1]))
    assert metric.compute() == (4, 2)
    assert metric.times.tolist() == [1, 1, 0, 2, 1]


def test_reset_forgets():
    metric = ImagesCounted(3)
    metric.update(torch.tensor([0, 1, 2]))
    metric.reset()
    metric.update(NONE)
    assert metric.compute() == (0, 0)


def test_the_ranks_are_summed():
    """Two ranks both counted image 1: torchmetrics stacks their states and reduces them by this state's function."""
    first, second = ImagesCounted(3), ImagesCounted(3)
    first.update(torch.tensor([0, 1]))
    second.update(torch.tensor([1, 2]))
    reduce = first._reductions["times"]
    assert callable(reduce)
    first.times = reduce(torch.stack([first.times, second.times]))  # type: ignore[assignment]
    assert first.compute() == (3, 2)


def test_a_split_without_images():
    metric = ImagesCounted(0)
    metric.update(NONE)
    assert metric.compute() == (0, 0)


def test_nothing_of_it_is_saved():
    assert list(ImagesCounted(3).state_dict()) == []
