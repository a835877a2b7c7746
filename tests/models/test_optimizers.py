import copy
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers.plans import plan_of
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from imagenet_ddp.config import conf_dir
from imagenet_ddp.config.schema.optimizers import OPTIMIZERS, OptimConfig, OwnOptimizer
from imagenet_ddp.config.schema.run import RunConfig
from imagenet_ddp.config.schema.schedules import SCHEDULES, Cosine, MultiStep, ScheduleConfig, Step
from imagenet_ddp.config.section import to_config
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.factory import create_model
from imagenet_ddp.models.head import head_names, is_in_head
from imagenet_ddp.models.lr_schedules import (
    choose_warmup_epochs,
    make_schedule,
    scaled_lr,
    scaling_rule,
    schedule_spanning,
)
from imagenet_ddp.models.optimizers import choose_fused, make_optimizer, parameter_groups, place_state

COS_60 = (1 + math.cos(math.pi / 3)) / 2  # a third of the way down the cosine


def optim(**keys: Any) -> OptimConfig:
    return to_config(keys, OptimConfig)


def schedule(**keys: Any) -> ScheduleConfig:
    return to_config(keys, ScheduleConfig)


@pytest.mark.parametrize(
    ("keys", "max_epochs", "expected"),
    [
        ({"name": "constant", "warmup_epochs": 4}, -1, {0: 0, 1: 0.25, 3.9: 0.975, 4: 1, 1000: 1}),
        ({"name": "step", "warmup_epochs": 5}, 90, {0: 0, 2.5: 0.5, 5: 1, 30: 0.1, 60: 0.01}),
        ({"name": "cosine", "warmup_epochs": 6}, 90, {0: 0, 3: 0.5, 6: 1, 34: COS_60, 48: 0.5, 90: 0}),
        ({"name": "linear", "final_fraction": 0.2, "warmup_epochs": 2}, 10, {1: 0.5, 2: 1, 6: 0.6, 10: 0.2, 12: 0.2}),
        ({"name": "multistep", "milestones": [2, 4]}, 6, {1.9: 1, 2: 0.1, 3.9: 0.1, 4: 0.01}),
        ({"name": "exponential", "gamma": 0.5, "interval": "epoch", "warmup_epochs": 1}, 6, {1.9: 1, 2.5: 0.5}),
        ({"name": "poly", "power": 2.0}, 10, {0: 1, 5: 0.25, 10: 0}),
        ({"name": "cosine", "cycle_epochs": 4}, -1, {0: 1, 402: 0.5}),
        ({"name": "wsd", "decay_fraction": 0.5, "warmup_epochs": 2}, 10, {1: 0.5, 2: 1, 6: 1, 8: 0.5, 10: 0}),
        ({"name": "one_cycle"}, 10, {0: 0.04, 3: 1, 6.5: 0.5, 10: 0}),
        ({"name": "constant", "warmup": "constant", "warmup_start": 0.1, "warmup_epochs": 2}, 9, {1.9: 0.1, 2: 1}),
    ],
)
def test_schedules(keys: dict[str, Any], max_epochs: int, expected: dict[float, float]):
    factor = make_schedule(schedule(**keys), max_epochs, keys.get("warmup_epochs", 0))
    assert {epochs: factor(epochs) for epochs in expected} == pytest.approx(expected, abs=1e-9)


SHARE = st.floats(0, 1)
INSIDE = st.floats(0, 1, exclude_min=True, exclude_max=True)


