"""Write the first training batch as the network receives it, without training (show=augmented)."""

from imagenet_ddp.data.contact_sheet import FILE, write_sheet
from imagenet_ddp.engine import build
from imagenet_ddp.engine.job import Job
from imagenet_ddp.engine.plan import Plan
from imagenet_ddp.engine.world import World
from imagenet_ddp.runs.folder import disk_errors_as_run_error
from imagenet_ddp.runs.log import Log
from imagenet_ddp.runs.signals import raise_on_signal


def run(job: Job, plan: Plan, world: World) -> None:
    """Write train_batch.png. Raises ConfigError if the images cannot be opened."""
    log = Log(job.run_dir / "logs", world.info.rank)
    log.capture_libraries()
    with raise_on_signal():
        data = build.make_data(plan, world, log.say)
        try:
            if world.info.rank == 0:
                path = job.run_dir / FILE
                batch = data.finish(next(iter(data.train_dataloader())), training=True)
                with disk_errors_as_run_error(path):
                    write_sheet(path, batch, data.eval_transform, data.source.labels)
                log.say(f"The first training batch as the net sees it: {path}", whole=True)
        finally:
            data.close()
    log.close()
