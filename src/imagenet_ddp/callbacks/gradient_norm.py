"""Log the norm of the gradients."""

import lightning.pytorch as L
import torch
from torch.nn.utils import get_total_norm

from imagenet_ddp.callbacks.loop_state import log_interval


class GradientNorm(L.Callback):
    """Log grad_norm, the 2-norm of the gradients of all parameters before clipping, every trainer.log_every_n_steps
    optimizer steps. The norm is not computed in other steps."""

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        if (trainer.global_step + 1) % log_interval(trainer):
            return
        gradients = [parameter.grad for parameter in pl_module.parameters() if parameter.grad is not None]
        norm = get_total_norm(gradients).cpu()
        trainer.callback_metrics["grad_norm"] = trainer.logged_metrics["grad_norm"] = norm
        for logger in trainer.loggers:  # not by log(), whose figures of a step are lost if a signal stops the run in it
            logger.log_metrics({"grad_norm": float(norm), "epoch": trainer.current_epoch}, trainer.global_step)