@given(
    st.fixed_dictionaries({
        "name": st.sampled_from([*SCHEDULES]), "interval": st.sampled_from(["step", "epoch"]),
        "step_epochs": st.integers(1, 40), "milestones": st.lists(st.integers(1, 200), min_size=1, max_size=4),
        "gamma": INSIDE | st.just(1.0), "power": st.floats(0.1, 9), "cycle_epochs": st.none() | st.integers(1, 40),
        "decay_fraction": INSIDE | st.just(1.0), "peak_fraction": INSIDE, "final_fraction": SHARE,
        "warmup": st.sampled_from(["linear", "constant"]), "warmup_start": SHARE,
    }),
    st.integers(1, 200), st.just(0.0) | st.floats(0, 220), st.lists(SHARE, min_size=2, max_size=8),
)  # fmt: skip
def test_any_schedule(options: dict[str, Any], max_epochs: int, warmup: float, shares: list[float]):
    """A factor from 0 to 1, which ends where it should."""
    others = {"warmup_epochs", "warmup_steps", "milestone_steps", "_target_", "args"}
    assert set(options) == set(ScheduleConfig.any_of()) - others
    factor = make_schedule(schedule(**options), max_epochs, warmup)
    assert all(0 <= factor(share * max_epochs) <= 1 for share in [*shares, 1, 2])
    name = options["name"]
    repeats = name == "cosine" and options["cycle_epochs"]
    if warmup < max_epochs and name in ("cosine", "linear", "poly", "one_cycle", "wsd") and not repeats:
        assert factor(max_epochs) == pytest.approx(options["final_fraction"], abs=1e-9)


@pytest.mark.parametrize(
    ("scaling", "global_batch_size", "expected"),
    [("none", 4096, 0.1), ("linear", 1024, 0.4), ("linear", 32, 0.0125), ("sqrt", 1024, 0.2)],
)
def test_the_learning_rate_follows_the_global_batch(scaling: str, global_batch_size: int, expected: float):
    assert scaled_lr(optim(lr=0.1, scaling=scaling), global_batch_size) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("keys", "global_batch_size", "max_epochs", "epochs"),
    [
        ({}, 256, 90, 0),  # not scaled up
        ({}, 257, 90, 5),
        ({}, 2048, None, 5),
        ({}, 2048, 30, 3),  # a tenth of a short training
        ({"warmup_epochs": 7.5}, 256, 1, 7.5),
        ({"name": "one_cycle"}, 2048, 90, 0),
    ],
)
def test_only_a_rate_that_is_scaled_up_is_warmed_up(
    keys: dict[str, Any], global_batch_size: int, max_epochs: int | None, epochs: float
):
    assert choose_warmup_epochs(schedule(**keys), optim(), global_batch_size, max_epochs)[0] == epochs


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_rule_of_scaling_is_timms(name: str):
    """train.py of timm: sqrt if the name has ada or lamb, else linear."""
    is_sqrt = name in ("adam", "adamw", "nadam", "nadamw", "adabelief", "adafactor", "adan", "lamb")
    assert scaling_rule(optim(name=name)) == ("sqrt" if is_sqrt else "linear")
    assert scaling_rule(optim(name=name, scaling="none")) == "none"
    own = optim(_target_="torch.optim.Adamax")  # a recipe's reference_batch is not meant for it
    assert scaling_rule(own) == "none" and scaling_rule(optim(_target_="torch.optim.Adamax", scaling="sqrt")) == "sqrt"


@pytest.mark.parametrize("file", sorted((conf_dir() / "optim").glob("*.yaml")), ids=lambda file: file.stem)
def test_a_file_that_sets_a_rate_sets_the_batch_it_is_for(file: Path):
    """Else the recipe's own batch stays, and the rate is scaled from it. With the file of every recipe."""
    values = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert {"name", "lr", "reference_batch", "weight_decay"} <= values.keys()
    plan = plan_of(f"optim={file.stem}", "recipe=imagenet", f"data.batch_size={values['reference_batch']}")
    assert plan.learning_rate.value == values["lr"]


@pytest.mark.parametrize(
    ("keys", "fused", "expected"),
    [
        ({"momentum": 0.8, "nesterov": True}, False, {"momentum": 0.8, "nesterov": True}),
        ({"name": "adamw", "betas": [0.8, 0.9]}, True, {"betas": (0.8, 0.9), "fused": True}),
        ({"name": "adamw", "args": {"weight_decay": 0.5}}, False, {"weight_decay": 0.5}),
        ({"_target_": "torch.optim.AdamW", "args": {"betas": (0.8, 0.9)}}, False, {"betas": (0.8, 0.9)}),
    ],
)
def test_an_optimizer_gets_its_arguments(keys: dict[str, Any], fused: bool, expected: dict[str, Any]):
    net = nn.Linear(2, 2)
    frozen, net.weight.requires_grad = net.weight, False
    made = make_optimizer(optim(weight_decay=1e-3, **keys), net, lr=0.3, fused=fused)
    assert type(made) is (torch.optim.AdamW if "adamw" in str(keys).lower() else torch.optim.SGD)
    [group] = made.param_groups
    assert {**group, "weight_decay": group["weight_decay"]}.items() >= {"lr": 0.3, **expected}.items()
    assert group["params"] == [net.bias] and frozen.requires_grad is False
    with pytest.raises(ConfigError, match="must accept the optim"):
        make_optimizer(optim(args={"speed": 1}), net, lr=0.1)


