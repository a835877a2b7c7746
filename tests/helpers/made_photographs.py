"""Make pictures with the detail of photographs, without photographs."""

import numpy as np
from PIL import Image


def photograph(seed: int) -> Image.Image:
    """Return a picture with detail of all sizes, 240 × 180, as photographs have: noise whose strength falls with its
    frequency."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(180)[:, None], np.fft.fftfreq(240)) + 1 / 240
    layers = np.fft.fft2(rng.normal(size=(3, 180, 240))) / frequency**1.3
    pixels = np.real(np.fft.ifft2(layers))
    pixels = 128 + 50 * (pixels - pixels.mean((1, 2), keepdims=True)) / pixels.std((1, 2), keepdims=True)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8).transpose(1, 2, 0))
