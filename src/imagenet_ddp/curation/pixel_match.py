"""Measure how much of two pictures is the same picture, by the pixels of small grey thumbnails.

One may be a crop of the other, down to LEAST_SHARE of its height and width, or a mirror image of it. The smaller one is
placed where it fits best, then both are compared window by window. Each window counts the same, whatever its contrast,
because outlines on a plain background look alike in many pictures; a window that is plain in both does not count.

1. coarse: normalised cross-correlation at all positions and at NUM_SIZES² heights and widths (by FFT)
2. refine: height, width and position by least squares (Gauss-Newton), to a fraction of a pixel
3. compare: the share of the windows with texture in which the two correlate by at least WINDOW_CORRELATION
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

SIDE = 64  # of a thumbnail in pixels
COARSE = 32  # of a thumbnail while a position is searched for
LEAST_SHARE = 0.75  # of the height and width of a picture that a crop has
NUM_SIZES = 5  # heights from LEAST_SHARE to 1, and as many widths
LEAST_CORRELATION = 0.6  # at the best position, to compare further
NUM_STEPS = 5
WINDOW, STRIDE = 8, 4  # pixels
WINDOW_CORRELATION = 0.8
LEAST_AGREEMENT = 0.65  # share of the windows with texture that correlate, of two pictures of one photograph
TEXTURE = 0.1  # standard deviation within a window, as a share of that of the picture
LEAST_CONTRAST = 4.0  # standard deviation of a picture in grey levels of 0..255; below, noise would be compared
LEAST_WINDOWS = 0.1  # share of windows with texture
_BATCH = 128


class Match(NamedTuple):
    """agreement: float32 (P,), share of the windows with texture that are the same; 0 for pictures without texture.
    is_mirrored: bool (P,)."""

    agreement: np.ndarray
    is_mirrored: np.ndarray


def compare(thumbnails: np.ndarray, first: np.ndarray, second: np.ndarray) -> Match:
    """Compare pairs of pictures. thumbnails: uint8 (N, SIDE, SIDE). first, second: int64 (P,), positions in them."""
    agreement, is_mirrored = np.zeros(len(first), np.float32), np.zeros(len(first), bool)
    for begin in range(0, len(first), _BATCH):
        part = slice(begin, begin + _BATCH)
        images, numbers = np.unique(np.concatenate([first[part], second[part]]), return_inverse=True)
        pairs = torch.from_numpy(numbers.reshape(2, -1))
        found = _compare(torch.from_numpy(thumbnails[images]).float()[:, None], pairs[0], pairs[1])
        agreement[part], is_mirrored[part] = found[0].numpy(), found[1].numpy()
    return Match(agreement, is_mirrored)


def _compare(images: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """images: (M, 1, SIDE, SIDE), 0 to 255. a, b: (P,), positions in images."""
    small, number = F.avg_pool2d(images, SIDE // COARSE), len(a)
    fit, place, is_mirrored = _find_place(small[:, 0], torch.cat([a, b]), torch.cat([b, a]))
    fit, direction = fit.view(2, number).max(0)  # 1: a is the part
    chosen = direction * number + torch.arange(number)
    place, is_mirrored = place[chosen], is_mirrored[chosen]
    whole, part = torch.where(direction == 1, b, a), torch.where(direction == 1, a, b)
    agreement, contrast = torch.zeros(number), images.std((1, 2, 3))
    rows = torch.nonzero((fit >= LEAST_CORRELATION) & (torch.minimum(contrast[a], contrast[b]) >= LEAST_CONTRAST))[:, 0]
    if len(rows):
        whole, part, place = whole[rows], part[rows], place[rows]
        flip = is_mirrored[rows, None, None, None]
        place = _refine(small[whole], torch.where(flip, small[part].flip(3), small[part]), place)
        images = _blurred(images)
        turned = torch.where(flip, images[part].flip(3), images[part])
        agreement[rows] = _agreement(_cut_out(images[whole], place), turned)
    return agreement, is_mirrored


@cache
def _resize_matrix(side: int) -> Tensor:
    """Return (side, COARSE), by which a column of COARSE pixels becomes one of `side` pixels."""
    unit = torch.eye(COARSE)[None, None]
    return F.interpolate(unit, (side, COARSE), mode="bilinear", antialias=True)[0, 0]


def _find_place(small: Tensor, whole: Tensor, part: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return where one picture of each pair fits best into the other: its correlation there (P,), its place (P, 4), and
    whether it is mirrored (P,). small: (M, COARSE, COARSE). A place is (height, width, y, x): the share of the whole
    that the part covers, and its middle, from -1 to 1."""
    best, place = torch.full((len(whole),), -1.0), torch.zeros(len(whole), 4)
    is_mirrored = torch.zeros(len(whole), dtype=torch.bool)
    small = small - small.mean((1, 2), keepdim=True)
    spectrum = torch.fft.rfft2(small)[whole, None]
    sums = [F.pad(each, (1, 0, 1, 0)).cumsum(1).cumsum(2) for each in (small, small.square())]
    sides = torch.linspace(LEAST_SHARE * COARSE, COARSE, NUM_SIZES).round().int().tolist()
    for height in sides:
        lower = _resize_matrix(height) @ small
        for width in sides:
            template = lower @ _resize_matrix(width).mT
            template = template - template.mean((1, 2), keepdim=True)
            template = template / template.norm(dim=(1, 2), keepdim=True).clamp(min=1e-3)
            both = torch.stack([template, template.flip(2)], 1)
            product = spectrum * torch.fft.rfft2(both, s=(COARSE, COARSE)).conj()[part]
            rows, columns, area = COARSE - height + 1, COARSE - width + 1, height * width
            product = torch.fft.irfft2(product, s=(COARSE, COARSE))[..., :rows, :columns]
            total, square = (
                s[:, height:, width:] - s[:, :rows, width:] - s[:, height:, :columns] + s[:, :rows, :columns]
                for s in sums
            )
            norm = (square - total.square() / area).clamp(min=area).sqrt()  # plain: contrast below one grey level
            fit, at = (product / norm[whole, None]).flatten(1).max(1)
            y, x = at % (rows * columns) // columns, at % columns
            shares = torch.tensor([height / COARSE, width / COARSE]).expand(len(whole), 2)
            middle = torch.stack([(2 * y + height) / COARSE - 1, (2 * x + width) / COARSE - 1], 1)
            better = fit > best
            best = torch.where(better, fit, best)
            place = torch.where(better[:, None], torch.cat([shares, middle], 1), place)
            is_mirrored = torch.where(better, at >= rows * columns, is_mirrored)
    return best, place, is_mirrored


