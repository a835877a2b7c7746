"""Measure calibration: expected calibration error, and the temperature that minimises the cross entropy. Calibrate a
net."""

import math

import numpy as np
import torch
from torch import Tensor

NUM_BINS = 15  # Guo et al. 2017, arXiv:1706.04599, section 5
MIN_IMAGES = 50  # from which a factor is found; of 20, it made the loss of a good regression worse
LOG_TEMPERATURES = np.linspace(math.log(0.1), math.log(10.0), 41)  # the search range is 0.1 to 10


def log_sums(logits: Tensor) -> Tensor:
    """Return log(sum(exp((logits - maximum) / T))) for each image and each of 41 temperatures T, float32 (B, 41).
    logits: (B, C).

    These sums suffice to compute the loss and the confidence at any temperature in between, so the logits need not be
    kept.
    """
    below = logits - logits.amax(1, keepdim=True)
    sums = [(below / float(np.exp(each))).exp().sum(1).log() for each in LOG_TEMPERATURES]
    return torch.stack(sums, 1).float()


def calibration_error(confidence: np.ndarray, is_right: np.ndarray) -> float:
    """Return the expected calibration error over 15 bins of equal width. confidence: float (N,) in 0..1; is_right: bool
    (N,). torchmetrics' CalibrationError differs: it puts a confidence of exactly 1 into a 16th bin."""
    bins = np.minimum((np.nan_to_num(confidence) * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    gaps = np.bincount(bins, weights=is_right - confidence.astype(np.float64), minlength=NUM_BINS)
    return float(np.abs(gaps).sum() / len(confidence))


def calibrate(
    confidence: np.ndarray, is_right: np.ndarray, losses: np.ndarray, sums: np.ndarray, gaps: np.ndarray
) -> dict[str, float | None]:
    """Return ece, temperature, ece_at_temperature, nll and nll_at_temperature for N > 0 images. Those of a temperature
    are None if no prediction is wrong, or if no temperature in the search range fits best.

    confidence, is_right, losses: (N,). sums: the output of log_sums, (N, 41). gaps: (N,), the largest logit minus the
    logit of the true class.
    """
    means, gap = sums.mean(0, dtype=np.float64), gaps.mean(dtype=np.float64)
    best = int((means + gap / np.exp(LOG_TEMPERATURES)).argmin())
    first = min(max(best - 1, 0), len(LOG_TEMPERATURES) - 4)
    nodes = slice(first, first + 4)
    centre = LOG_TEMPERATURES[best]
    ends = [float(LOG_TEMPERATURES[each]) for each in (max(best - 1, 0), min(best + 1, 40))]
    tried = np.linspace(*ends, num=2001)
    # these weights combine the values at four neighbouring temperatures to the cubic polynomial through them
    weights = np.linalg.solve(np.vander(LOG_TEMPERATURES[nodes] - centre, 4).T, np.vander(tried - centre, 4).T)
    nlls = means[nodes] @ weights + gap / np.exp(tried)
    found = int(nlls.argmin())
    is_fitted = not is_right.all() and LOG_TEMPERATURES[0] < tried[found] < LOG_TEMPERATURES[-1]
    confidence_then = np.exp(-(sums[:, nodes] @ weights[:, found])).clip(0, 1)
    return {
        "ece": calibration_error(confidence, is_right),
        "temperature": float(np.exp(tried[found])) if is_fitted else None,
        "ece_at_temperature": calibration_error(confidence_then, is_right) if is_fitted else None,
        "nll": float(losses.mean(dtype=np.float64)),
        "nll_at_temperature": float(nlls[found]) if is_fitted else None,
    }


def calibrating_factor(logits: Tensor, targets: Tensor) -> float:
    """Return the positive factor of the logits at which the cross entropy of held-out images is least: 1 / temperature
    (Guo et al. 2017). Half an image counts as wrong, its class being any other, so that the factor is finite where all
    predictions are right (as in Platt 1999, "Probabilistic outputs for support vector machines", which counts one).

    logits: (N, C), N > 0, C > 1. targets: int64 (N,).
    """
    logits = logits.double().log_softmax(1)
    number, num_classes = logits.shape
    share = 0.5 / (number + 1)
    of_class = logits.gather(1, targets[:, None])[:, 0]
    aim = ((1 - share) * of_class + share * (logits.sum(1) - of_class) / (num_classes - 1)).mean()
    factor = 1.0
    for _ in range(100):  # Newton's method; the loss is convex
        shares = (factor * logits).softmax(1)
        means = (shares * logits).sum(1)
        curvature = ((shares * logits.square()).sum(1) - means.square()).mean().clamp_min(1e-12)
        step = float((means.mean() - aim) / curvature)
        before, factor = factor, min(max(factor - step, factor / 2), 2 * factor)
        if abs(factor - before) < 1e-6 * factor:
            break
    return factor
