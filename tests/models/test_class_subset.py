import numpy as np
import torch
from torch import nn

from imagenet_ddp.models.class_subset import ClassSubset


def test_a_subset_of_the_classes():
    net = ClassSubset(nn.Identity(), [2, 0], 4)
    logits = net(torch.tensor([[1.0, 5.0, 2.0, 7.0]]))
    np.testing.assert_allclose(logits.softmax(1)[0, [0, 2]], torch.tensor([1.0, 2.0]).softmax(0))
    assert logits.softmax(1)[0, [1, 3]].tolist() == [0, 0] and logits.argmax(1).tolist() == [2]
    assert list(net.state_dict()) == []
