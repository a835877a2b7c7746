"""Explain why a training run failed."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from imagenet_ddp.engine.job import Job
from imagenet_ddp.engine.plan import Plan
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.runs.log import Log
from imagenet_ddp.system.text import count_noun, first_line


@contextmanager
def explained(job: Job, plan: Plan, log: Log) -> Iterator[None]:
    """Turn the errors of training that have a known reason into a RunError, or into a ConfigError if the checkpoint
    cannot be restored. The traceback of the latter goes to the log, because the error may come from a callback of the
    user's own."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        if reason := _reason(plan, error):
            raise RunError(reason) from error
        if job.checkpoint is None or not _in_restore(error):
            raise
        log.note("".join(traceback.format_exception(error)))
        raise ConfigError(
            f"{job.checkpoint} must be a checkpoint that this run can continue from, but cannot be restored: "
            f"{type(error).__name__}, {first_line(error)}. Hint: resume from an unmodified checkpoint of the same run."
        ) from error


def _in_restore(error: Exception) -> bool:
    """Return whether the error was raised while Lightning restored a checkpoint."""
    frames = traceback.walk_tb(error.__traceback__)
    # tests/engine/test_resume.py tests the name of Lightning's module
    return any(frame.f_globals["__name__"].endswith("checkpoint_connector") for frame, _ in frames)


def _reason(plan: Plan, error: Exception) -> str:
    """Return the reason for an error that torch raised in training, with a hint; "" if it is unknown."""
    if isinstance(error, torch.OutOfMemoryError):
        return out_of_memory(plan, error)
    if isinstance(error, RuntimeError) and "Timed out waiting" in str(error):  # text of Gloo's error
        return (
            f"timed out after {plan.config.strategy.timeout_s:g} s (strategy.timeout_s): another rank did not take "
            "part in a collective operation. Hint: check whether a process is stopped (kill -CONT resumes it), or "
            "increase strategy.timeout_s if a rank is merely slow."
        )
    return ""


def out_of_memory(plan: Plan, error: Exception) -> str:
    """Return a message on which rank ran out of memory, with options that need less memory for the same update of the
    weights. error: torch.OutOfMemoryError."""
    data, times = plan.config.data, plan.config.trainer.accumulate_grad_batches
    hint = "set a smaller data.image_size"
    if data.batch_size > 1:
        batch, rest = divmod(data.batch_size, 2)
        same = "nearly the same" if rest else "the same"
        hint = (
            f"set data.batch_size={batch} trainer.accumulate_grad_batches={2 * times}, which uses {same} number of "
            "images per update of the weights, or check with nvidia-smi whether another process uses the device"
        )
    return (
        f"rank {plan.world_info.rank} must have enough memory for batches of {count_noun(data.batch_size, 'image')} "
        f"of {data.image_size} pixels, but does not: {first_line(error)} Hint: {hint}."
    )
