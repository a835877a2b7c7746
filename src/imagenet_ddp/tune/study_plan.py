"""Turn the command line of tune into a study, or report all of its mistakes at once. Does not import torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import OmegaConf, open_dict

from imagenet_ddp.cli import check_config, parse
from imagenet_ddp.config.paths import relative_options
from imagenet_ddp.config.schema.keys import declared, validate_group
from imagenet_ddp.config.schema.read_if import unread
from imagenet_ddp.config.schema.tune import TuneOptions
from imagenet_ddp.config.section import to_config
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, key_of, without
from imagenet_ddp.runs.folder import make_given, make_new, refuse_links
from imagenet_ddp.system.files import atomic_write, read_mapping
from imagenet_ddp.system.packages import missing_package
from imagenet_ddp.system.text import without_secrets
from imagenet_ddp.tune import search_space
from imagenet_ddp.tune.search_space import Parameter
from imagenet_ddp.tune.trials import Slot, make_slots

STORED = "tune.yaml"
SPACES = ("sgd", "adamw")  # the optimizers that have a search space of their name in conf/search


@dataclass(frozen=True)
class StudyPlan:
    argv: tuple[str, ...]  # without hydra.run.dir
    train_argv: tuple[str, ...]  # the part of argv that is passed to train
    options: TuneOptions
    seed: int
    requeue: bool  # whether a SLURM job that this command started again would continue the study
    parameters: tuple[Parameter, ...]
    slots: tuple[Slot, ...]  # one slot for each trial that runs at the same time
    folder: Path  # absolute


def read(argv: Sequence[str], environ: Mapping[str, str]) -> StudyPlan:
    """Return the study to run; make its folder if it is new, else the study there is continued. argv: as returned by
    as_overrides. Raises ConfigError with every mistake."""
    plan, is_given = checked(argv, environ)
    entries = {each.key: each.entry for each in plan.parameters}
    return replace(plan, folder=_folder(plan.folder, [*plan.train_argv], entries, is_given=is_given))


def checked(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[StudyPlan, bool]:
    """Return (the study, whether its folder is typed), and make nothing. Raises ConfigError with every mistake."""
    request = parse.composed("tune", argv)
    if request.hydra.runtime.choices.get("search") == "auto":
        optim = request.config.optim
        if (name := optim._target_ or optim.name) not in SPACES:
            hint = "type the space, such as `search=none 'search.optim.lr={low:0.01,high:1,log:true}'`"
            what = f"search=auto needs optim.name=sgd or optim.name=adamw, got {name}"
            raise ConfigError(Mistake(what, ("search", "optim.name"), hint=hint))
        argv = [*(token for token in request.argv if not token.startswith("search=")), f"search={name}"]
        request = parse.composed("tune", argv)
    config = request.config.copy()
    with open_dict(config):
        tune, search = (cast(Any, OmegaConf.to_container(config.pop(key))) for key in ("tune", "search"))
    argv = [token for token in request.argv if key_of(token) != "hydra.run.dir"]
    train_argv = [token for token in argv if key_of(token).partition(".")[0] not in ("tune", "search")]
    typed = [token for token in request.typed if token in train_argv]
    found = validate_group("tune", tune, "tune")
    found += unread(request.typed, {"tune": tune}, declared("tune"))
    if config.resume is not None:
        what = f"resume must not be set for tune, because it resumes a single run, got {config.resume}"
        hint = "to resume a study, type its command again with its folder as hydra.run.dir"
        found.append(Mistake(what, ("resume",), (without("resume"),), hint))
    parameters: list[Parameter] = []
    if missing := missing_package("tune", "optuna"):
        found += missing
    else:
        parameters, mistakes = search_space.read(search or {}, typed)
        found += mistakes
    of_train = check_config.check(config, environ, "train", typed)
    found += of_train.mistakes or search_space.check_values(parameters, config, environ, typed)
    if found:
        raise ConfigError(list(dict.fromkeys(found)))
    options = to_config(tune, TuneOptions)
    assert of_train.values is not None
    slots = make_slots(of_train.values.trainer, options.num_at_once, environ)
    folder, is_given = Path(request.hydra.run.dir).absolute(), request.names_folder
    requeue = is_given and config.cluster.requeue
    plan = StudyPlan(
        tuple(argv), tuple(train_argv), options, config.seed, requeue, tuple(parameters), tuple(slots), folder
    )
    return plan, is_given


def _folder(folder: Path, train_argv: list[str], entries: dict[str, Any], *, is_given: bool) -> Path:
    """Return the folder of the study, made if it is new, with tune.yaml in it. Raises ConfigError if it holds a study
    of other options."""
    content: dict[str, Any] = without_secrets({"options": train_argv, "space": entries})
    if relative_options(train_argv):
        content["folder"] = str(Path.cwd())  # in which the study was started, to which paths in its options refer
    if (folder / STORED).exists():
        before = {"folder": content.get("folder"), **read_mapping(folder / STORED)}
        if found := [
            Mistake(
                f"the {key} of the study in {folder} must stay {before.get(key)}, got {content[key]}",
                hint="type them as before, or set hydra.run.dir to a new folder",
            )
            for key in content
            if before.get(key) != content[key]
        ]:
            raise ConfigError(found)
        refuse_links(folder, [*folder.glob("*"), *folder.glob("trials/*")])
        return folder
    folder = (make_given if is_given else make_new)(folder).resolve()
    atomic_write(folder / STORED, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    return folder