@pytest.mark.parametrize("fused", [False, True])
def test_counters_of_steps_are_where_a_changed_setting_needs_them(fused: bool):
    """A fused step on a GPU takes the address of a counter on the CPU for one of its own."""
    nets = [nn.Linear(2, 1, bias=False, device=device) for device in ("cpu", "meta")]
    of_cpu, of_device = (net.weight for net in nets)
    before = make_optimizer(optim(name="adamw"), nets[0], lr=0.1, fused=not fused)
    of_cpu.grad = torch.ones(1, 2)
    before.step()
    resumed = make_optimizer(optim(name="adamw"), nets[1], lr=0.1, fused=fused)
    resumed.load_state_dict(before.state_dict())
    resumed.param_groups[0]["fused"] = fused  # as ImageClassifier does
    assert resumed.state[of_device]["step"].device.type == ("cpu" if fused else "meta")
    if fused:  # a value of the device meta cannot be copied back
        place_state(resumed)
        assert resumed.state[of_device]["step"].device.type == "meta"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_lowers_a_loss(name: str):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))
    images, target = torch.randn(32, 3, 2, 2), torch.arange(32) % 3
    made = make_optimizer(optim(name=name, betas=None), net, lr=0.01, heads=("3",))
    first = nn.functional.cross_entropy(net(images), target)
    for _ in range(10):
        made.zero_grad()
        nn.functional.cross_entropy(net(images), target).backward()
        made.step()
    assert nn.functional.cross_entropy(net(images), target) < first


def test_the_groups_do_not_depend_on_the_number_of_devices():
    keys, net = optim(lr=0.3, lr_head=0.3, reference_batch=256), nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    for batch in (32, 384, 1000):
        assert len(make_optimizer(keys, net, scaled_lr(keys, batch), heads=("1",)).param_groups) == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), (True, "torch has one kernel for the step on CPUs")),
        (("optim=adamw", "trainer.precision=32-true", "trainer.gradient_clip_val=1"), (True, "one kernel")),
        (("optim=adamw", "trainer.precision=bf16-mixed", "trainer.gradient_clip_val=1"), (False, "does not clip")),
        (("optim=rmsprop",), (False, "no fused rmsprop")),
        (("strategy.find_unused_parameters=true", "strategy=ddp"), (False, "only some weights have a momentum")),
        (("model.weights=DEFAULT", "model.freeze=backbone", "model.unfreeze_epoch=1"), (False, "only some weights")),
    ],
)
def test_fused_where_it_can_be(options: tuple[str, ...], expected: tuple[bool, str]):
    plan = plan_of("optim=sgd", "trainer.precision=32-true", *options)
    assert plan.fused.value == expected[0] and expected[1] in plan.fused.reason


def test_no_fused_step_of_scaled_gradients():
    is_fused, reason = choose_fused(RunConfig(optim=optim(name="adam")), "cuda", "16-mixed")
    assert not is_fused and "unscale the gradients" in reason


