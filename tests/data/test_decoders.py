import sys

import numpy as np
import pytest

from imagenet_ddp.data import decoders
from imagenet_ddp.schema import ConfigError


def test_the_fastest_that_is_there_is_chosen_and_says_why(monkeypatch: pytest.MonkeyPatch):
    assert decoders.choose("auto").name == "simplejpeg"
    assert decoders.choose("auto").reason.startswith("simplejpeg ")
    decoders.decoder.cache_clear()
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "simplejpeg", None)
        choice = decoders.choose("auto")
        assert (choice.name, "simplejpeg cannot be used here" in choice.reason) == ("torchvision", True)
        decoders.decoder.cache_clear()
        without.setitem(sys.modules, "torchvision.io", None)  # as torchvision has announced
        assert decoders.choose("auto").name == "pillow"
        with pytest.raises(ConfigError, match=r"data\.decoder=simplejpeg .* HINT: .* pip install 'simplejpeg'"):
            decoders.choose("simplejpeg")
    decoders.decoder.cache_clear()


def test_what_is_asked_for_is_taken():
    assert decoders.choose("pillow") == decoders.Choice("pillow", "pillow, as set by data.decoder")


@pytest.mark.parametrize("name", decoders.NAMES)
def test_all_decoders_give_the_same_pixels(name: str, shared_data):
    """libjpeg-turbo's exact arithmetic in all of them: the bound is for other versions of it."""
    pillow = decoders.decoder("pillow")
    for path in sorted((shared_data / "imagenet-real" / "val").glob("*/*"))[:40]:
        data = path.read_bytes()
        found, expected = decoders.decoder(name).rgb(data), pillow.rgb(data)
        assert found.shape == expected.shape and found.dtype == np.uint8
        difference = np.abs(found.astype(int) - expected)
        assert difference.mean() < 0.5 and difference.max() <= 8, path
