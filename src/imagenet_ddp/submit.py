"""Show or run the sbatch command for a training run: python -m imagenet_ddp.submit. Does not import torch.

Exit codes: 0 if the command was shown or the job was queued; 2 if options are wrong or sbatch is not installed;
otherwise the exit code of sbatch.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from imagenet_ddp.cli import command as cli_command
from imagenet_ddp.cli import parse
from imagenet_ddp.cli.consequences import of_given_keys
from imagenet_ddp.cli.flags import without_other_programs
from imagenet_ddp.cli.known_terms import BY_NAME, NEAR
from imagenet_ddp.config import conf_dir
from imagenet_ddp.config.schema.keys import declared, validate_group
from imagenet_ddp.config.schema.trainer import num_devices
from imagenet_ddp.config.validators import shown
from imagenet_ddp.distributed.launchers import slurm
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch.stored_sweep import expand_resume
from imagenet_ddp.mistakes import Fix, Mistake, key_of, must_be, setting, without
from imagenet_ddp.strategies import batch_split
from imagenet_ddp.system import console
from imagenet_ddp.system.text import without_secrets

CPUS_PER_DEVICE = 8  # where data.num_workers is auto


@dataclass(frozen=True)
class Submission:
    command: list[str]
    notes: tuple[str, ...]
    now: bool


def main() -> None:
    with cli_command.run_command("submit", lambda argv: read(argv, os.environ)):
        plan = cli_command.planned("submit", sys.argv[1:], read)
        for note in plan.notes:
            console.print_message(note)
        print(without_secrets(shlex.join(plan.command)), flush=True)
        if plan.now:
            # inside a job, sbatch would read options from the environment variables of that job
            environ = {key: value for key, value in os.environ.items() if key[:6] != "SLURM_" or key == "SLURM_CONF"}
            sys.exit(subprocess.run(plan.command, env=environ, stdin=subprocess.DEVNULL).returncode)


def read(argv: Sequence[str], environ: Mapping[str, str]) -> Submission:
    """Return the job to submit. Raises ConfigError with every mistake."""
    argv, flags = without_other_programs("submit", argv)
    own = [token for token in argv if re.match(r"[+~]*submit\.|submit=", token) or _is_of_sbatch(key_of(token))]
    typed = [token for token in argv if token not in own]
    submit, found = _validate(parse.composed, "submit", own)
    found = [*_together(flags, own), *found]
    request, mistakes = _validate(parse.job_elsewhere, expand_resume(typed), environ)
    found += mistakes
    if submit is None or request is None:
        raise ConfigError(of_given_keys([*dict.fromkeys(found)], argv))
    options: Any = submit.configs[0].submit
    found += validate_group("submit", options, "submit")
    if options.now is True and shutil.which("sbatch", path=environ.get("PATH")) is None:
        what = "submit.now=true needs sbatch, which is not installed here"
        found.append(Mistake(what, ("submit.now",), (without("submit.now"),)))
    with suppress(OmegaConfBaseException):  # a value that does not resolve has been reported already
        found += _unsupported(request, options)
    if found:
        raise ConfigError(of_given_keys([*dict.fromkeys(found)], argv))
    trainer, notes = request.config.trainer, list[str]()
    if trainer.devices == "auto":
        what = "process" if trainer.accelerator == "cpu" else "GPU"
        notes.append(f"trainer.devices is not set, so one {what} per node is requested. Hint: set trainer.devices=8.")
    lines = f"{_script().read_text(encoding='utf-8')}\n#SBATCH {options.extra or ''}"
    if options.time and (warning := slurm.validate_time_limit(options.time, lines, f"submit.time={options.time}")):
        notes.append(str(warning))
    return Submission([*_sbatch(request, options), *typed], tuple(notes), options.now)


def _is_of_sbatch(name: str) -> bool:
    """Return whether the name of an option of sbatch is typed as a key: partition=NAME."""
    is_near = f"submit.{name}" in declared("submit") or NEAR.get(name, "").startswith("submit.")
    return name not in declared("train") and (is_near or f"submit/{name}" in BY_NAME)


def _together(flags: Sequence[Mistake], own: Sequence[str]) -> Iterator[Mistake]:
    """Yield the mistakes of options of sbatch. All of those that have no key go into submit.extra. own: what is typed
    of submit."""
    extra = [token.partition("=")[2] for token in own if key_of(token) == "submit.extra"]
    for each in flags:
        if each.keys == ("submit.extra",):
            extra += [option.partition("=")[2] for option in each.fixes[0].options]
            each = replace(each, fixes=(replace(each.fixes[0], options=(f"submit.extra={' '.join(extra)}",)),))
        yield each


def _validate(read: Callable[..., parse.Request], *given: Any) -> tuple[parse.Request | None, list[Mistake]]:
    """Return (the request, or None if it cannot be read; its mistakes)."""
    try:
        return read(*given), []
    except ConfigError as error:
        return error.request if isinstance(error, parse.RefusedError) else None, error.mistakes


def _unsupported(request: parse.Request, options: Any) -> list[Mistake]:
    """Report options that train accepts but a single sbatch command cannot request."""
    found: list[Mistake] = []
    for devices in (config.trainer.devices for config in request.configs):
        if re.match(r"-1$|\[|\d+,", shown(devices)):
            fix = setting(f"trainer.devices={num_devices(devices) or 8}")
            found.append(must_be("trainer.devices", "a number, because SLURM chooses the GPUs", shown(devices), fix))
    shapes = dict.fromkeys(" ".join(_shape(config, options)) for config in request.configs)
    if len(shapes) > 1:
        what = (
            "all jobs of -m must request the same nodes, GPUs and CPUs, because they become tasks of one job array, "
            f"got {' and '.join(shapes)}"
        )
        found.append(Mistake(what, hint="submit these jobs one by one, without -m"))
    if options.array_parallelism is not None and not _is_array(request):
        what = "submit.array_parallelism must be used with -m, got a single run"
        found.append(Mistake(what, ("submit.array_parallelism",), (Fix(("-m",), said="add -m"),)))
    return found


def _sbatch(request: parse.Request, options: Any) -> Iterator[str]:
    yield "sbatch"
    yield from _shape(request.config, options)
    names = {str(config.name) for config in request.configs}
    named = {
        "job-name": options.name or (names.pop() if len(names) == 1 else None),
        **{key: options[key] for key in ("time", "partition", "account", "qos", "constraint")},
    }
    yield from (f"--{key}={value}" for key, value in named.items() if value is not None)
    if _is_array(request):
        at_once = f"%{options.array_parallelism}" if options.array_parallelism else ""
        yield f"--array=0-{len(request.configs) - 1}{at_once}"
        yield "--output=slurm-%A_%a.log"
    yield from (options.extra or "").split()
    script, here = _script(), Path.cwd()
    yield str(script.relative_to(here) if script.is_relative_to(here) else script)


def _script() -> Path:
    return conf_dir().parent / "scripts/train.sbatch"  # in a wheel too


def _shape(config: DictConfig, options: Any) -> Iterator[str]:
    """Yield the sbatch options that follow from train's options. Without GPUs, yield --gpus-per-node=0, because the
    script itself requests a GPU."""
    trainer, workers = config.trainer, config.data.num_workers
    devices = num_devices(trainer.devices) or 1
    tasks = batch_split.num_processes(config.strategy, devices)
    cpus = (options.cpus_per_device or CPUS_PER_DEVICE) * devices // tasks
    if options.cpus_per_device is None and isinstance(workers, int):  # loader workers of each process
        cpus = workers + 1
    gpus = 0 if trainer.accelerator == "cpu" else devices
    yield f"--nodes={trainer.num_nodes if isinstance(trainer.num_nodes, int) else 1}"
    yield f"--ntasks-per-node={tasks}"
    yield f"--gpus-per-node={options.gpu_type}:{gpus}" if gpus and options.gpu_type else f"--gpus-per-node={gpus}"
    yield f"--cpus-per-task={cpus}"
    if options.mem_gb_per_device is not None:
        yield f"--mem={options.mem_gb_per_device * devices}G"


def _is_array(request: parse.Request) -> bool:
    return request.multirun and request.config.sweep.job == "auto"


if __name__ == "__main__":
    main()
