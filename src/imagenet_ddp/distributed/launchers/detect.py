"""Who am I, and where do all meet? The frozen table: what surrounds a command -> what its process is. No torch here.

    surroundings                                      this process
    ------------------------------------------------  --------------------------------------------------
    cluster.rank, cluster.world_size                  that rank (one command per process)
    RANK and WORLD_SIZE: torchrun, launch, by hand    that rank
    a SLURM step of nodes × devices tasks             the rank of its task
    a SLURM step of one task per node, devices > 1    a node: it starts its local workers
    a SLURM step of any other number of tasks         refused
    OpenMPI (OMPI_COMM_WORLD_*)                       as in a SLURM step
    a SLURM batch shell, or salloc without srun       alone on one node, refused on more
    trainer.num_nodes > 1 and an address              a node: it starts its local workers
    none of these                                     alone: it starts its local workers

The first line that fits holds; but the world of torchrun, of a step and of OpenMPI is theirs, and options that differ
from it, those of the first line too, are refused. docs/launching.md explains each line, and
tests/distributed/launchers/test_detect.py holds it.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from imagenet_ddp.distributed.launchers import env_vars, manual, openmpi, scontrol, slurm, slurm_env
from imagenet_ddp.distributed.launchers.address import Address
from imagenet_ddp.distributed.launchers.request import LaunchRequest, num_devices
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo, spawned_world_info
from imagenet_ddp.distributed.network import interfaces
from imagenet_ddp.distributed.strategies import batch_split
from imagenet_ddp.errors import ConfigError


def detect(
    config: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    verb: str = "train",
    typed: Sequence[str] = (),
    cpu: bool = False,
) -> LaunchInfo:
    """config: resolved, its kinds checked. typed: the options as typed. cpu: there is no GPU, or none is wanted.
    Raises ConfigError with every mistake."""
    own = spawned_world_info(environ)
    if own is not None:
        return LaunchInfo(own.source, Address(own.address, own.port or 0), own, own.num_nodes, own.node_rank)
    cluster, trainer = config["cluster"], config["trainer"]
    one_process = config["strategy"]["name"] in batch_split.DATA_PARALLEL
    num_nodes = trainer.get("num_nodes")
    line = f"python -m imagenet_ddp.{verb} {shlex.join(typed) or f'trainer.num_nodes={num_nodes}'}"
    request = LaunchRequest(
        num_nodes if isinstance(num_nodes, int) else None,
        None if one_process else num_devices(trainer.get("devices")),
        cluster,
        line,
        cpu,
    )
    launcher = env_vars.name(environ, by_tasks=cluster["name"] != "env")
    ways = [env_vars.launched, manual.one_per_node]
    if cluster["name"] != "env":
        ways[1:1] = [slurm.slurm_step, openmpi.openmpi, slurm.batch_shell]
    if launcher is None:
        ways.insert(0, manual.one_per_process)
    found = next((found for way in ways if (found := way(request, environ)) is not None), LaunchInfo())
    if one_process and not found.standalone:
        raise ConfigError(
            f"strategy={config['strategy']['name']} runs in one process, but {found.source} asks for several. "
            "Hint: strategy=ddp, or start it once, without a launcher."
        )
    if launcher is not None:
        _must_fit(cluster, launcher, found)
    return replace(found, job_id=cluster["job_id"] or found.job_id, run_key=_run_key(environ, found))


def with_known_host(found: LaunchInfo, environ: Mapping[str, str]) -> LaunchInfo:
    """The same, by an address: a node of SLURM whose name no name server knows is in SLURM's own book."""
    if found.address is None or found.address.host is None or "SLURM_JOB_ID" not in environ:
        return found
    try:
        interfaces.resolve(found.address.host)
    except OSError:
        if host := scontrol.node_address(found.address.host):
            world_info = replace(found.world_info, address=host) if found.world_info else None
            return replace(found, address=replace(found.address, host=host), world_info=world_info)
    return found


def _must_fit(cluster: Mapping[str, Any], launcher: str, found: LaunchInfo) -> None:
    """The launcher's numbers stand; those that are set and differ are refused."""
    theirs: dict[str, int | None] = {"node_rank": found.node_rank}
    if found.world_info is not None:
        theirs |= {key: getattr(found.world_info, key) for key in ("rank", "local_rank", "world_size", "node_rank")}
    given = {key: cluster[key] for key in ("rank", "local_rank", "world_size", "node_rank") if cluster[key] is not None}
    differing = [
        f"cluster.{key}={value}, where {f'it says {theirs[key]}' if key in theirs else 'each task starts its workers'}"
        for key, value in given.items()
        if theirs.get(key) != value
    ]
    if differing:
        raise ConfigError(
            f"the world is that of {launcher}, and what is set differs: {', '.join(differing)}. "
            f"Hint: leave {', '.join(f'cluster.{key}' for key in given)} out."
        )


def _run_key(environ: Mapping[str, str], found: LaunchInfo) -> str | None:
    run_id = environ.get("TORCHELASTIC_RUN_ID", "none")
    made_up = re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", run_id)  # by torch, another at each start
    if run_id != "none" and not made_up and found.world_info is not None:
        return "torchrun_" + "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in run_id)
    return slurm_env.run_key(environ)


def restarted(environ: Mapping[str, str]) -> bool:
    """Whether the launcher has started this job before: torchrun --max-restarts, SLURM's requeue."""
    names = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    return any(environ.get(name, "0").isdecimal() and int(environ.get(name, "0")) > 0 for name in names)
