"""The logistic regression on features: that it is the minimum of its objective, and which penalty it chooses."""

import pytest
import torch
import torch.nn.functional as F

from imagenet_ddp.models.regression import L2, PrincipalAxes, fit_regression


def blobs(num: int, size: int, spread: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of 4 classes around random centres, of very different scales, one of them constant."""
    generator = torch.Generator().manual_seed(3)
    centres = torch.randn(4, size, generator=generator)
    targets = torch.arange(num) % 4
    features = centres[targets] + spread * torch.randn(num, size, generator=generator)
    features = features * torch.logspace(-2, 2, size) + 5
    features[:, 1] = 7
    return features, targets


@pytest.mark.parametrize("l2", [L2[0], L2[-1]])
@pytest.mark.parametrize(("num", "size"), [(200, 12), (40, 60)])
def test_the_gradient_of_the_objective_is_zero(num: int, size: int, l2: float):
    """By definition, in float64: mean cross entropy + l2 / 2 · |weights of the standardised features|²."""
    features, targets = blobs(num, size, 1.5)
    axes = PrincipalAxes(features)
    weight, bias = (each.double() for each in axes.of_features(axes.minimise(targets, 4, l2)))
    features = features.double()
    std = features.std(0)
    std = std.clamp_min(0.01 * std.mean())
    scaled = (features - features.mean(0)) / std
    # the same function in terms of the standardised features
    own = (weight * std).requires_grad_()
    own_bias = (bias + weight @ features.mean(0)).requires_grad_()
    objective = F.cross_entropy(F.linear(scaled, own, own_bias), targets) + l2 / 2 * own.square().sum()
    for gradient in torch.autograd.grad(objective, (own, own_bias)):
        assert gradient.abs().max() < 1e-4
    torch.testing.assert_close(
        F.linear(features, weight, bias), F.linear(scaled, own, own_bias).detach(), rtol=1e-3, atol=1e-2
    )


def test_the_penalty_is_that_with_the_lowest_loss_on_the_held_out_tenth():
    """Well separated classes need little of it, noise needs much."""
    features, targets = blobs(300, 30, 0.3)
    found = fit_regression(features, targets, 4, seed=1)
    assert found.l2 < 0.1
    assert (F.linear(features, found.weight, found.bias).argmax(1) == targets).all()
    of_no_class = torch.randn(300, 30, generator=torch.Generator().manual_seed(0))
    noise = fit_regression(of_no_class, targets, 4, seed=1)
    assert noise.l2 == max(L2)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "features",
    [torch.ones(1, 5), torch.randn(2, 5), torch.ones(20, 5)],
    ids=["one image", "two images", "equal images"],
)
def test_images_that_do_not_vary_give_finite_weights(features: torch.Tensor):
    found = fit_regression(features, torch.arange(len(features)) % 2, 2, seed=0)
    assert F.linear(features, found.weight, found.bias).isfinite().all()


def test_only_the_fitted_images_count():
    features, targets = blobs(200, 12, 1.5)
    is_fitted = torch.arange(200) < 120
    spoiled = targets.where(is_fitted, (targets + 1) % 4)
    axes = PrincipalAxes(features)
    torch.testing.assert_close(axes.minimise(spoiled, 4, 0.1, is_fitted), axes.minimise(targets, 4, 0.1, is_fitted))
    assert (axes.logits(axes.minimise(spoiled, 4, 0.1, is_fitted)).argmax(1) == targets).float().mean() > 0.6


def test_few_images_are_fitted_with_one_thread_and_the_others_are_free_again(monkeypatch: pytest.MonkeyPatch):
    """Threads that wait for a core that other programs use took ten times the CPU time of the fit."""
    before, used = torch.get_num_threads(), set[int]()
    softmax = torch.Tensor.log_softmax
    torch.set_num_threads(2)
    try:
        monkeypatch.setattr(
            torch.Tensor, "log_softmax", lambda *each: used.add(torch.get_num_threads()) or softmax(*each)
        )
        axes = PrincipalAxes(torch.randn(40, 8, generator=torch.Generator().manual_seed(0)))
        axes.minimise(torch.arange(40) % 2, 2, 0.1)
        assert (used, torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(before)
