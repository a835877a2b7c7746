import torch
from torch import nn

from imagenet_ddp.models.mirror import average_mirrored


def test_the_mean_of_both_views():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 5, 6))
    images = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    found = average_mirrored(net, images)
    torch.testing.assert_close(found, (net(images) + net(torch.flip(images, [3]))) / 2)
    torch.testing.assert_close(found, average_mirrored(net, images.flip(3)))
    assert not torch.allclose(found, net(images))
