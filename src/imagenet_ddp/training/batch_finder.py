"""Find, before training begins, the largest batch that fits into the memory of all devices, by running training steps
on noise (trainer.batch_finder). All ranks make the same decision."""

import gc
import traceback
from collections.abc import Callable
from dataclasses import replace

import torch

from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch.job import Job
from imagenet_ddp.launch.plan import Plan
from imagenet_ddp.launch.world import World
from imagenet_ddp.mistakes import Mistake, setting
from imagenet_ddp.training.diagnosis import is_out_of_memory
from imagenet_ddp.training.trial_step import make_training

MULTIPLE = 8  # batch sizes are multiples of this, as tensor cores require; also the smallest batch tried
MOST = 4096  # largest batch tried
USABLE = 0.9  # usable share of the free memory, because batches differ, and memory becomes fragmented
CLASSES = 1000  # number of classes of the net that is tried


def find_batch(job: Job, plan: Plan, world: World) -> Job:
    """Return the job with the batch size that trainer.batch_finder finds. Without trainer.batch_finder, the job stays
    unchanged. A resumed job keeps the batch size of its checkpoint. Raises ConfigError if no batch fits, or without a
    GPU."""
    config = plan.config
    if not config.trainer.batch_finder:
        return job
    if job.checkpoint is not None:
        message = f"trainer.batch_finder: the resumed run keeps data.batch_size={config.data.batch_size}."
        return replace(job, messages=(*job.messages, message))
    if plan.accelerator.value != "cuda":
        what = (
            "trainer.batch_finder=true needs an NVIDIA or AMD GPU, whose memory limits the batch, but the device is "
            f"{plan.accelerator.value}"
        )
        way = setting("trainer.batch_finder=false", "data.batch_size=32")
        raise ConfigError(Mistake(what, ("trainer.batch_finder", "trainer.accelerator"), (way,)))
    copies = (plan.place.world_size > 1) + (config.averaging.name != "none")
    step = cuda_step(config, plan.precision.value, plan.device, copies)
    found, rank = smallest(world, largest_batch(step), config.strategy.timeout_s)
    if not found:
        raise ConfigError(
            f"rank {rank} must have enough memory for batches of {MULTIPLE} images of "
            f"{config.data.image_size} pixels (trainer.batch_finder), but does not. Hint: set a smaller "
            "data.image_size, choose a smaller model.name, or set trainer.batch_finder=false data.batch_size=1."
        )
    message = (
        f"trainer.batch_finder: data.batch_size={found} instead of {config.data.batch_size}. This is the largest "
        f"batch, up to {MOST}, that needs at most {USABLE:.0%} of the free memory of rank {rank}, which has the least."
    )
    config = replace(job.config, data=replace(job.config.data, batch_size=found))
    return replace(job, config=config, messages=(*job.messages, message))


def smallest(world: World, found: int, timeout_s: float) -> tuple[int, int]:
    """Return (the smallest of the values found by the ranks, the rank that found it). The result is the same on all
    ranks. Waits for the slowest rank."""
    group = world.meeting
    if group is None:
        return found, 0
    size, rank = group.agree("batch_finder", found, lambda sizes: [min(sizes), sizes.index(min(sizes))], timeout_s)
    return size, rank


def largest_batch(step: Callable[[int], None]) -> int:
    """Return the largest multiple of 8 up to MOST for which step(images) raises no out-of-memory error; 0 if even 8
    images raise one. Double the size until a step fails, then bisect."""
    fitting, failing = 0, MULTIPLE
    while failing <= MOST and _fits(step, failing):
        fitting, failing = failing, 2 * failing
    failing = min(failing, MOST + MULTIPLE)
    while failing - fitting > MULTIPLE:
        middle = (fitting + failing) // 2 // MULTIPLE * MULTIPLE
        fitting, failing = (middle, failing) if _fits(step, middle) else (fitting, middle)
    return fitting


def _fits(step: Callable[[int], None], images: int) -> bool:
    try:
        step(images)
    except (RuntimeError, ConfigError) as error:
        cause = error.__cause__ if isinstance(error, ConfigError) else error  # raised by make_training
        if cause is not None and is_out_of_memory(cause):
            return False
        raise
    return True


def cuda_step(config: CommonConfig, precision: str, device: torch.device, copies: int) -> Callable[[int], None]:
    """Return a step function for largest_batch, which runs two updates of a separate net and then frees it. The
    process's random state stays unchanged. A step also fails if it needs more than 90 % of the memory that is free now.

    copies: number of additional copies of the weights in a run (DistributedDataParallel's gradients, an average).
    """
    _release(device)
    usable = USABLE * torch.cuda.mem_get_info(device)[0]

    def step(images: int) -> None:
        config_of_step = replace(config, data=replace(config.data, batch_size=images))
        try:
            with torch.random.fork_rng([device]):  # pyright: ignore[reportUnknownMemberType]
                used = _train(config_of_step, precision, device, copies)
        except Exception as error:
            _forget_tensors(error)
            raise
        finally:
            _release(device)  # also if the step failed
        if used > usable:
            raise torch.OutOfMemoryError(f"{used / 2**20:.0f} MiB of {usable / 2**20:.0f} MiB")

    return step


def _train(config: CommonConfig, precision: str, device: torch.device, copies: int) -> float:
    """Train for two updates, validate a batch, and return the number of bytes of memory needed."""
    training = make_training(config, precision, device, CLASSES)
    # now with what the first step has made: the gradients, and the optimizer's state
    training.backward(training.forward(training.net))
    training.optimizer.step()
    size = config.data.image_size  # of validation, which may be larger
    num_images = config.data.val_batch_size or len(training.images)
    training.images = torch.zeros((num_images, 3, size, size), dtype=torch.uint8, device=device)
    training.target = torch.zeros(num_images, dtype=torch.long, device=device)
    with torch.inference_mode():
        training.forward(training.net.eval())
    weights = sum(weight.numel() * weight.element_size() for weight in training.net.parameters())
    return torch.cuda.max_memory_reserved(device) + copies * weights


def _forget_tensors(error: BaseException | None) -> None:
    """Release the activations that the frames of an error still hold. If they were released later, the next step would
    count them as its own memory and seem too large."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__


def _release(device: torch.device) -> None:
    gc.collect()
    with torch.cuda.device(device):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)  # for the next step, and for the run's own gpu_memory_gib
