"""The command line of tune, or of a stored study that goes on -> a plan without a mistake that could be seen before a
trial starts. No torch, no Optuna."""

import dataclasses
import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from imagenet_ddp import check, session
from imagenet_ddp.run.folder import make_given, make_new
from imagenet_ddp.schema import ConfigError
from imagenet_ddp.trainer_keys import NULL, choice, expect_all, number, whole
from imagenet_ddp.tuning import places, space
from imagenet_ddp.tuning.parameter import Parameter
from imagenet_ddp.tuning.places import Place
from imagenet_ddp.words import install
from imagenet_ddp.writing import write_whole

STORED = "tune.yaml"
_KINDS = {
    "num_trials": (whole(1), "20"),
    "num_at_once": (whole(1), "1"),
    "launcher": (choice("auto", "local", "srun"), "auto"),
    "sampler": (choice("tpe", "random"), "tpe"),
    "num_random_trials": (whole(1), "10"),
    "pruner": (choice("median", "hyperband", "none"), "median"),
    "pruner_num_trials": (whole(1), "4"),
    "pruner_num_epochs": (whole(1), "3"),
    "hyperband_factor": (whole(2), "3"),
    "timeout_s": (number(above=0) | NULL, "3600"),
    "max_failures": (whole(1), "3"),
}


