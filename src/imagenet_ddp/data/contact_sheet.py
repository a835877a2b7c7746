"""Draw images in a grid, with lines of text below each image. `write_sheet` draws a training batch as the model
receives it."""

import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from imagenet_ddp.data.transforms import EvalTransform
from imagenet_ddp.system.files import atomic_path
from imagenet_ddp.system.text import printable

FILE = "train_batch.png"
COLUMNS, ROWS = 8, 8
LEAST_SIDE, MOST_SIDE = 96, 128  # side of a tile in pixels; smaller images are enlarged, larger images are shrunk
GAP, LINE, FONT_SIZE = 4, 14, 11  # pixels
BACKGROUND, INK = (255, 255, 255), (0, 0, 0)
MOST_LABELS = 3  # shown of an image that has several
LEAST_SHARE = 0.005  # labels with a smaller share of a mixed image are not shown


class Line(NamedTuple):
    """One line below an image: a name, which is cut off if it is too long, and a suffix that is always shown in
    full. wraps: whether the rest of a name that is too long stands on further lines."""

    name: str
    share: str = ""
    wraps: bool = False


def write_sheet(path: Path, batch: Mapping[str, Any], transform: EvalTransform, labels: Sequence[str]) -> None:
    """Draw the first images of a batch that has been normalised and mixed on its device, and write them to `path` as a
    PNG file. transform: has the mean and std with which the batch was normalised. labels: names of the classes. This
    function waits for the device."""
    count = min(int(batch["num_counted"]) or len(batch["target"]), COLUMNS * ROWS)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (transform.mean, transform.std))
    images = batch["image"][:count].detach().float().cpu()
    levels = torch.addcmul(255 * mean + 0.5, images, 255 * std)  # 0.5 is added because the cast below rounds down
    pixels = levels.clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
    target = batch["target"][:count].cpu()
    soft_target = batch["soft_target"][:count].float().cpu() if "soft_target" in batch else [None] * count
    captions = [caption(*each, labels) for each in zip(target, soft_target, strict=True)]
    save_sheet(path, draw_sheet(pixels, captions))


def save_sheet(path: Path, sheet: Image.Image) -> None:
    with atomic_path(path) as draft:
        # the lowest compression level: a higher one takes a second and makes the file only a fifth smaller
        sheet.save(draft, format="PNG", compress_level=1)


def caption(target: Tensor, soft_target: Tensor | None, labels: Sequence[str]) -> list[Line]:
    """Return one line per label: "cat", or "cat 0.70" and "dog 0.30" for a mixed batch. target: int64, a scalar; for
    several labels, uint8 (classes,). soft_target: float (classes,)."""
    if target.dim():
        return [Line(drawable(labels[int(index)])) for index in target.nonzero()[:MOST_LABELS, 0]]
    if soft_target is None:
        return [Line(drawable(labels[int(target)]))]
    shares = {int(index): float(soft_target[index]) for index in soft_target.topk(min(2, len(labels))).indices}
    return [Line(drawable(labels[index]), f" {share:.2f}") for index, share in shares.items() if share >= LEAST_SHARE]


def drawable(name: str) -> str:
    """Return the name of a folder, which may contain any bytes, as printable text."""
    return printable(unicodedata.normalize("NFC", name))  # macOS may store ö as o and an accent


@cache
def _font() -> Any:
    """Return DejaVu Sans, which is a part of matplotlib. Pillow's built-in font has only ASCII."""
    import matplotlib

    return ImageFont.truetype(f"{matplotlib.get_data_path()}/fonts/ttf/DejaVuSans.ttf", FONT_SIZE)


def draw_sheet(pixels: Tensor, captions: Sequence[Sequence[Line]]) -> Image.Image:
    """Draw the images in a grid. pixels: uint8 (N, H, W, 3). captions: the lines below each image."""
    font, size = _font(), pixels.shape[1]
    # a small image is enlarged by an integer factor
    side = size * -(-LEAST_SIDE // size) if size < LEAST_SIDE else min(size, MOST_SIDE)
    texts = [[text for line in lines for text in _fitted(line, font, side)] for lines in captions]
    height = side + LINE * max(map(len, texts)) + GAP
    columns = min(COLUMNS, len(pixels))
    rows = -(-len(pixels) // columns)
    sheet = Image.new("RGB", (GAP + columns * (side + GAP), GAP + rows * (height + GAP)), BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for number, (array, lines) in enumerate(zip(pixels, texts, strict=True)):
        row, column = divmod(number, columns)
        left, top = GAP + column * (side + GAP), GAP + row * (height + GAP)
        tile = Image.fromarray(array.numpy())
        if tile.size != (side, side):
            nearest = side > tile.width  # the pixels of an enlarged image stay sharp
            tile = tile.resize((side, side), Image.Resampling.NEAREST if nearest else Image.Resampling.BILINEAR)
        sheet.paste(tile, (left, top))
        for below, text in enumerate(lines):
            draw.text((left, top + side + LINE * below), text, INK, font)
    return sheet


def _fitted(line: Line, font: Any, width: int) -> list[str]:
    """Return the texts of a line, none of which is wider than `width` pixels unless its suffix is."""
    head, _, rest = line.name.rpartition(" ") if line.wraps else ("", "", line.name)
    if head and font.getlength(f"{line.name}{line.share}") > width:
        *above, last = _fitted(Line(head, wraps=True), font, width)
        if font.getlength(f"{last} {rest}{line.share}") <= width:
            return [*above, f"{last} {rest}{line.share}"]
        return [*above, last, *_fitted(Line(rest, line.share), font, width)]
    name, dots = line.name, ""
    while name and font.getlength(f"{name}{dots}{line.share}") > width:
        name, dots = name[:-1], ".."
    return [f"{name}{dots}{line.share}"]
