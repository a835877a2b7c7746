"""Train in one process: make all parts of the run, train, and write the results."""

from collections.abc import Generator
from contextlib import contextmanager, nullcontext

from imagenet_ddp.callbacks.background_logger import connect
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch.job import Job
from imagenet_ddp.launch.plan import Plan
from imagenet_ddp.launch.world import World
from imagenet_ddp.runs import result_files
from imagenet_ddp.runs.folder import lock
from imagenet_ddp.runs.log import Log
from imagenet_ddp.runs.signals import SignalExit, Signals, Stopped, raise_on_signal
from imagenet_ddp.strategies.process_group import destroy_process_group
from imagenet_ddp.system.bounded_wait import said_while_slow
from imagenet_ddp.system.files import short_path
from imagenet_ddp.system.process import command_is_gone
from imagenet_ddp.training import build, diagnosis, known_images
from imagenet_ddp.training.run_summary import closing_lines, require_files, results
from imagenet_ddp.training.start_report import detail_lines, opening_lines


def run(job: Job, plan: Plan, world: World, signals: Signals) -> float | None:
    """Train in this process, from the plan to the last line of the log. Return the best score, or None
    without validation. Raises Stopped after saving if the run received a signal to stop."""
    is_first = world.place.rank == 0
    with lock(job.run_dir) if is_first else nullcontext():
        log = Log(job.run_dir / "logs", world.place.rank)
        log.capture_libraries()
        if world.watch is not None:
            world.watch.note = log.note
        for message in job.messages:
            log.say(message)
        try:
            # a network disk may take many minutes to list its images
            with raise_on_signal(), said_while_slow("Preparing the images, the net and the optimizer"):
                parts = build.make_run(job, plan, world, log, signals)
        except SignalExit as stop:
            log.note(f"{world.command_gone(world.place.node_rank or 0)}." if command_is_gone() else str(stop))
            raise
        for line in opening_lines(plan, parts.data, parts.module.net):
            log.say(line)
        for line in detail_lines(plan, world, parts.data):
            log.note(line)
        log.say(
            f"Run folder: {short_path(job.run_dir)} (all choices and their reasons: logs/rank{world.place.rank}.log)"
        )
        if is_first:
            (job.run_dir / "summary.json").unlink(missing_ok=True)
            result_files.write_config(job.run_dir, job.config)
        with _end_explained(job, plan, world, parts, log):
            connect(parts.trainer.loggers)
            checkpoint = str(job.checkpoint) if job.checkpoint else None
            # weights_only is torch.load's: no code is run from the file. The optimizer's state is restored, too
            parts.trainer.fit(parts.module, datamodule=parts.data, ckpt_path=checkpoint, weights_only=True)
        train_s, train_cpu_s = parts.train_log.times(parts.trainer)  # a collective, as the next line
        ignored = parts.data.ignored_lines(parts.trainer)
        if is_first:
            result_files.write_json(
                job.run_dir / "summary.json", results(job, plan, world, parts, train_s, train_cpu_s)
            )
        if job.config.ends_with_features:
            known_images.write_known(parts, job.run_dir, log.say, lambda: signals.received is not None)
        for line in closing_lines(job, parts, train_s, ignored):
            log.say(line)
        if is_first:
            require_files(job, parts)
        log.close()
        destroy_process_group()
        return parts.train_log.best.value


@contextmanager
def _end_explained(job: Job, plan: Plan, world: World, parts: build.Run, log: Log) -> Generator[None]:
    """Explain in the log why training in the block ends early, and end what runs beside it."""
    try:
        train_log = parts.train_log
        with (
            diagnosis.explained(plan),
            diagnosis.refusing(lambda: train_log.begun),
            diagnosis.restoring(job.checkpoint, lambda: train_log.updated),
            diagnosis.trying_own_step(lambda: train_log.begun),
            diagnosis.first_failure(lambda: train_log.failure, log.say),
        ):
            yield
    except ConfigError:
        if plan.place.rank == 0 and job.checkpoint is None:
            (job.run_dir / "config.yaml").unlink(missing_ok=True)  # nothing was trained, so the folder is still new
        raise
    except Stopped as stop:
        why = "" if stop.lost_node is None else f", because {world.command_gone(stop.lost_node)}"
        saved = "and saved" if parts.checkpoint_callback else "without saving (callbacks.checkpoint is off)"
        where = f"step {parts.trainer.global_step}, in epoch {parts.trainer.current_epoch + 1}"
        log.say(f"Stopped {saved} after {where}{why}.")
        raise
    finally:
        parts.data.close()
