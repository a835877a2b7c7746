"""Compare the probabilities of the predictions with their accuracy."""

from dataclasses import dataclass

import numpy as np

from imagenet_ddp.report.page.chart import Chart, Line, ticks

NUM_BINS = 15
MIN_IMAGES = 5  # of a bin in the diagram; the accuracy of fewer images is mostly chance


@dataclass(frozen=True)
class Bin:
    low: float
    high: float
    num_images: int
    confidence: float  # mean
    accuracy: float


def bins(confidence: np.ndarray, is_right: np.ndarray) -> list[Bin]:
    """Return those of the bins of equal width that contain images. Images with a probability of NaN are left out."""
    there = np.isfinite(confidence)
    confidence, is_right = confidence[there], is_right[there]
    number = np.minimum((confidence * NUM_BINS).astype(int), NUM_BINS - 1)
    found = []
    for each in np.unique(number).tolist():
        inside = number == each
        found.append(Bin(each / NUM_BINS, (each + 1) / NUM_BINS, int(inside.sum()), float(confidence[inside].mean()),
                         float(is_right[inside].mean())))  # fmt: skip
    return found


def expected_error(found: list[Bin]) -> float:
    """Return the expected calibration error (ECE): the mean of |confidence - accuracy| over the bins, weighted by their
    images."""
    total = sum(each.num_images for each in found)
    return sum(each.num_images * abs(each.confidence - each.accuracy) for each in found) / max(total, 1)


def diagram(found: list[Bin]) -> Chart:
    """Return the reliability diagram, without the bins that have too few images."""
    found = [each for each in found if each.num_images >= MIN_IMAGES]
    shares = ticks(0, 1, percent=True)
    title = f"Accuracy of predictions by their probability, in bins of at least {MIN_IMAGES} images"
    chart = Chart(title, shares, shares, height=320)
    bars = [(each.low, each.high, each.accuracy, f"{each.low:.0%} to {each.high:.0%}: {each.num_images:,} images, "
             f"mean probability {each.confidence:.1%}, accuracy {each.accuracy:.1%}") for each in found]  # fmt: skip
    chart.add_bars(bars)
    confidence, accuracy = np.array([(each.confidence, each.accuracy) for each in found]).reshape(-1, 2).T
    chart.add_line(Line("perfectly calibrated", "dashed", np.array([0, 1]), np.array([0, 1])))
    chart.add_line(Line("this run", "plain", confidence, accuracy))
    return chart