@dataclass(frozen=True)
class Plan:
    argv: tuple[str, ...]  # of this study, without where it lies
    train_argv: tuple[str, ...]  # what of it is train's
    config: DictConfig  # train's; interpolations as they are
    options: Mapping[str, Any]  # tune.*
    parameters: tuple[Parameter, ...]
    places: tuple[Place, ...]  # one for each trial that runs at the same time
    folder: Path  # whole path
    goes_on: bool

    @property
    def max_epochs(self) -> int | None:
        epochs = self.config.trainer.max_epochs
        return epochs if isinstance(epochs, int) and epochs > 0 else None

    def store(self) -> None:
        """What a study that goes on needs, and a person wants to know."""
        content = {
            "command": session.command("tune", list(self.argv)),
            "folder_of_command": str(Path.cwd()),
            "options": list(self.argv),
            "space": {each.key: each.plain for each in self.parameters},
        }
        write_whole(self.folder / STORED, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def read(argv: Sequence[str], environ: Mapping[str, str]) -> Plan | None:
    """None where Hydra only prints something. Makes the folder of a new study; raises ConfigError with every mistake.

    A study that goes on keeps its options and its space; tune.* may be typed anew. Its paths are those of the folder
    it was started in, so that becomes the current one.
    """
    if {"-m", "--multirun"} & set(argv):
        raise ConfigError("-m starts a job for each combination, but tune chooses them. HINT: leave -m out.")
    argv = [space.written(token) for token in check.without_local_rank(argv)]
    request = check.command_line("tune", argv if _prints(argv) else [*argv, "--cfg", "job"], environ)
    if not request.configs or _prints(argv):
        return None
    wanted = _wanted(request)
    stored = _stored(wanted) if wanted else None
    if wanted is None or stored is None:
        plan = _plan(request, _kept(argv), environ, wanted)
        folder = make_given(plan.folder) if _is_typed(request) else make_new(plan.folder)
        return dataclasses.replace(plan, folder=folder.resolve())
    if added := [token for token in _kept(argv) if not _is(token, "tune") and token not in stored["options"]]:
        raise ConfigError(
            [
                f"{token} is new to {wanted}, but a study keeps its options. HINT: leave it out, or start a new study "
                "without tune.resume."
                for token in added
            ]
        )
    os.chdir(stored["folder_of_command"])
    anew = {token.partition("=")[0]: token for token in _kept(argv) if _is(token, "tune")}
    argv = [*(token for token in stored["options"] if token.partition("=")[0] not in anew), *anew.values()]
    plan = _plan(check.command_line("tune", [*argv, "--cfg", "job"], environ), argv, environ, wanted)
    before, now = stored["space"], {each.key: each.plain for each in plan.parameters}
    if changed := [key for key in {**before, **now} if before.get(key) != now.get(key)]:
        raise ConfigError(
            [
                f"search.{key} was {before.get(key)} in {wanted}, but is {now.get(key)} now. "
                "HINT: set the file of the space back, or start a new study without tune.resume."
                for key in changed
            ]
        )
    return dataclasses.replace(plan, goes_on=True, options={**plan.options, "resume": str(wanted)})


def _plan(request: check.Request, argv: list[str], environ: Mapping[str, str], wanted: Path | None) -> Plan:
    composed: Any = OmegaConf.to_container(request.configs[0], resolve=False)
    options, search = composed.pop("tune"), composed.pop("search")
    config = request.configs[0].copy()
    OmegaConf.set_struct(config, False)
    for key in ("tune", "search"):
        config.pop(key)
    OmegaConf.set_struct(config, True)
    train_argv = [token for token in argv if not (_is(token, "tune") or _is(token, "search"))]
    typed = [token for token in request.typed if token in train_argv]
    found = expect_all("tune", options, _KINDS)
    if config.resume is not None:
        found.append(f"resume={config.resume} goes on with one run. HINT: tune.resume={config.resume} with a study.")
    if importlib.util.find_spec("optuna") is None:
        found.append(f"tune needs Optuna, which is not installed. HINT: `{install('imagenet_ddp[tune]')}`")
    parameters, said = space.read(search or {}, [*typed, *(token for token in argv if _is(token, "search"))])
    found += said
    srun = places.by_srun(options["launcher"], environ)
    inner = {name: value for name, value in environ.items() if not (srun and name.startswith("SLURM"))}
    in_train = check.semantic(config, inner, "train", typed=typed)
    found += in_train
    if not in_train:
        found += space.refused_ends(parameters, config, inner, typed)
    given: list[Place] = []
    if not found:
        given, found = places.share(session.plain(config, partial=True), options, environ)
    if found:
        raise ConfigError(list(dict.fromkeys(found)))
    assert request.hydra is not None
    folder = wanted or Path(request.hydra.run.dir).absolute()
    return Plan(tuple(argv), tuple(train_argv), config, options, tuple(parameters), tuple(given), folder, False)


def _wanted(request: check.Request) -> Path | None:
    """The folder of the study that is to go on, whole path; None for a new one."""
    assert request.hydra is not None
    asked, run_dir = request.configs[0].tune.resume, Path(request.hydra.run.dir).absolute()
    if asked is None:
        if (run_dir / STORED).exists():
            raise ConfigError(
                f"hydra.run.dir={run_dir} is expected to be a new folder, but holds a study. "
                f"HINT: tune.resume={run_dir} goes on with that; else name another folder."
            )
        return None
    if asked != "auto":
        folder = Path(asked).absolute()
        if not (folder / STORED).is_file():
            raise ConfigError(
                f"tune.resume={asked} is expected to be the folder of a study, but {folder / STORED} is no file. "
                "HINT: tune.resume=runs/<name>/study_<time>, or auto."
            )
        return folder
    if _is_typed(request):
        return run_dir
    studies = [path.parent for path in run_dir.parent.glob(f"study_*/{STORED}")]
    unfinished = [path for path in studies if not (path / "best.yaml").exists()]
    return max(unfinished, key=lambda path: (path / STORED).stat().st_mtime_ns, default=None)


def _stored(folder: Path) -> dict[str, Any] | None:
    try:
        stored = yaml.safe_load((folder / STORED).read_text(encoding="utf-8"))
        whole = isinstance(stored["options"], list) and isinstance(stored["space"], dict)
        if not whole or not isinstance(stored["folder_of_command"], str):
            raise TypeError
    except FileNotFoundError:
        return None  # tune.resume=auto with a folder that is still to be made
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"{folder / STORED} is expected to say what the study is, but cannot be read as that. "
            "HINT: a new study, without tune.resume."
        ) from error
    if not Path(stored["folder_of_command"]).is_dir():
        raise ConfigError(
            f"the study was started in {stored['folder_of_command']}, which its paths are relative to, but that is no "
            "folder. HINT: make it again, or start a new study."
        )
    return stored


def _kept(argv: Sequence[str]) -> list[str]:
    return [token for token in argv if not (_is(token, "tune.resume") or _is(token, "hydra.run.dir"))]


def _is(token: str, key: str) -> bool:
    """An option of this key, of one below it, or a choice in the group of that name."""
    name = token.partition("=")[0].lstrip("+~")
    return not token.startswith("-") and (name == key or name.startswith((f"{key}.", f"{key}@")))


def _is_typed(request: check.Request) -> bool:
    return session.typed_value(request, "hydra.run.dir") is not None


def _prints(argv: Sequence[str]) -> bool:
    prints = ("--cfg", "-c", "--info", "-i", "--help", "-h", "--hydra-help", "--version", "--shell-completion", "-sc")
    return any(token.partition("=")[0] in prints for token in argv)
