"""Parse the command line of tune, or that of a study to resume, into a plan, or report all of its mistakes at once.

Does not import torch.
"""

import dataclasses
import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import DictConfig, OmegaConf, open_dict

from imagenet_ddp.cli import check_config, hydra_flags, overrides, parse
from imagenet_ddp.cli.parse import refuse_multirun
from imagenet_ddp.config.keys import declared, key_of, validate_group
from imagenet_ddp.config.read_if import unread
from imagenet_ddp.config.schema.commands import TrainConfig
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs.folder import make_given, make_new
from imagenet_ddp.system.files import atomic_write
from imagenet_ddp.system.text import first_line, install
from imagenet_ddp.tune import space
from imagenet_ddp.tune.space import Parameter
from imagenet_ddp.tune.trials import Slot, make_slots, uses_srun

STORED = "tune.yaml"
SPACES = ("sgd", "adamw")  # the optimizers that have a search space of their name in conf/search


@dataclass(frozen=True)
class Plan:
    argv: tuple[str, ...]  # without tune.resume and hydra.run.dir
    train_argv: tuple[str, ...]  # the part of argv that is passed to train
    config: DictConfig  # the config of train, with interpolations
    options: Mapping[str, Any]  # tune.*
    parameters: tuple[Parameter, ...]
    slots: tuple[Slot, ...]  # one slot for each trial that runs at the same time
    folder: Path  # absolute
    resumes: bool

    @property
    def max_epochs(self) -> int | None:
        epochs = self.config.trainer.max_epochs
        return epochs if isinstance(epochs, int) and epochs > 0 else None

    @property
    def space(self) -> dict[str, Any]:
        return {each.key: dict(each.entry) for each in self.parameters}

    def store(self) -> None:
        """Write tune.yaml, with everything that is needed to resume the study."""
        content = {
            "command": overrides.shell_line("tune", list(self.argv)),
            "folder_of_command": str(Path.cwd()),
            "options": list(self.argv),
            "space": self.space,
        }
        atomic_write(self.folder / STORED, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def read(argv: Sequence[str], environ: Mapping[str, str]) -> Plan:
    """Return the plan, and create the folder of a new study. argv: as returned by space.as_override. Raises ConfigError
    with every mistake.

    A resumed study keeps its options and its search space, but tune.* may be typed again. Its paths are relative to the
    folder in which it was started, which becomes the current folder.
    """
    refuse_multirun(argv, "tune chooses the combinations")
    argv = hydra_flags.without_local_rank(argv)
    request = parse.command_line("tune", argv, environ, compose_only=True)
    if added := _search_for_optimizer(request):
        argv = [*(token for token in argv if not token.startswith("search=")), added]
        request = parse.command_line("tune", argv, environ, compose_only=True)
    study, argv = _study_folder(request), request.argv
    stored = _stored(study) if study else None
    argv = [token for token in argv if not (_belongs(token, "tune.resume") or _belongs(token, "hydra.run.dir"))]
    if stored is None:
        plan = _plan(request, argv, environ, study)
        make = make_given if overrides.typed_value(request, "hydra.run.dir") else make_new
        return dataclasses.replace(plan, folder=make(plan.folder).resolve())
    own = [token for token in argv if _belongs(token, "tune")]
    if added := [token for token in argv if token not in own and token not in stored["options"]]:
        raise ConfigError(
            [
                f"{token} must be among the options of {study}, which cannot change. Hint: leave {token} out, or start "
                "a new study without tune.resume."
                for token in added
            ]
        )
    retyped = {key_of(token) for token in own}
    argv = [*(token for token in stored["options"] if key_of(token) not in retyped), *own]
    plan = _plan(parse.command_line("tune", argv, environ, compose_only=True), argv, environ, study)
    before, now = stored["space"], plan.space
    hint = "Hint: restore the file of the search space, or start a new study without tune.resume."
    if changed := [key for key in {**before, **now} if before.get(key) != now.get(key)]:
        raise ConfigError(
            [f"search.{key} must be {before.get(key)} as in {study}, got {now.get(key)}. {hint}" for key in changed]
        )
    return dataclasses.replace(plan, resumes=True, options={**plan.options, "resume": str(study)})


def _search_for_optimizer(request: parse.Request) -> str | None:
    """Return the option that replaces search=auto: the search space of the composed optimizer. None if another space
    was chosen, or that of a study to resume. Raises ConfigError for an optimizer without a search space."""
    config = request.configs[0]
    if request.hydra.runtime.choices.get("search") != "auto" or config.tune.resume is not None:
        return None
    name = config.optim._target_ or config.optim.name
    if name not in SPACES:
        raise ConfigError(
            f"search=auto needs optim.name=sgd or optim.name=adamw, got {name}. "
            "Hint: type the space, such as `search=none 'search.optim.lr={low:0.01,high:1,log:true}'`."
        )
    return f"search={name}"


def _plan(request: parse.Request, argv: list[str], environ: Mapping[str, str], study: Path | None) -> Plan:
    config = request.configs[0].copy()
    with open_dict(config):
        options, search = (cast(Any, OmegaConf.to_container(config.pop(key))) for key in ("tune", "search"))
        config.show = None  # `show` is only for this command, not for its trials
    train_argv = [token for token in argv if not (_belongs(token, "tune") or _belongs(token, "search"))]
    typed = [token for token in request.typed if token in train_argv]
    found = validate_group("tune", options, "tune")
    found += unread(request.typed, {"tune": options}, declared("tune"))
    if config.resume is not None:
        found.append(
            f"resume must not be set for tune, got {config.resume}: it resumes a single run. Hint: set "
            f"tune.resume={config.resume} to resume a study."
        )
    parameters: list[Parameter] = []
    if importlib.util.find_spec("optuna") is None:
        found.append(f"tune needs Optuna, which is not installed. Hint: run `{install('imagenet_ddp[tune]')}`")
    else:
        parameters, mistakes = space.read(
            search or {}, [*typed, *(token for token in argv if _belongs(token, "search"))]
        )
        found += mistakes
    srun = uses_srun(options["launcher"], environ)
    train_environ = {name: value for name, value in environ.items() if not (srun and name.startswith("SLURM"))}
    train_mistakes, _ = check_config.validate(config, train_environ, "train", typed=typed)
    found += train_mistakes
    if not train_mistakes:
        found += space.check_values(parameters, config, train_environ, typed)
    if found:
        raise ConfigError(list(dict.fromkeys(found)))
    slots = make_slots(overrides.typed_config(config, TrainConfig, partial=True), options, environ)
    folder = study or Path(request.hydra.run.dir).absolute()
    return Plan(tuple(argv), tuple(train_argv), config, options, tuple(parameters), tuple(slots), folder, False)


def _study_folder(request: parse.Request) -> Path | None:
    """Return the absolute folder of the study to resume, or None for a new study in a new folder. Raises ConfigError if
    tune.resume names no study, or if a new study would be in the folder of another."""
    resume, run_dir = request.configs[0].tune.resume, Path(request.hydra.run.dir).absolute()
    if resume is None:
        if (run_dir / STORED).exists():
            raise ConfigError(f"hydra.run.dir={run_dir} must be a new folder, but contains a study. "
                              f"Hint: set tune.resume={run_dir} to resume it, or set another folder.")  # fmt: skip
        return None
    if resume != "auto":
        if not (Path(resume) / STORED).is_file():
            raise ConfigError(f"tune.resume={resume} must be a study's folder, but {Path(resume) / STORED} is not a "
                              "file. Hint: set tune.resume=runs/<name>/study_<time> or tune.resume=auto.")  # fmt: skip
        return Path(resume).absolute()
    if overrides.typed_value(request, "hydra.run.dir"):
        return run_dir
    studies = [path.parent for path in run_dir.parent.glob(f"study_*/{STORED}")]
    unfinished = [path for path in studies if not (path / "best.yaml").exists()]
    return max(unfinished, key=lambda path: (path / STORED).stat().st_mtime_ns, default=None)


def _stored(folder: Path) -> dict[str, Any] | None:
    """Read tune.yaml and change to the folder in which its command was started. Return None if there is no tune.yaml,
    because tune.resume=auto was typed with a new folder. Raises ConfigError if the file cannot be used."""
    file = folder / STORED
    if not file.exists():
        return None
    try:
        stored = yaml.safe_load(file.read_text(encoding="utf-8"))
        os.chdir(stored["folder_of_command"])
        return {"options": list(stored["options"]), "space": dict(stored["space"])}
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        reason = f"{type(error).__name__}: {first_line(error).rstrip('.')}"
        raise ConfigError(f"{file} must describe a study, but cannot be used ({reason}). "
                          "Hint: start a new study without tune.resume.") from error  # fmt: skip


def _belongs(token: str, key: str) -> bool:
    """Return whether an option sets this key, a key below it, or the config group of that name."""
    name = key_of(token)
    return not token.startswith("-") and (name == key or name.startswith((f"{key}.", f"{key}@")))
