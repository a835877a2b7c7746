"""What a training that failed is told."""

from pathlib import Path

import pytest
import torch
from conftest import SMALL, Run
from helpers.plans import plan_of

from imagenet_ddp.errors import RunError
from imagenet_ddp.training.diagnosis import explained, first_failure


def test_errors_that_are_explained() -> None:
    plan = plan_of("strategy.timeout_s=7")
    timeout = "[unbound_buffer.cc:78] Timed out waiting 7000ms for recv operation to complete"
    with pytest.raises(RunError, match=r"timed out after 7 s \(strategy"), explained(plan):
        raise RuntimeError(timeout)
    with pytest.raises(RuntimeError, match="mat1 and"), explained(plan):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "MPS backend out of memory (MPS allocated: 17.06 GiB, other allocations: 1.2 GiB, max allowed: 18.13 GiB).",
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to",
    ],
)
def test_memory_that_ran_out_outside_of_torchs_own_on_cuda(text: str) -> None:
    with pytest.raises(RunError, match=r"rank 0 must have enough memory for batches of"), explained(plan_of()):
        raise RuntimeError(text)


def test_an_operation_without_a_deterministic_kernel() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RunError, match=r"but put_ has none.*trainer.deterministic=warn"), explained(plan_of()):
            torch.zeros(3).put_(torch.tensor([0]), torch.tensor([1.0]))
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_layer_that_the_loss_does_not_use_is_explained_with_our_key(run: Run, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        "from torch import nn\n"
        "class Unused(nn.Linear):\n"
        "    def __init__(self, num_classes, **_):\n"
        "        super().__init__(3, num_classes)\n        self.more = nn.Linear(3, 3)\n"
        "    def forward(self, images):\n        return super().forward(images.mean((2, 3)))\n"
    )
    options = [
        *SMALL, f"data.root={tree}", "data.batch_size=2", "trainer.devices=2", "model._target_=wrong.Unused",
        "trainer.max_epochs=1",
    ]  # fmt: skip
    failed = run("train", *options, code=1).stderr
    assert "strategy.find_unused_parameters=true" in failed and "Traceback" not in failed and "ddp_find" not in failed
    run("train", *options, "strategy.find_unused_parameters=true", code=0)


def test_only_the_failure_that_ended_the_training_replaces_a_later_error() -> None:
    said: list[str] = []
    first, later = RunError("no memory"), OSError("no server")

    def fail() -> None:
        try:
            raise RunError("of another run")
        except RunError:
            raise later  # noqa: B904

    with pytest.raises(RunError, match="no memory"), first_failure(lambda: first, said.append):
        fail()
    assert said == ["While the run ended, this failed, too: OSError: no server"]
    for failed in (None, later):
        with pytest.raises(OSError, match="no server"), first_failure(lambda failed=failed: failed, said.append):
            fail()


def test_a_run_of_wrong_labels_and_one_without_memory(run: Run, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "hungry.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Hungry(nn.Linear):\n"
        "    def __init__(self, num_classes):\n        super().__init__(3, num_classes)\n"
        "    def forward(self, images):\n"
        "        if self.training and len(images) > 2:\n            raise torch.OutOfMemoryError('no room for it.')\n"
        "        return super().forward(images.mean((2, 3)))\n"
    )
    options = [
        "data=imagefolder", f"data.root={tree}", "data.image_size=32", "trainer.accelerator=cpu", "data.num_workers=0",
        "allow_targets=[hungry]", "model._target_=hungry.Hungry", "trainer.max_epochs=3",
        "optim.lr=1e-9", "callbacks=none", "hydra.run.dir=r",
    ]  # fmt: skip
    failed = run("train", *options, "data.batch_size=4", code=1)
    assert "Traceback" not in failed.stderr
    assert "no room for it. Hint: set data.batch_size=2 trainer.accumulate_grad_batches=2," in " ".join(
        failed.stderr.split()
    )
    hint = ["data.batch_size=2", "trainer.accumulate_grad_batches=2"]
    done = run("train", *options, *hint, "hydra.run.dir=r2", "data.flip=0", code=0)
    assert "Val top-1 is no better than always answering the most frequent class" in done.stdout
    assert "or set data.fit=pad" in done.stdout and "data.flip=0 if" not in done.stdout
