"""The layers that compute the logits: which they are, and how they start on other classes than those of the weights."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from imagenet_ddp.config.schema.learning import LossConfig, ModelConfig
from imagenet_ddp.models.factory import create_model
from imagenet_ddp.models.head import head_names
from imagenet_ddp.models.losses import Loss
from imagenet_ddp.models.pretrained import find_weights, load_weights_into

OLD, NEW, BATCH = 12, 7, 4
# A small net of each family, by image size. The first two lines are quick. RepVGG and ReXNet are left out, because
# torch 2.15 damaged the heap in their training in channels_last on a CPU.
NETS = {
    ("torchvision", 64): "resnet18 squeezenet1_1 efficientnet_b0",
    ("timm", 32): "tf_efficientnet_lite0 deit_tiny_distilled_patch16_224",
    ("torchvision", 96): "mobilenet_v2 mobilenet_v3_small vgg11 densenet121 googlenet inception_v3 shufflenet_v2_x0_5 "
    "mnasnet1_0 regnet_x_400mf convnext_tiny swin_t swin_v2_t vit_b_32 alexnet efficientnet_v2_s",
    ("torchvision", 224): "maxvit_t",
    ("timm", 96): "repvit_m0_9 caformer_s18 mobilenetv3_small_050 dla34 dpn68 resnetv2_18 convnext_atto coat_tiny "
    "vit_tiny_patch16_224 cait_xxs24_224 xcit_nano_12_p16_224 pvt_v2_b0 poolformer_s12 edgenext_xx_small "
    "inception_v4 nfnet_f0 efficientvit_b0 fastvit_t8 regnetx_002 tinynet_e vgg11 xception41 "
    "lcnet_050 selecsls42 starnet_s1 mambaout_femto inception_next_atto ghostnet_050 mobilevit_xxs swiftformer_xs "
    "hrnet_w18_small",
    ("timm", 224): "levit_128s efficientformer_l1 efficientformerv2_s0 swin_tiny_patch4_window7_224 mixer_s32_224 "
    "resmlp_12_224 pit_ti_224 beit_base_patch16_224 sequencer2d_s efficientvim_m1 volo_d1_224 visformer_tiny",
    ("timm", 240): "crossvit_tiny_240",
}
SEVERAL = {"deit_tiny_distilled_patch16_224", "levit_128s", "efficientformer_l1", "efficientformerv2_s0",
           "crossvit_tiny_240", "repvit_m0_9", "swiftformer_xs", "efficientvim_m1", "volo_d1_224"}  # fmt: skip
CASES = [
    pytest.param(library, name, size, marks=[] if number < 2 else pytest.mark.slow, id=f"{library}-{name}")
    for number, ((library, size), names) in enumerate(NETS.items())
    for name in names.split()
]


def fine_tuned(library: str, name: str, size: int, folder: Path) -> tuple[torch.nn.Module, str]:
    """A net of NEW classes that has loaded weights of OLD classes."""
    model = ModelConfig(name=name, library=library)
    torch.save(create_model(model, OLD, 1, size).state_dict(), folder / "weights.pt")
    net = create_model(model, NEW, 2, size)
    weights = find_weights("model.weights", str(folder / "weights.pt"), library, name)
    sentence, head_fits = load_weights_into(net, weights, head_names(net, NEW), [*"abcdefg"])
    assert not head_fits
    return net, sentence


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("library", "name", "size"), CASES)
def test_a_new_head_starts_at_the_loss_of_guessing_and_all_of_it_learns(
    library: str, name: str, size: int, tmp_path: Path
):
    net, sentence = fine_tuned(library, name, size, tmp_path)
    heads = head_names(net, NEW)
    assert f"{' and '.join(heads)} {'is' if len(heads) == 1 else 'are'} new" in sentence
    assert (len(heads) > 1) == (name in SEVERAL)
    torch.manual_seed(0)
    logits, target = net.train()(torch.randn(BATCH, 3, size, size)), torch.arange(BATCH)
    loss = F.cross_entropy(logits, target)
    assert loss.item() == pytest.approx(math.log(NEW), rel=0.02)
    bce = Loss(LossConfig(name="bce"), NEW)(logits, target, reduction="mean")
    assert bce.item() == pytest.approx(math.log(2), rel=0.02)
    named = [(f"{head}.{key}", each) for head in heads for key, each in net.get_submodule(head).named_parameters()]
    # only the heads' gradients: torch 2.15 damages the heap in the backward pass of some nets in channels_last on a CPU
    gradients = torch.autograd.grad(loss, [parameter for _, parameter in named], allow_unused=True)
    for (key, _), gradient in zip(named, gradients, strict=True):
        assert gradient is not None and gradient.abs().max() > 0, f"{key} never learns"
