"""Find out whether the run folder of a command can be used: whether it can be created, and holds no other run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from imagenet_ddp.cli.compose import Composed
from imagenet_ddp.config.schema import commands
from imagenet_ddp.distributed.launchers.detect import restarted
from imagenet_ddp.mistakes import Mistake, key_of, setting
from imagenet_ddp.runs import folder
from imagenet_ddp.system.files import not_writable_reason
from imagenet_ddp.system.text import first_sentence


def run_dir(hydra: DictConfig, verb: str, typed: Sequence[str], is_multirun: bool) -> list[Mistake]:
    """Return a mistake if the run folder cannot be created. hydra: the hydra node."""
    if verb in (*commands.USE_MODEL, "doctor"):
        return []
    key = "hydra.sweep.dir" if is_multirun else "hydra.run.dir"
    try:
        path = Path(str(OmegaConf.select(hydra, key.removeprefix("hydra.")))).absolute()
        reason = not_writable_reason(path)
    except OmegaConfBaseException as error:
        is_typed = key in map(key_of, typed)  # else the key in it is reported
        what = f"{key} does not resolve: {first_sentence(error)}"
        return [Mistake(what, (key,), (setting(f"{key}=FOLDER"),))] if is_typed else []
    except OSError as error:
        return [not_a_path(error)]
    if not reason:
        return []
    what = f"{key} must be a folder that can be created ({path}), but {reason}"
    return [Mistake(what, (key,), (setting(f"{key}=FOLDER"),))]


def holds_run(job: Composed, environ: Mapping[str, str], verb: str, typed: Sequence[str]) -> list[Mistake]:
    """Return a mistake if a new run is to begin in the folder of another. Where a launcher has started several
    processes, one of them checks that once they have met."""
    is_new = verb in ("train", "evaluate") and job.values is not None and not goes_on(job.values, environ)
    if not is_new or job.place is None or not job.place.is_alone or "hydra.run.dir" not in map(key_of, typed):
        return []
    mistake = folder.taken(Path(job.hydra.run.dir), can_resume=verb == "train")
    return [mistake] if mistake else []


def not_a_path(error: OSError) -> Mistake:
    return Mistake(f"{error.filename} cannot be used as a path: {error.strerror}", hint="type another path")


def goes_on(config: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Return whether a training may continue an earlier one."""
    return bool(config.get("resume") or config.get("sweep", {}).get("resume")) or restarted(environ)