def _grid(place: Tensor, side: int) -> Tensor:
    """Return the coordinates (x, y) in the whole of the pixels of a part, (P, side, side, 2), from -1 to 1."""
    steps = (2 * torch.arange(side) + 1) / side - 1
    y = place[:, 2, None] + place[:, 0, None] * steps
    x = place[:, 3, None] + place[:, 1, None] * steps
    return torch.stack([x[:, None, :].expand(-1, side, -1), y[:, :, None].expand(-1, -1, side)], 3)


def _cut_out(whole: Tensor, place: Tensor) -> Tensor:
    grid = _grid(place, whole.shape[-1])
    return F.grid_sample(whole, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _refine(whole: Tensor, part: Tensor, place: Tensor) -> Tensor:
    """Return the places after NUM_STEPS steps of Gauss-Newton, which also fits brightness and contrast."""
    by_x = (whole.roll(-1, 3) - whole.roll(1, 3)) * (COARSE / 4)
    by_y = (whole.roll(-1, 2) - whole.roll(1, 2)) * (COARSE / 4)
    by_x[..., 0] = by_x[..., -1] = by_y[:, :, 0] = by_y[:, :, -1] = 0
    layers = torch.cat([whole, by_y, by_x], 1)
    steps = (2 * torch.arange(COARSE) + 1) / COARSE - 1
    wanted = part.flatten(1)[..., None]
    for _ in range(NUM_STEPS):
        seen, dy, dx = _cut_out(layers, place).unbind(1)
        columns = [seen, torch.ones_like(seen), dy * steps[:, None], dx * steps, dy, dx]
        design = torch.stack(columns, 3).flatten(1, 2)  # (P, pixels, 6)
        normal = design.mT @ design
        normal = normal + 1e-4 * torch.diag_embed(normal.diagonal(dim1=1, dim2=2)) + 1e-3 * torch.eye(6)
        solved = torch.linalg.solve(normal, design.mT @ wanted)[..., 0]
        step = solved[:, 2:] / solved[:, :1].clamp(min=0.1)
        place = place + step.clamp(-0.1, 0.1)
    return place


def _blurred(images: Tensor) -> Tensor:
    """Return the images after a binomial filter of five pixels: what only the sharper of two shows does not count."""
    for dim in (2, 3):
        for _ in range(2):  # 1, 2, 1 twice is 1, 4, 6, 4, 1
            first, last = images.narrow(dim, 0, 1), images.narrow(dim, images.shape[dim] - 1, 1)
            padded = torch.cat([first, images, last], dim)
            images = (padded.narrow(dim, 0, SIDE) + 2 * images + padded.narrow(dim, 2, SIDE)) / 4
    return images


def _agreement(a: Tensor, b: Tensor) -> Tensor:
    """Return the share of the windows with texture that agree, (P,). a, b: (P, 1, SIDE, SIDE)."""
    a, b = ((each - each.mean((2, 3), keepdim=True)) / each.std((2, 3), keepdim=True).clamp(min=1.0) for each in (a, b))
    mean_a, mean_b, aa, bb, ab = (F.avg_pool2d(each, WINDOW, STRIDE) for each in (a, b, a * a, b * b, a * b))
    of_a, of_b = (aa - mean_a.square()).clamp(min=1e-8), (bb - mean_b.square()).clamp(min=1e-8)
    correlation = (ab - mean_a * mean_b) / (of_a * of_b).sqrt()
    has_texture = torch.maximum(of_a, of_b) >= TEXTURE**2
    agrees = has_texture & (correlation >= WINDOW_CORRELATION)
    count = has_texture.sum((1, 2, 3))
    share = agrees.sum((1, 2, 3)) / count.clamp(min=1)
    return torch.where(count >= LEAST_WINDOWS * has_texture[0].numel(), share, 0.0)
