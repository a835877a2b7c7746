"""Section: a map of all images, on which those that look alike to a net are close to each other."""

import base64
import io
import json

import numpy as np
from PIL import Image

from imagenet_ddp.data.decoding.errors import UnreadableImage
from imagenet_ddp.data.sources.walk import map_concurrently
from imagenet_ddp.sections.section import Checked, Section
from imagenet_ddp.system.text import alphabetical

MOST_POINTS = 20_000  # of more images, these are drawn by lot
MOST_PICTURES = 1_500
TILE = 80  # pixels of a picture


def image_map(checked: Checked) -> Section | None:
    features = checked.features
    if features is None or len(features) < 3:
        return None
    order = np.random.default_rng(0).permutation(len(features))[:MOST_POINTS]
    places = principal_plane(features.vectors)[order]
    pictured = order[:MOST_PICTURES].tolist()
    wanted = [features.place(row) for row in pictured]
    columns = max(int(np.ceil(len(wanted) ** 0.5)), 1)
    sheet = Image.new("RGB", (columns * TILE, -(-len(wanted) // columns) * TILE), "#808080")
    for number, tile in enumerate(map_concurrently(lambda place: _tile(checked, *place), wanted)):
        if tile is not None:
            left, top = number % columns * TILE, number // columns * TILE
            sheet.paste(tile, (left + (TILE - tile.width) // 2, top + (TILE - tile.height) // 2))
    stream = io.BytesIO()
    sheet.save(stream, format="JPEG", quality=70)
    points = [
        [*place, int(features.targets[row]), checked.name(*features.place(row))]
        for place, row in zip(places.tolist(), order.tolist(), strict=True)
    ]
    labels = sorted(enumerate(features.labels), key=lambda each: alphabetical(each[1]))
    context = {
        "points": json.dumps(points), "labels": labels, "columns": columns, "tile": TILE,
        "pictures": len(wanted), "num_points": len(points), "total": len(features),
        "sheet": f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}",
    }  # fmt: skip
    return Section("image_map", "Map", context, heading="Map of the images")


def principal_plane(vectors: np.ndarray) -> np.ndarray:
    """Return the position of each image on the two axes along which the directions of the vectors vary most, int (N,
    2), from 0 to 1,000. vectors: float (N, D)."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    unit = unit - unit.mean(0)
    _, axes = np.linalg.eigh(unit.T @ unit)  # in ascending order
    places = unit @ axes[:, : -min(2, axes.shape[1]) - 1 : -1]
    places = np.pad(places, ((0, 0), (0, 2 - places.shape[1])))
    least, most = np.percentile(places, (0.5, 99.5), axis=0)  # a few outliers must not press all others together
    shares = (places - least) / np.maximum(most - least, 1e-12)
    return np.rint(1000 * shares.clip(0, 1)).astype(int)


def _tile(checked: Checked, split: str, index: int) -> Image.Image | None:
    try:
        picture = checked.images[split].open(index)
        image = Image.fromarray(np.ascontiguousarray(picture.region(0, 0, picture.height, picture.width, size=TILE)))
    except (UnreadableImage, OSError):
        return None
    image.thumbnail((TILE, TILE))
    return image
