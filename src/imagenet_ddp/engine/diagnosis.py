"""Explain why a training failed."""

import traceback
from pathlib import Path

import torch

from imagenet_ddp.engine.plan import Plan
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs.log import Log
from imagenet_ddp.system.text import count_noun, first_line


def explain(plan: Plan, error: RuntimeError) -> str:
    """Return the reason for an error raised by torch in training, and what to do; "" if none is known."""
    if isinstance(error, torch.OutOfMemoryError):
        return out_of_memory(plan, error)
    if "Timed out waiting" not in str(error):  # Gloo's words
        return ""
    return (
        f"timed out after {plan.config['strategy']['timeout_s']:g} s (strategy.timeout_s): another rank did not take "
        "part in a collective operation. Hint: was a process stopped (kill -CONT resumes it)? If a rank is only "
        "slow, set a longer strategy.timeout_s."
    )


def out_of_memory(plan: Plan, error: Exception) -> str:
    """Return which rank ran out of memory, and what to type for the same update of the weights. error:
    torch.OutOfMemoryError."""
    data, times = plan.config["data"], plan.config["trainer"]["accumulate_grad_batches"]
    hint = "a smaller data.image_size"
    if data["batch_size"] > 1:
        batch, rest = divmod(data["batch_size"], 2)
        same = "nearly the same" if rest else "the same"
        hint = (
            f"data.batch_size={batch} trainer.accumulate_grad_batches={2 * times}, which is {same} batch for the "
            "weights; or see in nvidia-smi whether another process uses the device"
        )
    return (
        f"rank {plan.world_info.rank} must have memory for batches of {count_noun(data['batch_size'], 'image')} of "
        f"{data['image_size']} pixels, but does not: {first_line(error)} Hint: {hint}."
    )


def refuse_unrestorable(checkpoint: Path | None, error: Exception, log: Log) -> None:
    """Raise ConfigError if the error was raised while Lightning gave the parts of this checkpoint to their owners. The
    log gets the traceback, because one of them may be a callback of the user's own."""
    frames = traceback.walk_tb(error.__traceback__)
    # tests/engine/test_resume_checks.py watches the name of Lightning's module
    if checkpoint is None or not any(
        frame.f_globals["__name__"].endswith("checkpoint_connector") for frame, _ in frames
    ):
        return
    log.note("".join(traceback.format_exception(error)))
    raise ConfigError(
        f"{checkpoint} must be a checkpoint that this training can continue from, but cannot be restored: "
        f"{type(error).__name__}, {first_line(error)}. Hint: a checkpoint of the same run, as it was written."
    ) from error
