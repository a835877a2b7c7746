"""What the options of train ask of SLURM, and whether they would be refused on the nodes of the job. No torch.

The nodes are elsewhere: this machine may have no GPU, fewer cores and another /data. So the options are held against
an environment made up as SLURM would make it there, and what only this machine's disk and network say is passed on,
not refused.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from imagenet_ddp import check, sweep
from imagenet_ddp.data import check as data_check
from imagenet_ddp.distributed import nccl, pointer, split
from imagenet_ddp.distributed.asked import num_devices
from imagenet_ddp.schema import ConfigError

HERE = "127.0.0.1"
PRINTING = ("--cfg", "-c", "--info", "-i", "--help", "-h", "--hydra-help", "--version", "--shell-completion", "-sc")


@dataclass(frozen=True)
class Wanted:
    """None: left to SLURM."""

    num_nodes: int | None
    devices: int | None  # of each node
    accelerator: str
    one_process: bool  # it uses all devices of its node (strategy=dp)
    devices_typed: Any  # trainer.devices as it is
    num_jobs: int | None = None  # of a sweep that a job array is made for; None: a single run
    launcher: bool = False  # a launcher of Hydra's makes SLURM jobs itself
    name: str = "imagenet_ddp"
    said: tuple[str, ...] = ()  # what would be refused on this machine, and may be right on others

    @property
    def num_tasks_per_node(self) -> int | None:
        return 1 if self.one_process else self.devices


def is_own(token: str) -> bool:
    """An option of submit, not of train."""
    key = token.partition("=")[0].lstrip("+~")
    return not token.startswith("-") and (key == "submit" or key.startswith("submit."))


def compose(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[check.Request, Mapping[str, Any]]:
    """(train's request, submit.*). Raises ConfigError with every mistake in single options."""
    own = [_quoted(token) for token in argv if is_own(token)]
    rest = [token for token in argv if not is_own(token)]
    given = sweep.resumed(list(rest))
    if any(token in ("--config-name", "-cn") or token.startswith("--config-name=") for token in rest):
        # such a file has train's keys, and no others
        request = check.command_line("train", given, environ, compose_only=True)
        options = check.command_line("submit", own, environ, compose_only=True).configs[0].submit
    else:
        request = check.command_line("submit", [*own, *given], environ, compose_only=True)
        options = request.configs[0].submit
    configs = [_without_own(config) for config in request.configs]
    typed = [token for token in request.typed if not is_own(token)]
    content: Any = OmegaConf.to_container(options, resolve=True)
    return dataclasses.replace(request, configs=configs, typed=typed), content


def _quoted(token: str) -> str:
    """submit.extra=[--mail-type=END] with the quotes that Hydra's grammar wants around = and the like."""
    found = re.fullmatch(r"""(submit\.(?:extra|setup))=\[([^\]\["'\\]+)\]""", token)
    if not found:
        return token
    words = [f'"{word.strip()}"' for word in found[2].split(",")]
    return f"{found[1]}=[{','.join(words)}]"


def _without_own(config: DictConfig) -> DictConfig:
    bare = config.copy()
    OmegaConf.set_struct(bare, False)
    bare.pop("submit", None)
    OmegaConf.set_struct(bare, True)
    return bare


def read(request: check.Request, environ: Mapping[str, str], *, torchrun: bool = False) -> Wanted:
    """Raises ConfigError with every mistake that the nodes would refuse too."""
    wanted, mistakes = look(request, environ, torchrun=torchrun)
    if mistakes:
        raise ConfigError(mistakes)
    return wanted


def look(request: check.Request, environ: Mapping[str, str], *, torchrun: bool = False) -> tuple[Wanted, list[str]]:
    """(what can be read of it, mistakes that the nodes would refuse too)."""
    found: dict[str, list[int]] = {}
    said: list[str] = []
    jobs: list[Wanted] = []
    for number, config in enumerate(request.configs):
        chosen = config.sweep.job
        in_array = request.multirun and chosen == "auto"
        looked = _one(config, request, environ, number if in_array else None, torchrun)
        jobs.append(looked.wanted)
        for text in looked.mistakes:
            found.setdefault(text, []).append(number)
        said += looked.said
    count = len(request.configs)
    mistakes = []
    for text, numbers in found.items():
        one = f"Job {numbers[0]} ({request.names[numbers[0]]}): {text}"
        several = f"Jobs {', '.join(map(str, numbers))} of 0 to {count - 1}: {text}"
        mistakes.append(text if len(numbers) == count else one if len(numbers) == 1 else several)
    if not mistakes:
        mistakes += _differing(jobs)
    first, chosen = jobs[0], request.configs[0].sweep.job
    assert request.hydra is not None
    launcher = "submitit" in str((request.hydra.get("launcher") or {}).get("_target_"))
    names = {job.name for job in jobs}
    wanted = dataclasses.replace(
        first,
        num_jobs=count if request.multirun and chosen == "auto" and not launcher else None,
        launcher=request.multirun and launcher,
        name=first.name if len(names) == 1 else "imagenet_ddp",
        said=tuple(dict.fromkeys(said)),
    )
    return wanted, mistakes


def _differing(jobs: Sequence[Wanted]) -> list[str]:
    found = []
    for key, name in (("num_nodes", "trainer.num_nodes"), ("devices", "trainer.devices"),
                      ("accelerator", "trainer.accelerator"), ("one_process", "strategy")):  # fmt: skip
        values = list(dict.fromkeys(str(getattr(job, key)) for job in jobs))
        if len(values) > 1:
            what = "one process, and several" if key == "one_process" else ", ".join(values)
            found.append(
                f"the tasks of a job array have the same nodes and GPUs, but {name} differs between the jobs of -m "
                f"({what}). HINT: one array for each."
            )
    return found


@dataclass(frozen=True)
class _Looked:
    wanted: Wanted
    mistakes: list[str]
    said: list[str]


def _one(
    config: DictConfig, request: check.Request, environ: Mapping[str, str], task: int | None, torchrun: bool
) -> _Looked:
    partial = config.get("resume") not in (None, "auto")
    try:
        plain: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=not partial)
        trainer = plain["trainer"]
        nodes = trainer.get("num_nodes")
        one_process = plain["strategy"]["name"] in split.NAMES
        wanted = Wanted(
            nodes if isinstance(nodes, int) else None,
            num_devices(trainer.get("devices")),
            str(trainer.get("accelerator")),
            one_process,
            trainer.get("devices"),
            name=str(plain["name"]),
        )
        there = _there(wanted, environ, task, torchrun)
    except (OmegaConfBaseException, TypeError, ValueError, KeyError):  # said by check.semantic
        return _Looked(Wanted(None, None, "auto", False, "auto"), _semantic(config, environ, request, partial), [])
    said = _semantic(config, there, request, partial)
    try:
        outside = _outside(plain, there) if said else set()
    except Exception:  # a value of the wrong kind, which `said` names
        outside = set()
    if not str(config.get("resume") or "").startswith("~"):
        outside |= {text for text in said if text.startswith("resume is expected to be a checkpoint")}
    of_cores = "trainer.devices is expected to be at most "  # of this machine: nothing to pass on
    mistakes = [text for text in said if text not in outside and not text.startswith(of_cores)]
    passed_on = [text for text in said if text in outside]
    return _Looked(wanted, mistakes, passed_on)


