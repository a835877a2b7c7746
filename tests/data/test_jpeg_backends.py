import sys

import numpy as np
import pytest

from imagenet_ddp.data import jpeg_backends
from imagenet_ddp.errors import ConfigError


def _forget() -> None:
    jpeg_backends.choose.cache_clear()
    jpeg_backends.decoder.cache_clear()


def test_the_fastest_that_is_there_is_chosen_and_says_why(monkeypatch: pytest.MonkeyPatch):
    assert jpeg_backends.choose("auto").name == "simplejpeg"
    assert jpeg_backends.choose("auto").reason.startswith("simplejpeg ")
    _forget()
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "simplejpeg", None)
        choice = jpeg_backends.choose("auto")
        assert (choice.name, "simplejpeg cannot be used here" in choice.reason) == ("pillow", True)
        with pytest.raises(ConfigError, match=r"data\.decoder=simplejpeg .* Hint: .*pip install .*'simplejpeg'"):
            jpeg_backends.choose("simplejpeg")
    _forget()


def test_both_decoders_give_the_same_pixels(shared_data):
    """libjpeg-turbo's exact arithmetic in both: the bound is for other versions of it."""
    pillow, simplejpeg = (jpeg_backends.decoder(name) for name in ("pillow", "simplejpeg"))
    for path in sorted((shared_data / "imagenet-real" / "val").glob("*/*"))[:40]:
        data = path.read_bytes()
        found, expected = simplejpeg.rgb(data), pillow.rgb(data)
        assert found.shape == expected.shape and found.dtype == np.uint8
        difference = np.abs(found.astype(int) - expected)
        assert difference.mean() < 0.5 and difference.max() <= 8, path
