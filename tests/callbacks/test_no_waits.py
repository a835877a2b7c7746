"""No step between two lines of figures waits for the device, and all its tensors are there: whole trainings and
validations as the commands make them, on a GPU that has no values (helpers/fake_cuda.py)."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SMALL_DRAWN, write_images
from helpers.fake_cuda import FakeCuda, Wait, fake_cuda
from helpers.fake_cuda_runs import evaluate, gpu_plan, train
from helpers.plain_loop import SmallNet
from torch import Tensor

from imagenet_ddp.config.schema.optimizers import OPTIMIZERS
from imagenet_ddp.models.optimizers import make_optimizer
from imagenet_ddp.models.teacher import Teacher
from imagenet_ddp.use.predictions import Predictions
from imagenet_ddp.use.predictor import make_predictor

EVERY = 3  # trainer.log_every_n_steps
NUM_BATCHES = 8  # the last one is a remainder
NET = [each for each in SMALL_DRAWN if each.startswith(("model.", "+model."))]  # with dropout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return 30 training and 9 validation images of 3 classes."""
    root = tmp_path_factory.mktemp("tree")
    write_images(root / "train", {"cat": 10, "dog": 10, "owl": 10})
    write_images(root / "val", {"cat": 3, "dog": 3, "owl": 3}, seed=1)
    paths = sorted(path.relative_to(root) for path in root.glob("*/*/*"))
    rows = [
        f"{path},{path.parts[1]}{';owl' if number % 2 else ''},{path.parts[0]}" for number, path in enumerate(paths)
    ]
    (root / "labels.csv").write_text("\n".join(["path,label,split", *rows]))
    return root


@pytest.fixture
def cuda() -> Iterator[FakeCuda]:
    with fake_cuda() as made:
        yield made


# ---- what is found ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("do", "found"),
    [
        (lambda there, here: there.sum().item(), "read"),
        (lambda there, here: float(there[0]), "read"),
        (lambda there, here: bool(there.any()), "read"),
        (lambda there, here: there.cpu(), "read"),
        (lambda there, here: there.tolist(), "read"),
        (lambda there, here: here.copy_(there), "read"),
        (lambda there, here: there.requires_grad_().cpu().to("cuda"), "read"),
        (lambda there, here: here.to("cuda"), "copy"),
        (lambda there, here: here.to("cuda", non_blocking=True), "copy"),  # of memory that is not page-locked
        (lambda there, here: there.copy_(here), "copy"),
        (lambda there, here: torch.tensor(1.0, device="cuda"), "copy"),
        (lambda there, here: torch.tensor([1, 2]).cuda(), "copy"),
        (lambda there, here: there[torch.tensor([0, 1])], "copy"),
        (lambda there, here: there * torch.tensor(2.0), "host scalar"),
        (lambda there, here: torch.cuda.synchronize(), "synchronize"),
        (lambda there, here: here.pin_memory().to("cuda", non_blocking=True), None),
        (lambda there, here: there * 2.0 + torch.zeros(3, device="cuda"), None),
        (lambda there, here: torch.full((), 2.0, device="cuda") * there, None),
        (lambda there, here: (here * 2).sum().item(), None),
    ],
)
def test_what_is_a_wait(cuda: FakeCuda, do: Callable[[Tensor, Tensor], Any], found: str | None) -> None:
    there, here = torch.zeros(3, device="cuda"), torch.arange(3.0)
    assert (there.device.type, here.sum().item()) == ("cuda", 3.0)
    do(there, here)
    assert [each.what for each in cuda.waits][:1] == ([] if found is None else [found])


@pytest.mark.parametrize(
    "do",
    [
        lambda there, here: there + here,
        lambda there, here: torch.stack([there, here]),
        lambda there, here: there + there.requires_grad_().cpu(),
        lambda there, here: torch.where(there > 0, there, here),
        lambda there, here: torch.nn.functional.linear(here[None], there[None]),
    ],
)
def test_tensors_of_two_devices_do_not_mix(cuda: FakeCuda, do: Callable[[Tensor, Tensor], Any]) -> None:
    with pytest.raises(RuntimeError, match="device"):
        do(torch.zeros(3, device="cuda"), torch.arange(3.0))


