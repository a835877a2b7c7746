"""Measure, before training begins, the batch of trainer.batch_finder. All ranks make the same decision."""

from dataclasses import replace

from imagenet_ddp.distributed import devices
from imagenet_ddp.engine.job import Job
from imagenet_ddp.engine.plan import Plan
from imagenet_ddp.engine.world import World
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import count_noun


def find_batch(job: Job, plan: Plan, world: World) -> Job:
    """Return the job with the batch size that trainer.batch_finder finds. Without trainer.batch_finder, the job stays
    unchanged. A resumed job keeps the batch size of its checkpoint. Raises ConfigError if no batch fits, or without a
    GPU."""
    config = plan.config
    if not config["trainer"]["batch_finder"]:
        return job
    if job.checkpoint is not None:
        message = f"trainer.batch_finder: the resumed run keeps data.batch_size={config['data']['batch_size']}."
        return replace(job, messages=(*job.messages, message))
    if plan.accelerator.value != "cuda":
        raise ConfigError(
            "trainer.batch_finder=true needs an NVIDIA or AMD GPU, whose memory limits the batch, but the device is "
            f"{plan.accelerator.value}. Hint: set trainer.batch_finder=false data.batch_size=32."
        )
    from imagenet_ddp.performance import batch_finder

    copies = (plan.world_info.world_size > 1) + (config.averaging.name != "none")
    device = devices.device_of(config["trainer"], plan.world_info.local_rank)
    step = batch_finder.cuda_step(config, plan.precision.value, device, copies)
    found, rank = smallest(world, batch_finder.largest_batch(step), config["strategy"]["timeout_s"])
    if not found:
        raise ConfigError(
            f"rank {rank} must have enough memory for batches of {batch_finder.MULTIPLE} images of "
            f"{config['data']['image_size']} pixels (trainer.batch_finder), but does not. Hint: set a smaller "
            "data.image_size, choose a smaller model.name, or set trainer.batch_finder=false data.batch_size=1."
        )
    of_all = f", the smallest value of {plan.world_info.world_size} ranks" if plan.world_info.world_size > 1 else ""
    limit = " (larger batches are not tried)" if found == batch_finder.MOST else ""
    message = (
        f"trainer.batch_finder: data.batch_size={found} instead of {config['data']['batch_size']}. This is the largest "
        f"batch for which {count_noun(2, 'training step')} need at most {batch_finder.USABLE:.0%} of the free memory "
        f"of rank {rank}{of_all}{limit}."
    )
    config = replace(job.config, data=replace(job.config.data, batch_size=found))
    return replace(job, config=config, messages=(*job.messages, message))


def smallest(world: World, found: int, timeout_s: float) -> tuple[int, int]:
    """Return (the smallest of the values found by the ranks, the rank that found it). The result is the same on all
    ranks. Waits for the slowest rank."""
    group = world.meeting
    if group is None:
        return found, 0
    sizes = group.check_all("batch_finder", found, lambda sizes: [], timeout_s)
    sizes = group.broadcast("batch_found", sizes, timeout_s)
    return min(sizes), sizes.index(min(sizes))
