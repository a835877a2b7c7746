"""Explain in a sentence why a training run failed."""

import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException  # pyright: ignore[reportPrivateImportUsage]
from lightning.pytorch.utilities.memory import is_oom_error

from imagenet_ddp.errors import LIBRARY, ConfigError, RunError, own_place, place_of, silent_end
from imagenet_ddp.launch.plan import Plan
from imagenet_ddp.models.lightning_module import STEP_RETURNS
from imagenet_ddp.system.console import Say
from imagenet_ddp.system.text import count_noun, first_line

# First words of Lightning's RuntimeErrors and ValueErrors that report a misconfiguration.
UNTYPED = ("Early stopping conditioned on", "Found more than one stateful callback", " `val_check_interval` (",
           "The current optimizer, ")  # fmt: skip


@contextmanager
def explained(plan: Plan) -> Generator[None]:
    """Turn the errors of training that have a known reason into a RunError."""
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise RunError(out_of_memory(plan, error)) from error
        if "deterministic implementation" in str(error):  # which names options of torch
            raise RunError(
                f"trainer.deterministic=true needs deterministic kernels, but {str(error).split()[0]} has none on this "
                "device. Hint: set trainer.deterministic=warn, or another model.name."
            ) from error
        # of DistributedDataParallel, which Lightning replaces by one that names an option of its own
        if "find_unused_parameters" in str(error) and not plan.config.strategy.find_unused_parameters:
            raise RunError(
                "each weight that is trained must have a gradient in each step of several processes, but some weights "
                "of the net are not used in the loss. Hint: remove the unused layer, or set "
                "strategy.find_unused_parameters=true, which takes some time in each step."
            ) from error
        if "Timed out waiting" not in str(error):  # text of Gloo's error
            raise
        raise RunError(
            f"timed out after {plan.config.strategy.timeout_s:g} s (strategy.timeout_s): another rank did not take "
            "part in a collective operation. Hint: check whether a process is stopped (kill -CONT resumes it), or "
            "increase strategy.timeout_s if a rank is merely slow."
        ) from error


@contextmanager
def first_failure(failed: Callable[[], BaseException | None], say: Say) -> Generator[None]:
    """Raise the stop or the failure that ended the training, even if what Lightning calls because of it fails, too:
    on_exception of a callback, or finalize of a logger. failed: returns what Lightning has reported to callbacks."""
    try:
        yield
    except BaseException as error:
        first = failed()
        if isinstance(first, KeyboardInterrupt):  # Ctrl-C is a signal, so this one was raised by code, within a step
            raise RunError(silent_end(first, "the code of this run")) from first
        if first is None or first is error:
            raise
        say(f"While the run ended, this failed, too: {type(error).__name__}: {first_line(error)}")
        raise first  # noqa: B904  # whose cause is already set


@contextmanager
def refusing(begun: Callable[[], bool] = lambda: False) -> Generator[None]:
    """Turn Lightning's errors about its configuration into a ConfigError before the first training step, or into a
    RunError after it. begun: function that returns whether a step has been trained."""
    try:
        yield
    except (MisconfigurationException, ModuleNotFoundError, RuntimeError, ValueError) as error:
        is_untyped = isinstance(error, RuntimeError | ValueError) and str(error).startswith(UNTYPED)
        is_missing = isinstance(error, ModuleNotFoundError) and not begun()
        if not (isinstance(error, MisconfigurationException) or is_untyped or is_missing):
            raise
        reason, place = " ".join(str(error).split()).rstrip(".?"), own_place(error)
        what, hint = (
            "these settings of trainer.*, callbacks.* or logger.*",
            "change the setting that this message names",
        )
        if place:
            what, hint = f"a call of your own code ({place})", "correct that place"
        elif "`training_step`" in reason:
            raise RunError(f"Lightning rejects what training_step returned: {reason}. Hint: {STEP_RETURNS}.") from error
        text = f"Lightning rejects {what}: {reason}." + ("" if "hint:" in reason.lower() else f" Hint: {hint}.")
        raise (RunError if begun() else ConfigError)(text) from error


@contextmanager
def trying_own_step(begun: Callable[[], bool]) -> Generator[None]:
    """Turn an error that a training_step of the user's own raises in its first step into a RunError that says what it
    gets. begun: returns whether a step has been trained."""
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        if begun() or not any(each.name == "training_step" and not LIBRARY.match(each.filename) for each in frames):
            raise
        raise RunError(
            f"the first training step failed: {type(error).__name__}: {first_line(error).rstrip('.')} "
            f'({place_of(error)}). Hint: correct that place: batch is a dict of "image", "target" and further values, '
            "see docs/library.md."
        ) from error


@contextmanager
def restoring(checkpoint: Path | None, updated: Callable[[], bool]) -> Generator[None]:
    """Turn an error that Lightning meets while it restores the state of a checkpoint, or the optimizer in its first
    step with that state, into a ConfigError. updated: returns whether the weights have been updated since then."""
    try:
        yield
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
        files = [Path(code.co_filename).name for code in codes]
        is_there = any(
            name == "checkpoint_connector.py" and (code.co_name.startswith("restore") or "resume" in code.co_name)
            for name, code in zip(files, codes, strict=True)
        )
        # within a step, Lightning calls the net, its loss and callbacks, by functions with this word in their names
        in_step = "optimizer.py" in files and not any("closure" in code.co_name for code in codes)
        if checkpoint is None or is_out_of_memory(error):
            raise
        if not is_there and (updated() or not in_step):
            raise
        raise ConfigError(
            f"{checkpoint} must hold a state that this run can continue from, but does not: {type(error).__name__}: "
            f"{first_line(error)}. Hint: resume from another checkpoint of that run, such as previous.ckpt."
        ) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory has run out. torch has an error of its own for its memory on CUDA only, not for that of
    CUDA's libraries, of an Apple GPU and of the CPU."""
    if not isinstance(error, RuntimeError):
        return False
    text, has_own = str(error), isinstance(error, torch.OutOfMemoryError)
    return has_own or is_oom_error(error) or "out of memory" in text or "_ALLOC_FAILED" in text


def out_of_memory(plan: Plan, error: Exception) -> str:
    """Return a message on which rank ran out of memory, with options that need less memory for the same update of the
    weights. error: one of is_out_of_memory."""
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
        f"rank {plan.place.rank} must have enough memory for batches of {count_noun(data.batch_size, 'image')} "
        f"of {data.image_size} pixels, but does not: {first_line(error)} Hint: {hint}."
    )
