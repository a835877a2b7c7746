"""Draw a confusion matrix."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from imagenet_ddp.runs import plot_style
from imagenet_ddp.system.atomic_write import atomic_write
from imagenet_ddp.system.text import count_noun


def draw_confusion(out: Path, matrix: np.ndarray, labels: Sequence[str], num_classes: int) -> None:
    """Write the figure as a PNG. matrix: (N, N) numbers of images, with true classes as rows and predicted classes as
    columns. labels: names of the N classes. num_classes: number of classes of the data; if it exceeds N, these N are
    the most confused ones."""
    chosen = "" if len(labels) == num_classes else f", the most confused of {num_classes}"
    side = 4 + 0.16 * len(labels)
    figure = plot_style.new_figure(side, side, "Confusion matrix", f"{count_noun(len(labels), 'class')}{chosen}")
    axes = figure.subplots()
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, shrink=0.8, label="share of the true class's images")
    names = [name if len(name) <= 20 else f"{name[:19]}…" for name in labels]
    for axis, heading in ((axes.xaxis, "predicted"), (axes.yaxis, "true")):
        axis.set_ticks(range(len(names)), names, fontsize=8, parse_math=False)
        axis.set_label_text(heading)
    axes.tick_params(axis="x", rotation=90)
    if len(names) <= 20:
        for (row, column), count in np.ndenumerate(matrix):
            if count:
                color = "white" if share[row, column] > 0.5 else "black"
                axes.text(column, row, str(int(count)), ha="center", va="center", fontsize=7, color=color)
    atomic_write(out, plot_style.png(figure))