def _semantic(config: DictConfig, environ: Mapping[str, str], request: check.Request, partial: bool) -> list[str]:
    there = config.copy()
    if there.trainer.get("accelerator") == "auto":
        there.trainer.accelerator = "gpu"  # this machine need not have one
    return check.semantic(there, environ, "train", typed=request.typed, partial=partial)


def _outside(config: Mapping[str, Any], environ: Mapping[str, str]) -> set[str]:
    """What hangs on this machine's disk and network interfaces. A folder with ~, or none, is wrong everywhere."""
    found: set[str] = set()
    data, root = config["data"], str(config["data"]["root"] or "")
    if (root or data["name"] == "stl10") and not root.startswith("~"):
        # predict needs no folder, and of fold and val_fraction any machine can tell
        found |= {*data_check.mistakes(config, environ)} - {*data_check.mistakes(config, environ, verb="predict")}
        found = {text for text in found if not text.startswith(("data.fold is for", "data.val_fraction is for"))}
    named = ("socket_ifname", "gloo_socket_ifname")
    bare = {**config["nccl"], **dict.fromkeys(named)}
    less = {name: value for name, value in environ.items() if not name.endswith("_SOCKET_IFNAME")}
    for address in (None, HERE):
        found |= {*nccl.mistakes(config["nccl"], environ, address)} - {*nccl.mistakes(bare, less, address)}
    address = str(config["cluster"]["address"] or "")
    return found | ({*pointer.mistakes(address[len("file://") :])} if address.startswith("file:///") else set())


def _there(wanted: Wanted, environ: Mapping[str, str], task: int | None, torchrun: bool) -> dict[str, str]:
    """The environment of the first process on the nodes: this one's, which sbatch takes along, and SLURM's."""
    nodes, each = wanted.num_nodes or 1, wanted.num_tasks_per_node or 1
    found = {name: value for name, value in environ.items() if not name.startswith("SLURM_")}
    found |= {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_JOB_NUM_NODES": str(nodes)}
    tasks = 1 if torchrun else each
    found |= {
        "SLURM_STEP_NUM_TASKS": str(nodes * tasks), "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_TASKS_PER_NODE": f"{tasks}(x{nodes})", "SLURM_STEP_NODELIST": f"127.0.0.[1-{nodes}]",
        "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
    }  # fmt: skip
    if task is not None:
        found |= {"SLURM_ARRAY_JOB_ID": "1", "SLURM_ARRAY_TASK_ID": str(task)}
    if torchrun:
        found |= {
            "TORCHELASTIC_RUN_ID": "1", "RANK": "0", "WORLD_SIZE": str(nodes * each), "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": str(each), "GROUP_RANK": "0", "GROUP_WORLD_SIZE": str(nodes),
            "MASTER_ADDR": HERE, "MASTER_PORT": "29500",
        }  # fmt: skip
    return found
