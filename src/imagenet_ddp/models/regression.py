"""Fit a multinomial logistic regression to the features of images, quickly: in their principal axes, where a bound of
the curvature is known (Böhning 1992, Annals of the Institute of Statistical Mathematics 44, 197)."""

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

L2 = tuple(10 ** (half / 2) for half in range(1, -7, -1))  # strengths tried on the held-out tenth: 3.2 to 0.001
_MOST_EXACT = 2**22  # numbers that are computed with in float64; more of them take too much memory and time
_BLOCK = 4096  # images that are turned at a time
_ONE_THREAD = 2**23  # multiplications of a step; fewer take less time than threads that wait for a busy core
_MOST_STEPS, _SMALLEST = 150, 1e-6  # of the optimizer; share of the largest variance below which an axis is dropped


@dataclass(frozen=True)
class Regression:
    """A logistic regression: logits = features @ weight.T + bias.

    l2: chosen factor of half the squared weights of the standardised features.
    """

    weight: Tensor  # float32 (num_classes, features)
    bias: Tensor  # float32 (num_classes,)
    l2: float


def fit_regression(features: Tensor, targets: Tensor, num_classes: int, seed: int) -> Regression:
    """Fit a multinomial logistic regression. Its L2 penalty is the strongest whose loss on a held-out tenth is at most
    one standard error above the lowest (the one-standard-error rule), because the layers below learn little from a last
    layer that is already certain of all training images. The returned weights are fitted to all images.

    features: float (N, features), N > 0. targets: int64 (N,). seed: chooses the held-out images.
    """
    axes = PrincipalAxes(features)
    targets = targets.to(axes.places.device)
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed)).to(targets.device)
    count = max(len(order) // 10, 1)
    held_out = order[:count]
    is_fitted = torch.ones(len(order), dtype=torch.bool, device=targets.device)
    is_fitted[held_out] = len(order) == count  # one image is all there is
    fits: list[tuple[float, float, float, Tensor]] = []
    start = None
    for l2 in L2:
        start = axes.minimise(targets, num_classes, l2, is_fitted, start)
        logits = axes.logits(start, held_out)
        losses = F.cross_entropy(logits, targets[held_out], reduction="none")
        error = losses.std(correction=0).item() / count**0.5
        fits.append((losses.mean().item(), error, l2, start))
        lowest, its_error, *_ = min(fits, key=lambda fit: fit[0])
        if fits[-1][0] > lowest + its_error:  # weaker ones fit the training images ever more closely
            break
    lowest, error, *_ = min(fits, key=lambda fit: fit[0])
    l2, start = max((fit[2:] for fit in fits if fit[0] <= lowest + error), key=lambda fit: fit[0])
    return Regression(*axes.of_features(axes.minimise(targets, num_classes, l2, start=start)), l2)


class PrincipalAxes:
    """Features of mean 0 and variance 1, in the axes of their covariance. Holds one copy of them: float64 of few,
    whose minimum is flat, and float32 of many.

    features: float (N, features). places: float (N, axes), the features in these axes.
    """

    def __init__(self, features: Tensor):
        is_exact = features.numel() <= _MOST_EXACT and features.device.type != "mps"  # which has no float64
        features = features.double() if is_exact else features.float()
        self._mean, std = features.mean(0), features.std(0, correction=min(len(features) - 1, 1))
        std = std.clamp_min(0.01 * std.mean())  # a feature that hardly varies must not become noise of variance 1
        self._std = std.where(std > 0, 1.0)  # one image, or all features equal
        scaled = features - self._mean
        scaled /= self._std
        if len(scaled) < scaled.shape[1]:  # as many axes as images are enough
            variances, sides = _eigen(scaled @ scaled.T / len(scaled))
            self._axes = scaled.T @ sides / (variances * len(scaled)).sqrt()
            self.places = sides * (variances * len(scaled)).sqrt()
        else:
            variances, self._axes = _eigen(scaled.T @ scaled / len(scaled))
            for begin in range(0, len(scaled), _BLOCK):  # in place, because a copy would be as large as the features
                rows = scaled[begin : begin + _BLOCK]
                rows[:, : len(variances)] = rows @ self._axes
            self.places = scaled[:, : len(variances)]
        self._variances = variances

    def minimise(
        self,
        targets: Tensor,
        num_classes: int,
        l2: float,
        is_fitted: Tensor | None = None,
        start: Tensor | None = None,
    ) -> Tensor:
        """Return the weights and, in the last column, the biases in these axes, float (num_classes, axes + 1), at the
        minimum of the mean cross entropy plus l2 / 2 times the squared weights.

        targets: int64 (N,). is_fitted: bool (N,), the images that count; None: all. start: weights of another strength,
        of the same images.
        """
        share = self.places.new_ones(len(targets)) if is_fitted is None else is_fitted.to(self.places)
        share = share / share.sum()
        # half the variance bounds the curvature, which is lower where the images are certain: a quarter is in between
        scales = torch.cat([0.25 * self._variances + l2, self._variances.new_full((1,), 0.25)]).rsqrt()
        first = self._variances.new_zeros(num_classes, len(scales)) if start is None else start / scales
        weights = first.clone().requires_grad_()
        is_exact = weights.dtype == torch.float64
        optimizer = torch.optim.LBFGS(
            [weights], max_iter=_MOST_STEPS, history_size=20, tolerance_grad=1e-7 if is_exact else 2e-6,
            tolerance_change=1e-12 if is_exact else 1e-9,
            line_search_fn="strong_wolfe",
        )  # fmt: skip

        def objective() -> Tensor:
            scaled = weights.detach() * scales
            log_shares = self.logits(scaled).log_softmax(1)
            loss = -(log_shares.gather(1, targets[:, None])[:, 0] * share).sum()
            loss += l2 / 2 * scaled[:, :-1].square().sum()
            errors = log_shares.exp_()
            errors[torch.arange(len(targets), device=targets.device), targets] -= 1
            errors *= share[:, None]
            gradient = torch.cat([errors.T @ self.places + l2 * scaled[:, :-1], errors.sum(0)[:, None]], 1)
            weights.grad = gradient * scales
            return loss

        is_small = self.places.numel() * num_classes <= _ONE_THREAD
        with torch.no_grad(), _one_thread() if is_small else nullcontext():
            optimizer.step(objective)  # pyright: ignore[reportUnknownMemberType]
        return weights.detach() * scales

    def logits(self, weights: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """Return the logits of the images of these rows, float (N, num_classes). weights: result of minimise."""
        return F.linear(self.places[rows], weights[:, :-1], weights[:, -1])

    def of_features(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return (weight, bias) for the features as given, float32 on the CPU. weights: result of minimise."""
        weight = weights[:, :-1] @ self._axes.T / self._std
        return weight.float().cpu(), (weights[:, -1] - weight @ self._mean).float().cpu()


@contextmanager
def _one_thread() -> Generator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return (variances, axes) of a covariance, without those of no variance: (axes,), (N, axes)."""
    on = matrix.cpu() if matrix.device.type == "mps" else matrix  # which has no eigh
    found: tuple[Tensor, Tensor] = cast("Any", torch.linalg).eigh(on)
    values, vectors = found
    there = values > _SMALLEST * values[-1].clamp_min(_SMALLEST)
    there[-1] = True
    return values[there].clamp_min(_SMALLEST).to(matrix.device), vectors[:, there].to(matrix.device)