@pytest.mark.parametrize("do", [torch.nonzero, torch.unique, lambda there: there[there > 0], torch.bincount])
def test_a_result_whose_size_is_read_from_the_device_is_refused(cuda: FakeCuda, do: Callable[[Tensor], Any]) -> None:
    with pytest.raises(Exception, match=r"nonzero|unique|bincount"):
        do(torch.zeros(3, device="cuda", dtype=torch.int64))


# ---- steps --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_optimizer_waits_but_the_one_that_says_so(cuda: FakeCuda, name: str) -> None:
    optim = OPTIMIZERS[name]()
    for fused in (False, True)[: 1 + optim.is_fused]:
        net = SmallNet(10).to("cuda")
        optimizer = make_optimizer(optim, net, 0.1, fused)
        for number in range(3):
            for parameter in net.parameters():
                parameter.grad = torch.zeros_like(parameter)
            cuda.step = number  # the first one makes the state
            optimizer.step()
        cuda.step = 0
        waits = [each for each in cuda.waits if each.step]
        assert bool(waits) == (name == "adafactor"), waits  # as conf/optim/adafactor.yaml says


FP16 = ["trainer.precision=16-mixed", "trainer.gradient_clip_val=1", "trainer.accumulate_grad_batches=2"]
RUNS = {
    "as by default": ["model._target_=null", *NET],
    "32-true, bce, weights of classes, ema": ["trainer.precision=32-true", "loss.name=bce",
                                              "loss.class_weights=[1,2,3]", "averaging=ema", "optim=adamw"],
    "16-mixed, clipping, accumulation": [*FP16, "callbacks=[default,gradient_norm]"],
    "bf16-true, focal, mixup": ["trainer.precision=bf16-true", "loss.name=focal", "data.mixup_alpha=0.2", "optim=lamb"],
    "16-true, cutmix": ["trainer.precision=16-true", "data.cutmix_alpha=1.0"],
    "64-true, bce of mixed labels, views, swa": ["averaging=swa", "averaging.start_epoch=0",
                                                 "trainer.precision=64-true", "loss.name=bce", "loss.bce_threshold=0.2",
                                            "data.mixup_alpha=0.2", "data.vflip=0.5", "data.val_mirror=true"],
    "teacher, smoothing, weights of images": ["loss.label_smoothing=0.1", "data.cutmix_alpha=1.0"],
    "several labels, contiguous, lion": ["data=table", "data.labels=several", "loss.name=bce",
                                         "model.channels_last=false", "optim=lion"],
}  # fmt: skip


def between_lines(waits: list[Wait], accumulated: int = 1) -> list[Wait]:
    """Return the waits that no line explains: in the first batches, constants are copied to the device."""
    last = {"train": NUM_BATCHES + 1, "val": 3 + 1}
    found = []
    for wait in waits:
        stage, number = wait.step if isinstance(wait.step, tuple) else ("", 0)
        is_shown = number % EVERY == 0 or number == NUM_BATCHES  # progress counts batches, the loggers updates
        is_logged = number % accumulated == 0 and number // accumulated % EVERY == 0
        is_constant = number == 1 and wait.what == "copy"
        if stage and number != last[stage] and not is_constant and not (stage == "train" and (is_shown or is_logged)):
            found.append(wait)
    return found


