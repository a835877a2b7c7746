"""Train and validate a net. Loss, top-1 and top-5 count each validation image once."""

import inspect
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor, nn

from imagenet_ddp.config.section import make
from imagenet_ddp.errors import ConfigError, RunError, reports_silent_ends
from imagenet_ddp.models.layers import average_views
from imagenet_ddp.models.load_checkpoint import no_optimizer, read_module
from imagenet_ddp.models.optimizers import place_state
from imagenet_ddp.models.sums import ImageMean, ImagesCounted, Sums, loss_dtype
from imagenet_ddp.models.task import OneLabel, Task
from imagenet_ddp.models.teacher import Teacher
from imagenet_ddp.system.seeding import hash_seed

# for messages about a training_step of the user's own
STEP_RETURNS = 'return {**super().training_step(batch, batch_idx), "loss": loss} from it, see docs/library.md'


class ImageClassifier(L.LightningModule):
    """A LightningModule for the batches of ImageDataModule.

    num_val_images: size of the validation split, to verify that each image was counted once. make_optimizer: called
    with the parameters; returns the optimizer, whose groups have their highest learning rate. The callback LearningRate
    reduces it step by step. task: the losses and what is measured, by default one label per image with the cross
    entropy. teacher: a net whose probabilities are targets in addition to the labels. seed: seed of the randomness
    (dropout) of each step. val_views: orientations of each image whose logits are averaged in
    validation (layers.py).

    Validation logs val/loss, val/top1 and val/top5, exact over all ranks. With k < 5 classes, val/top5 is the top-k
    accuracy. training_step logs nothing itself, because logging would cost 2 ms per step and, with a progress bar,
    force a device synchronization. The callback TrainLog logs the sums that training_step returns.
    """

    def __init__(
        self,
        net: nn.Module,
        num_classes: int,
        num_val_images: int,
        *,
        make_optimizer: Callable[[Any], torch.optim.Optimizer],
        task: Task | None = None,
        teacher: Teacher | None = None,
        seed: int = 0,
        val_views: int = 1,
    ):
        super().__init__()
        self.net = net
        self.task: Task = task or OneLabel(num_classes)
        self._make_optimizer = make_optimizer
        self._optimizer_settings: list[dict[str, Any]] = []  # one dict per group, as the options set them
        self._stored_settings: list[dict[str, Any]] = []  # the settings of the resumed run, in the same form
        self.teacher = teacher
        self._seed = seed
        self._val_views = val_views
        # Every image has the same weight, as in ImageNet's top-1; torchmetrics' default is the mean over the classes.
        self.val_means = {name: ImageMean(name) for name in self.task.sums_of}
        self.val_measures: dict[str, Any] = self.task.val_measures(num_val_images)  # not means over images
        for name, metric in {**self.val_means, **self.val_measures}.items():
            self.add_module("val_loss" if name == "loss" else name, metric)  # such as top1
        self.counted = ImagesCounted(num_val_images)
        self.classes: list[str] = []  # of a loaded checkpoint
        # of the last validation, over all ranks: (number of counted images, highest count of any image)
        self.val_counts = (0, 0)

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]  # the other arguments are keywords
        cls, checkpoint_path: str | Path, map_location: Any = "cpu", *, net: nn.Module | None = None, **arguments: Any
    ) -> "ImageClassifier":
        """Return the module with the weights and the classes of a checkpoint. No code is run from the file.

        net: required if the checkpoint is one of a net of the user's own. arguments: those of this class, such as
        make_optimizer, which only a training needs. Raises ConfigError if the file is not a checkpoint of this program.
        """
        net, classes, task, state = read_module(checkpoint_path, map_location, net)
        arguments = {"make_optimizer": no_optimizer, "task": task, **arguments}
        module = cls(net, len(classes), 0, **arguments)
        module.load_state_dict(state)
        module.classes = classes
        return module

    def __setattr__(self, name: str, value: Any) -> None:
        # Lightning sets the name of the current hook 40 times per step. torch's Module.__setattr__ would inspect each
        # value, which costs 80 µs per step.
        if name == "_current_fx_name":
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    def forward(self, images: Tensor) -> Tensor:
        """Map normalised float32 images (B, 3, H, W) to logits (B, num_classes)."""
        # trainer.precision=64-true and bf16-true change the dtype of the net
        return self.call_net(images if images.dtype == self.dtype else images.to(self.dtype))

    def call_net(self, images: Tensor) -> Tensor:
        """Call the net. A strategy that splits the batch within this process (dp) replaces this method."""
        return self.net(images)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = self._make_optimizer(self.net.parameters())
        self._optimizer_settings = [
            {name: value for name, value in group.items() if name != "params" and not isinstance(value, Tensor)}
            for group in optimizer.param_groups
        ]
        return optimizer

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["optimizer_settings"] = self._optimizer_settings
        checkpoint["num_counted"] = list(self.val_counts)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._stored_settings = checkpoint.get("optimizer_settings", [])
        self.val_counts = tuple(checkpoint.get("num_counted", self.val_counts))

    def on_fit_start(self) -> None:
        if self.teacher is not None:
            self.teacher.to(self.device)

    def on_train_start(self) -> None:
        """Apply the optimizer settings that were changed on resume. torch.optim loads the settings of a group together
        with its state. Unchanged settings keep the loaded value, because some optimizers store counters among them."""
        groups = self.trainer.optimizers[0].param_groups
        # a checkpoint of another program stores no settings, so all of them are set from the options
        all_stored = self._stored_settings or [{} for _ in groups]
        for group, made, stored in zip(groups, self._optimizer_settings, all_stored, strict=True):
            group.update({name: value for name, value in made.items() if name not in stored or stored[name] != value})
        place_state(self.trainer.optimizers[0])

    def on_train_batch_start(self, batch: dict[str, Any], batch_idx: int) -> None:
        # The randomness of a step (dropout) depends only on its number, so a resumed run draws the same values. The
        # seed is hashed, because the CPU's generator uses only the lower 32 bits of a seed.
        seed = hash_seed(self._seed, self.global_rank, self.trainer.fit_loop.epoch_loop.total_batch_idx)
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)
        elif self.device.type == "mps":
            torch.mps.manual_seed(seed)

    @reports_silent_ends
    def training_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Any]:
        """Return the loss and the Sums over this rank's counted images.

        The loss is scaled so that, after DDP averages over the ranks and Lightning divides by
        trainer.accumulate_grad_batches, the accumulated gradient equals that of the mean loss over all images in the
        optimizer step. batch["weight"] multiplies the loss of each image; the sum is divided by the number of images,
        not by the sum of the weights.
        """
        logits, target = self(batch["image"]), batch["target"]
        counted, size = batch["num_counted"], len(target)
        # the number by which DDP and Lightning divide the sum of the gradients
        divisor = self.trainer.world_size * self.trainer.accumulate_grad_batches
        is_full = counted == size and batch["update_images"] == size * divisor
        weight = batch.get("weight")
        # one operation computes losses and mean if nothing has to be applied to the losses first
        reduction = "mean" if is_full and weight is None and self.teacher is None else "none"
        losses = self.task.training_losses(_at_least_float32(logits), batch, reduction)
        if self.teacher is not None:
            share = self.teacher.share
            losses = (1 - share) * losses + share * self.teacher.losses(batch["image"], logits)
        if weight is not None:
            losses = losses * weight
        if is_full:
            loss = losses if reduction == "mean" else losses.mean()
            loss_sum = loss.detach() * size
        else:  # a remainder has fewer images or batches than usual, or different numbers of images on the ranks
            loss_sum = losses[:counted].sum()
            loss = loss_sum * (divisor / batch["update_images"])
        return {"loss": loss, "sums": self.task.sums(loss_sum, logits[:counted], target[:counted])}

    # Lightning inspects the signature in every step, which is faster if it is stored
    training_step.__signature__ = inspect.signature(training_step)  # type: ignore[attr-defined]

    @reports_silent_ends
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)

    def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None:
        if self.trainer.gradient_clip_val:  # Lightning's method takes 10 µs even if no clipping is set
            super().configure_gradient_clipping(*args, **kwargs)

    @reports_silent_ends
    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Any] | None:
        """Return the logits, the losses and the Sums of the counted images; None if the batch has no counted image."""
        counted = batch["num_counted"]
        if not counted:  # this rank has no validation image
            return None
        images = batch["image"]
        logits = _at_least_float32(average_views(self, images, self._val_views)[:counted])
        target = batch["target"][:counted]
        losses = self.task.validation_losses(logits, target)
        sums = self.task.sums(losses.sum(dtype=loss_dtype(losses.device)), logits, target)
        for metric in self.val_means.values():
            metric.update(sums)
        index = batch["index"][:counted]
        for metric in self.val_measures.values():
            metric.update(logits, target, index)
        self.counted.update(index)
        return {"logits": logits, "losses": losses, "sums": sums}

    def validation_sums(self) -> Sums:
        """Return this rank's sums over the validation so far. Reads the states of the metrics, because compute() would
        wait for the other ranks."""
        totals = {name: metric.total for name, metric in self.val_means.items()}
        return Sums(totals, int(self.val_means["loss"].images))

    def val_results(self, classes: Sequence[str]) -> dict[str, Any]:
        """Return the results of the last validation for each class, as they stand in evaluation.json."""
        found = {metric.name_of_each: metric.of_each.tolist() for metric in self.val_measures.values()}
        as_numbers = {
            name: {each: value if value == value else None for each, value in zip(classes, values, strict=True)}  # NaN
            for name, values in found.items()
        }
        return {"metrics": as_numbers} if as_numbers else {}

    def on_validation_epoch_start(self) -> None:
        for metric in (*self.val_means.values(), *self.val_measures.values(), self.counted):
            metric.reset()

    def on_validation_epoch_end(self) -> None:
        # compute() sums over all ranks; a rank without images contributes zeros. It is called here, because after the
        # validation Lightning has moved the states to the CPU, where NCCL cannot gather them.
        counted, num_images = self.counted.compute(), len(self.counted.times)
        if not self.trainer.sanity_checking or self.trainer.num_sanity_val_steps == math.inf:  # all images
            self.val_counts = counted
            if num_images and not counted[0]:
                raise RunError(
                    f"at least one of {num_images} validation images must be readable, but none is. "
                    "Hint: read bad_images.csv, which lists them with the reasons."
                )
        metrics = {**self.val_means, **self.val_measures}
        self.log_dict({f"val/{name}": metric.compute() for name, metric in metrics.items()})


def make_classifier(target: str | None, arguments: dict[str, Any], **more: Any) -> ImageClassifier:
    """Return an ImageClassifier. target: name of a class of the user's own that is derived from it, or None. arguments:
    of that class. more: those of ImageClassifier. Raises ConfigError if the class is not derived from it."""
    if target is None:
        return ImageClassifier(**more)
    module = make("module._target_", target, arguments, **more)
    if not isinstance(module, ImageClassifier):
        raise ConfigError(
            f"module._target_={target} must be a class derived from imagenet_ddp.models.ImageClassifier, "
            f"got {type(module).__name__}. Hint: derive it from ImageClassifier, or train any other LightningModule by "
            "a script of your own (docs/library.md)."
        )
    return module


def _at_least_float32(logits: Tensor) -> Tensor:
    """Convert half-precision logits to float32 for the loss. Other types are returned unchanged."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
