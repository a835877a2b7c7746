"""Train in one process: make all parts of the run, train, and write the results."""

import os
import shlex
from contextlib import nullcontext

from imagenet_ddp.callbacks.loggers.background import connect
from imagenet_ddp.cli.text_values import quoted
from imagenet_ddp.distributed.launchers.world_info import WorldInfo
from imagenet_ddp.distributed.strategies.process_group import destroy_process_group
from imagenet_ddp.engine import build, diagnosis, startup_report
from imagenet_ddp.engine.job import Job, should_requeue
from imagenet_ddp.engine.plan import Config, Plan
from imagenet_ddp.engine.resume_checks import is_over, require_same_data
from imagenet_ddp.engine.run_summary import closing_lines, results
from imagenet_ddp.engine.world import World
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.models import batch_norm
from imagenet_ddp.models.optimizers import num_states
from imagenet_ddp.runs import summary
from imagenet_ddp.runs.checkpoint_file import checkpoint_bytes, max_new_checkpoints
from imagenet_ddp.runs.folder import lock, place_checkpoints, require_disk_space
from imagenet_ddp.runs.log import Log
from imagenet_ddp.runs.signals import SignalExit, Signals, Stopped, raise_on_signal


def run(job: Job, plan: Plan, world: World, signals: Signals) -> float | None:
    """Train in this process, from the plan to the last line of the log. Return the highest val/top1, a fraction, or
    None without validation. Raises Stopped after saving if the run received a signal to stop."""
    with lock(job.run_dir) if world.info.rank == 0 else nullcontext():
        return _run(job, plan, world, signals)


def _run(job: Job, plan: Plan, world: World, signals: Signals) -> float | None:
    log = Log(job.run_dir / "logs", world.info.rank)
    log.capture_libraries()
    for message in job.messages:
        log.say(message)
    parts = _make_parts(job, plan, world, log, signals)
    for line in startup_report.lines(plan, world, parts.data):
        log.say(line)
    log.say(f"Run folder: {job.run_dir}")
    _train(job, plan, parts, log)
    train_s, train_cpu_s = parts.train_log.times(parts.trainer)  # a collective
    if world.info.rank == 0:
        summary.write_json(job.run_dir / "summary.json", results(job, plan, world, parts, train_s, train_cpu_s))
    for line in closing_lines(job, parts, train_s):
        log.say(line)
    log.close()
    destroy_process_group()
    return parts.train_log.best.value


def _make_parts(job: Job, plan: Plan, world: World, log: Log, signals: Signals) -> build.Run:
    """Make all parts of the run. Raises ConfigError for all problems that can be detected before the first step."""
    max_epochs, resumed = plan.config["trainer"]["max_epochs"], job.checkpoint is not None
    try:
        with raise_on_signal():  # a network disk may take many minutes to list its images
            parts = build.make_run(job, plan, world, log, signals)
            if job.checkpoint is not None:
                stored = require_same_data(parts, job.checkpoint, max_epochs, job.run_dir)
                assert parts.checkpoint_callback is not None
                parts.checkpoint_callback.is_over = is_over(job, stored)
            if world.info.rank == 0 and parts.checkpoint_callback is not None:
                # an average is a further copy of the weights
                num_tensors = (num_states(plan.config.optim) or 0) + (plan.config.averaging.name != "none")
                callback = parts.checkpoint_callback
                callback.dirpath = place_checkpoints(job.run_dir, callback.last_path.parent)
                require_disk_space(
                    callback.dirpath if callback.dirpath.exists() else job.run_dir,
                    checkpoint_bytes(parts.module.net, num_tensors),
                    max_new_checkpoints(max_epochs, resumed=resumed),
                )
    except SignalExit as left:
        log.note(str(left))
        raise
    return parts


def _train(job: Job, plan: Plan, parts: build.Run, log: Log) -> None:
    is_first, trainer = plan.world_info.rank == 0, parts.trainer
    if is_first:
        (job.run_dir / "summary.json").unlink(missing_ok=True)
        summary.write_config(job.run_dir, job.config)
    try:
        with build.refusing(begun=lambda: parts.train_log.begun):
            checkpoint = str(job.checkpoint) if job.checkpoint else None
            connect(trainer.loggers)
            trainer.fit(parts.module, datamodule=parts.data, ckpt_path=checkpoint, weights_only=True)
    except ConfigError:
        if is_first and job.checkpoint is None:
            (job.run_dir / "config.yaml").unlink(missing_ok=True)  # nothing was trained, so the folder is still new
        raise
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, RuntimeError) and (reason := diagnosis.explain(plan, error)):
            raise RunError(reason) from error
        if isinstance(error, ValueError) and str(error).startswith(batch_norm.ERROR):  # a small remainder with dp
            raise RunError(
                "batch norm needs 2 images per device in each batch, but the last one of an epoch has fewer. "
                f"Hint: set data.batch_size={job.config['data']['batch_size'] + 1}."
            ) from error
        diagnosis.refuse_unrestorable(job.checkpoint, error, log)
        raise
    except Stopped as stop:
        saved = "and saved" if parts.checkpoint_callback else "without saving (callbacks.checkpoint is off)"
        log.say(f"Stopped {saved} after step {trainer.global_step}, in epoch {trainer.current_epoch + 1}.")
        if parts.checkpoint_callback and not should_requeue(job, stop.signal_number, os.environ):
            resume = shlex.quote(quoted(f"resume={job.run_dir}"))
            options = f"{resume}{_world_words(job.config, plan.world_info)}"
            log.say(f"Continue with: {job.program} -m imagenet_ddp.train {options}", whole=True)
        raise
    finally:
        parts.data.close()


def _world_words(config: Config, info: WorldInfo) -> str:
    """Return the options with which the same nodes can meet again; "" under a launcher or on one node."""
    if info.num_nodes == 1 or info.source not in ("MASTER_ADDR", "cluster.address"):
        return ""
    address = config["cluster"]["address"] or f"{info.address}:{info.port}"
    return (
        f" trainer.num_nodes={info.num_nodes} trainer.devices={info.local_world_size} cluster.address={address}"
        " (on each node)"
    )