@pytest.mark.parametrize(
    "options",
    [pytest.param(each, id=name, marks=[pytest.mark.slow(3)] * (number > 0))
     for number, (name, each) in enumerate(RUNS.items())],
)  # fmt: skip
def test_a_training_waits_only_where_it_shows_figures(
    cuda: FakeCuda, options: list[str], tree: Path, tmp_path: Path
) -> None:
    with_teacher = RUNS["teacher, smoothing, weights of images"]
    root = tree / "labels.csv" if "data=table" in options else tree
    plan = gpu_plan(root, *options, f"trainer.log_every_n_steps={EVERY}",
                    "~callbacks.checkpoint", "~callbacks.batch_sheet")  # fmt: skip

    def change(run: Any) -> None:
        if options is with_teacher:
            run.module.teacher = Teacher(SmallNet(3), 0.5, 2.0)
            run.data.train_images.weights = np.ones(30, np.float32)

    run = train(cuda, plan, tmp_path, change=change)
    accumulated = plan.config.trainer.accumulate_grad_batches
    assert run.trainer.global_step == NUM_BATCHES // accumulated
    assert {each.device.type for each in run.module.net.parameters()} == {"cuda"}
    # torch's gradient scaler reads in each update whether the gradients are finite (docs/gpu.md)
    scaler = [each for each in cuda.waits if any("grad_scaler.py" in place for place in each.where)]
    assert len(scaler) == (run.trainer.global_step if options[: len(FP16)] == FP16 else 0)
    assert between_lines([each for each in cuda.waits if each not in scaler], accumulated) == []
    assert {each.step for each in cuda.waits} >= {("train", EVERY * accumulated)}, "a line reads its figures"


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-true"])
def test_an_evaluation_waits_at_its_end(cuda: FakeCuda, precision: str, tree: Path, tmp_path: Path) -> None:
    plan = gpu_plan(tree, f"trainer.precision={precision}")
    evaluate(cuda, plan, tmp_path, [Predictions(keep_scores=True)])
    assert between_lines(cuda.waits) == []
    assert ("val", 4) in {each.step for each in cuda.waits}


def test_a_prediction_reads_its_result_once(cuda: FakeCuda, tree: Path) -> None:
    config: Any = gpu_plan(tree).config
    trained: Any = SimpleNamespace(classes=list("abc"), labels=list("abc"), contents=None, origin="the test")
    images: list[Any] = [torch.zeros(3, 32, 32, dtype=torch.uint8)] * 2
    predictor = make_predictor(config, trained, SmallNet(3))
    assert len(predictor.predict(images, 2)) == 2
    cuda.waits.clear()
    predictor.probabilities(images)
    assert [each.what for each in cuda.waits] == ["copy", "read"], "the images to the GPU, and the result from it"
    # as export compares: nothing of it is on the GPU
    cuda.waits.clear()
    make_predictor(config, trained, SmallNet(3), torch.device("cpu")).predict(images, 2)
    assert cuda.waits == []


def test_images_reach_the_net_as_bytes_on_a_stream_of_their_own(cuda: FakeCuda, tree: Path, tmp_path: Path) -> None:
    seen = list[Any]()

    def change(run: Any) -> None:
        move = run.data.transfer_batch_to_device

        def moved(batch: Any, device: Any, index: int) -> Any:
            del cuda.calls[:]
            there = move(batch, device, index)
            seen.append((batch["image"].dtype, there["image"].dtype, [*cuda.calls]))
            return there

        run.data.transfer_batch_to_device = moved
        run.module.net.register_forward_pre_hook(lambda net, given: seen.append(given[0]))

    run = train(cuda, gpu_plan(tree, "~callbacks.checkpoint", "~callbacks.batch_sheet"), tmp_path, change=change)
    on_host, on_device, calls = seen[0]
    assert on_host == on_device == torch.uint8
    assert (calls[0], calls[-1]) == ("enter other", "current waits for other")
    assert calls[1:-2] == ["record_stream current"] * 4 and calls[-2] == "leave other"
    assert seen[1].is_contiguous(memory_format=torch.channels_last)
    net: Any = run.module.net
    assert net.stem[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_fp16_unscales_before_it_clips_and_steps_once_per_update(
    cuda: FakeCuda, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = list[str]()
    for owner, name in ((torch.amp.GradScaler, "unscale_"), (torch.amp.GradScaler, "step"),
                        (torch.amp.GradScaler, "update"), (torch.nn.utils, "clip_grad_norm_")):  # fmt: skip
        before = getattr(owner, name)

        def call(*args: Any, name: str = name, before: Any = before, **kwargs: Any) -> Any:
            order.append(name)
            return before(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)
    run = train(cuda, gpu_plan(tree, *FP16, "~callbacks.checkpoint", "~callbacks.batch_sheet"), tmp_path)
    assert order == ["unscale_", "clip_grad_norm_", "step", "update"] * run.trainer.global_step
