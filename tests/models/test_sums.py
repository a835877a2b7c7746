import torch

from imagenet_ddp.models.sums import ImagesCounted

NONE = torch.tensor([], dtype=torch.int64)


def test_images_are_counted_over_all_ranks():
    """Two ranks both counted image 1: torchmetrics stacks their states and reduces them by this state's function."""
    first, second = ImagesCounted(3), ImagesCounted(3)
    first.update(torch.tensor([0, 1]))
    second.update(torch.tensor([1, 2]))
    reduce = first._reductions["times"]
    assert callable(reduce)
    first.times = reduce(torch.stack([first.times, second.times]))  # type: ignore[assignment]
    assert first.compute() == (3, 2) and first.times.tolist() == [1, 2, 1]
    first.reset()
    first.update(NONE)
    empty = ImagesCounted(0)
    empty.update(NONE)
    assert first.compute() == empty.compute() == (0, 0) and not first.state_dict()