@pytest.mark.parametrize("to_channels_last", [False, True])
@pytest.mark.parametrize(
    ("name", "fused", "args"),
    [("adamw", True, {}), ("lamb", False, {"foreach": True}), ("muon", False, {})],
)
def test_state_is_resumed_in_another_memory_format(
    name: str, fused: bool, args: dict[str, Any], to_channels_last: bool
):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 5, 3), nn.Flatten())
    images, formats = torch.randn(4, 3, 5, 5), (torch.contiguous_format, torch.channels_last)
    keys = optim(name=name, args=args)

    def train(net: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images), torch.arange(4))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    before = make_optimizer(keys, net.to(memory_format=formats[not to_channels_last]), 0.02, fused)
    train(net, before)
    losses = []
    for memory_format in (formats[not to_channels_last], formats[to_channels_last]):
        resumed = copy.deepcopy(net).to(memory_format=memory_format)
        optimizer = make_optimizer(keys, resumed, 0.02, fused)
        optimizer.load_state_dict(copy.deepcopy(before.state_dict()))
        place_state(optimizer)
        losses.append(train(resumed, optimizer))
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def _trained(made: torch.optim.Optimizer, net: nn.Module) -> dict[str, torch.Tensor]:
    """Take two steps, and return the weights."""
    torch.manual_seed(1)
    for _ in range(2):
        made.zero_grad()
        net(torch.randn(4, 3, 8, 8)).square().sum().backward()
        made.step()
    return {name: parameter.detach().clone() for name, parameter in net.named_parameters()}


