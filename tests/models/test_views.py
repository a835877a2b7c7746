import pytest
import torch
from torch import nn

from imagenet_ddp.models.views import average_views, oriented


@pytest.mark.parametrize(
    ("views", "invariant", "turned"),
    [(2, [(3,)], [(2,)]), (4, [(3,), (2,), (2, 3)], []), (8, [(3,), (2,), (2, 3)], [])],
)
def test_the_mean_is_the_same_for_each_view(views: int, invariant: list, turned: list):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 5 * 5, 6))
    images = torch.randn(2, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    found = average_views(net, images, views)
    torch.testing.assert_close(found, torch.stack([net(each) for each in oriented(images, views)]).mean(0))
    assert len({tuple(each.flatten().tolist()) for each in oriented(images, views)}) == views
    for axes in invariant:
        torch.testing.assert_close(found, average_views(net, images.flip(axes), views))
    for axes in turned:
        assert not torch.allclose(found, average_views(net, images.flip(axes), views))
    quarter = average_views(net, images.rot90(1, (2, 3)), views)
    assert torch.allclose(found, quarter, atol=1e-6) == (views == 8)


def test_one_view_is_the_net_itself():
    net, images = nn.Flatten(), torch.randn(2, 3, 5, 5)
    assert torch.equal(average_views(net, images, 1), net(images))
