"""What a source of one's own may be."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from imagenet_ddp.data import Images, Source
from imagenet_ddp.errors import ConfigError

PIXELS = torch.arange(3 * 4 * 5, dtype=torch.uint8).view(3, 4, 5)


class Subclass(Images):
    targets = np.array([0])

    def read(self, index: int) -> torch.Tensor:
        return PIXELS


class Plain:
    targets = np.array([0])

    def read(self, index: int) -> torch.Tensor:
        return PIXELS


def test_reading_is_all_that_a_source_must_do():
    found = Source(["cat"], Subclass(), None).train
    for each in (found, pickle.loads(pickle.dumps(found))):
        assert isinstance(each, Images) and len(each) == 1
        assert torch.equal(each.read(0), PIXELS)
        assert np.array_equal(each.open(0).region(1, 2, 3, 2), PIXELS.permute(1, 2, 0)[1:4, 2:4])
        assert (each.path(0), each.location, each.is_encoded) == ("image 0", "", False)
        assert each.encoded(0) is each.order(0, 1) is each.verify(0) is None


def test_an_object_of_another_class_is_refused():
    with pytest.raises(ConfigError, match=r"must be an imagenet_ddp\.data\.Images, got Plain\. Hint: subclass"):
        Source(["cat"], None, Plain())  # type: ignore[arg-type]


@pytest.mark.parametrize("weights", [np.ones(2, np.float32), np.ones(1)])
def test_weights_of_another_shape_or_kind_are_refused(weights: np.ndarray):
    images = Subclass()
    images.weights = weights
    with pytest.raises(ConfigError, match=r"must be float32 of shape \(1,\), got float"):
        Source(["cat"], images, None)


def test_the_package_imports_no_torch_until_a_name_is_used():
    code = "import sys, imagenet_ddp.data as d; assert 'torch' not in sys.modules; d.ImageDataModule; d.Images; d.gone"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert "has no attribute 'gone'" in done.stderr