class Small(nn.Module):
    """A net with a convolution, a depthwise one, a norm, a position embedding and a last layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.depthwise = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm, self.head = nn.GroupNorm(2, 8), nn.Linear(8, 5)
        self.pos_embed = nn.Parameter(torch.randn(8, 8))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.depthwise(self.conv(images)) + self.pos_embed).mean((2, 3)))


def test_muon_leaves_vectors_embeddings_and_the_last_layer_to_adamw_at_a_rate_of_its_own():
    net, plain = Small(), Small()
    keys = optim(name="muon", lr=0.02, lr_adamw=0.003, momentum=0.95, weight_decay=0.01)
    made = make_optimizer(keys, net, 0.04, heads=("head",))  # scaled by 2, as is the rate of AdamW
    expected = torch.optim.AdamW(plain.parameters(), 0.006, betas=(0.9, 0.95), eps=1e-7, weight_decay=0.01)
    assert {round(group["lr"], 6) for group in made.param_groups} == {0.04, 0.006}
    before = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    made.zero_grad()
    for each, optimizer in ((net, made), (plain, expected)):
        torch.manual_seed(1)
        each(torch.randn(4, 3, 8, 8)).square().sum().backward()
        optimizer.step()
    others = dict(plain.named_parameters())
    for name, parameter in net.named_parameters():
        is_equal = torch.allclose(parameter, others[name], atol=1e-6)
        assert is_equal == (name != "conv.weight"), name
    # the update of a kernel, as a matrix of one row per output channel, is orthogonal: equal singular values
    change = (net.conv.weight - before["conv.weight"] * (1 - 0.04 * 0.01)).detach().flatten(1)
    values = torch.linalg.svdvals(change)
    assert values.min() > 0.5 * values.max()


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_norms_and_biases_have_neither_decay_nor_trust_ratio(name: str):
    """In timm, the trust ratio is for groups with weight decay; here, also if the weight decay is 0."""
    from timm.optim import create_optimizer_v2

    net, other = Small(), Small()
    made = make_optimizer(optim(name=name, weight_decay=0.01), net, 0.1)
    params = [
        {"params": [p for p in other.parameters() if p.dim() < 2], "weight_decay": 0.0},
        {"params": [p for p in other.parameters() if p.dim() > 1]},
    ]
    theirs = create_optimizer_v2(params, name, lr=0.1, weight_decay=0.01, momentum=0.9)
    torch.testing.assert_close(_trained(made, net), _trained(theirs, other))
    for group in make_optimizer(optim(name=name, weight_decay=0.0), Small(), 0.1).param_groups:
        assert group["always_adapt"] == (group["params"][0].dim() > 1)
    assert len(make_optimizer(optim(name=name, no_decay_on=[]), Small(), 0.1).param_groups) == 1


@pytest.mark.parametrize("name", ["cosine", "linear", "poly", "one_cycle", "wsd"])
def test_a_schedule_ends_with_the_steps_that_will_really_run(name: str):
    """trainer.max_steps=25 in epochs of 10 steps; a warm-up and milestones in steps."""
    keys = schedule(name=name, warmup_epochs=0)
    assert schedule_spanning(keys, 0, 2.5, 10)(2.5) == pytest.approx(0, abs=1e-9)
    in_steps = MultiStep(milestone_steps=[20], warmup_steps=5)
    factor = schedule_spanning(in_steps, 0, 9, 10)
    assert [factor(epochs) for epochs in (0, 0.25, 0.5, 1.9, 2.0)] == pytest.approx([0, 0.5, 1, 1, 0.1])


@pytest.mark.parametrize("warmup", [{"warmup_epochs": 9.0}, {"warmup_epochs": 9.0, "warmup_steps": 90}])
def test_a_warm_up_takes_a_quarter_of_the_time_budget_at_most(warmup: dict[str, Any]):
    """Two epochs of ten steps were chosen."""
    keys = Cosine(**warmup)
    factor = schedule_spanning(keys, keys.warmup_epochs, 2, 10, has_budget=True)
    assert [factor(epochs) for epochs in (0, 0.25, 0.5, 2)] == pytest.approx([0, 0.5, 1, 0])
    assert schedule_spanning(keys, keys.warmup_epochs, 2, 10)(2) < 1, "as set, if the epochs were known"


@pytest.mark.parametrize("warmup_steps", [0, 1, 3, 5])
def test_no_step_of_a_cycle_is_lost_to_rounding(warmup_steps: int):
    """Against the definition in whole steps: restarts of a cosine, and steps down counted from the start."""
    for steps, epochs in itertools.product((*range(1, 12), 19, 29, 37, 40), (1, 2, 3)):
        restarting = Cosine(warmup_steps=warmup_steps, cycle_epochs=epochs)
        halving = Step(warmup_steps=warmup_steps, step_epochs=epochs, gamma=0.5)
        cosine, stairs = (schedule_spanning(each, 0, 24, steps) for each in (restarting, halving))
        cycle = epochs * steps
        for step in range(warmup_steps, 24 * steps):
            passed = step // steps + step % steps / steps  # as the callback LearningRate computes it
            share = (step - warmup_steps) % cycle / cycle
            assert cosine(passed) == pytest.approx((1 + math.cos(math.pi * share)) / 2, abs=1e-6), (steps, epochs, step)
            assert stairs(passed) == 0.5 ** (step // cycle), (steps, epochs, step)


# ---- groups of parameters

# Side of the images, head, number of layers, and the layers of some modules.
NETS = {
    # the stem and two blocks in each of four layers
    "resnet18": (64, "fc", 9, {"conv1": 0, "bn1": 0, "layer1.0.conv1": 1, "layer2.0.downsample.0": 3,
                               "layer4.1.bn2": 8, "fc": 9}),
    "vit_b_16": (224, "heads.head", 13, {"conv_proj": 0, "encoder.layers.encoder_layer_11.mlp.0": 12,
                                         "encoder.ln": 12}),
    "convnext_tiny": (64, "classifier.2", 28, {"features.0.0": 1, "features.7.2.block.0": 26, "classifier.2": 28}),
    "squeezenet1_1": (64, "classifier.1", 10, {"features.0": 1, "features.12.squeeze": 9, "classifier.1": 10}),
}  # fmt: skip


def groups(net: torch.nn.Module, scaled_lr: float, head: tuple[str, ...], **keys: Any) -> list[dict[str, Any]]:
    return parameter_groups(net, optim(**keys), scaled_lr, head)


def meta(name: str) -> torch.nn.Module:
    with torch.device("meta"):
        return create_model(name, 7, 0, NETS[name][0])


@pytest.mark.parametrize("name", NETS)
def test_the_head_and_the_layers_of_a_net_of_torchvision(name: str):
    net, (_, head, num_layers, layers) = meta(name), NETS[name]
    assert head_names(net, 7) == (head,)
    made = groups(net, 0.3, (head,), lr=0.1, lr_head=0.4, no_decay_on=["norm", "bias", "embedding"])
    rates = [(id(parameter), group["lr"]) for group in made for parameter in group["params"]]
    assert len(rates) == len(dict(rates)) == len(list(net.parameters()))
    for key, parameter in net.named_parameters():
        assert dict(rates)[id(parameter)] == pytest.approx(0.3 * (4 if is_in_head(key, (head,)) else 1))
    made = groups(net, 0.1, (head,), lr=0.1, layer_decay=0.5)
    rate = {id(parameter): group["lr"] for group in made for parameter in group["params"]}
    for layer, number in layers.items():
        expected = pytest.approx(0.1 * 0.5 ** (num_layers - number))
        assert rate[id(net.get_parameter(f"{layer}.weight"))] == expected, layer


@pytest.mark.parametrize(
    "name", ["convnext_atto", "cait_xxs24_224", "swinv2_tiny_window8_256", "levit_128s", "resnet18"]
)
def test_weight_decay_and_layers_are_timms(name: str):
    import timm
    from timm.optim import param_groups_layer_decay, param_groups_weight_decay

    with torch.device("meta"):
        net = timm.create_model(name, num_classes=7)
    names = {id(parameter): key for key, parameter in net.named_parameters()}
    patterns = getattr(net, "no_weight_decay", set)()
    theirs = param_groups_weight_decay(net, 0.05, no_weight_decay_list=patterns)
    made = groups(net, 0.1, (), weight_decay=0.05, no_decay_on=["norm", "bias"])
    without = [
        {names[id(p)] for group in some if group.get("weight_decay") == 0 for p in group["params"]}
        for some in (made, theirs)
    ]
    assert without[0] == without[1]
    if hasattr(net, "group_matcher"):
        scaled = param_groups_layer_decay(net, 0.05, layer_decay=0.7)
        expected = {names[id(p)]: group["lr_scale"] for group in scaled for p in group["params"]}
        found = {names[id(p)]: group["lr"] for group in groups(net, 1.0, (), lr=1.0, layer_decay=0.7)
                 for p in group["params"]}  # fmt: skip
        assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("vit_b_16", "embedding", {"class_token", "encoder.pos_embedding"}),
        ("convnext_tiny", "norm", {"features.1.0.layer_scale", "features.1.0.block.2.weight"}),
    ],
)
def test_other_parameters_without_weight_decay(name: str, kind: str, expected: set[str]):
    net = meta(name)
    names = {id(parameter): key for key, parameter in net.named_parameters()}
    found = {
        names[id(parameter)]
        for group in groups(net, 0.1, (), weight_decay=0.05, no_decay_on=[kind])
        if group.get("weight_decay") == 0
        for parameter in group["params"]
    }
    assert found == expected if kind == "embedding" else found > expected
    [plain] = groups(net, 0.1, (), weight_decay=0.05)
    assert "weight_decay" not in plain  # the optimizer's own


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_state_of_another_shape_is_refused(name: str):
    """A fused step would read and write beyond its end: the process ended by signal 11."""
    net = nn.Linear(64, 8)
    made = make_optimizer(optim(name=name), net, 0.1, OPTIMIZERS[name].is_fused)
    net(torch.ones(1, 64)).sum().backward()
    made.step()
    whole = made.state_dict()
    made.load_state_dict(copy.deepcopy(whole))  # its own state fits
    buffers = {"momentum_buffer", "exp_avg", "exp_avg_sq"} & whole["state"][0].keys()
    assert buffers or not OPTIMIZERS[name].is_fused
    for buffer in buffers:
        for value in (torch.zeros(3), [1, 2], 3.0):
            state = copy.deepcopy(whole)
            state["state"][0][buffer] = value
            with pytest.raises(ValueError, match=f"{buffer} must have the shape"):
                made.load_state_dict(state)
    whole["param_groups"][0]["lr"] = "x"
    with pytest.raises(ValueError, match="lr of the optimizer must be a number"):
        made.load_state_dict(whole)


@pytest.mark.parametrize("fused", [True, False])
def test_a_fused_optimizer_of_the_user_has_the_same_check(fused: bool):
    """Also if only the checkpoint says that it is fused. Others may have a buffer of that name in another shape."""
    net, optim = nn.Linear(64, 8), OwnOptimizer(_target_="torch.optim.AdamW")
    made = make_optimizer(optim, net, 0.1, False)
    net(torch.ones(1, 64)).sum().backward()
    made.step()
    state = copy.deepcopy(made.state_dict())
    state["state"][0]["exp_avg_sq"] = torch.zeros(3)
    state["param_groups"][0]["fused"] = fused
    if fused:
        with pytest.raises(ValueError, match="exp_avg_sq must have the shape"):
            made.load_state_dict(state)
    else:
        made.load_state_dict(state)
